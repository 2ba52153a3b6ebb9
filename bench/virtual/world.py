"""A run in virtual time: requests arrive, a policy sends each to a machine, machines work, faults happen.

The order of events is a heap's; two at the same moment happen in the order in which they were planned.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bench.virtual.clock import VirtualClock
from bench.virtual.engines import Began, build
from bench.virtual.scenarios import KV_CAPACITY, Scenario
from bench.virtual.workloads import Requests
from loadboard.sim.model import EngineParameters, Gauges

#: One way through the network between proxy and machine, in seconds.
NETWORK_S = 0.002
#: What a machine that fails fast takes to say so.
FAILS_AFTER_S = 0.005


class Policy(Protocol):
    """Where requests go. Requests and machines are numbers."""

    def pick(self, request: int) -> int | None:
        """The machine for a request that has just arrived; ``None``: it comes later, by ``World.send``."""

    def first_token(self, request: int) -> None:
        """Its first token has come back to its proxy."""

    def ended(self, request: int, failed: bool) -> None:
        """Its end has come back to its proxy."""

    def stepped(self, machine: int) -> None:
        """A step of that machine has just ended, the next one has not begun."""

    def members(self, machines: list[int]) -> None:
        """These are the machines from now on; those that left finish what they have."""

    def begin(self, world: World) -> None:
        """Once, before anything happens; timers are set here."""

    def close(self) -> None:
        """The run is over."""


class World:
    """One run. ``now`` is in seconds; ``inside`` counts what each machine really has, or has under way to it."""

    def __init__(
        self,
        scenario: Scenario,
        requests: Requests,
        clock: VirtualClock,
        machines: list[EngineParameters] | None = None,
    ) -> None:
        """``machines``: those of the scenario where not given, and spare ones for newcomers."""
        self.scenario, self.requests, self.clock = scenario, requests, clock
        spare = math.floor(scenario.duration / scenario.churn) if scenario.churn else 0
        if machines is None:
            machines = [
                EngineParameters(kv_capacity=KV_CAPACITY[scenario.kv], speed=speed)
                for speed in [*scenario.machine_speeds(), *[1.0] * spare]
            ]
        self.parameters = machines
        self.engines = build(machines, requests.prompt, requests.answer)
        self.members = list(range(scenario.instances))
        self.inside = [0] * len(machines)
        count = len(requests)
        self.machine_of: NDArray[np.int64] = np.full(count, -1, dtype=np.int64)
        self.first_at: NDArray[np.float64] = np.full(count, np.nan)
        self.end_at: NDArray[np.float64] = np.full(count, np.nan)
        self.failed: NDArray[np.bool_] = np.zeros(count, dtype=np.bool_)
        self.lost: NDArray[np.bool_] = np.zeros(count, dtype=np.bool_)  #: with the worker that had it
        self._fails = [False] * len(machines)
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._order = itertools.count()
        self._policy: Policy

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return self.clock.seconds

    # -- timers

    def at(self, when: float, call: Callable[[Any], None], argument: Any = None) -> None:
        """Call ``call(argument)`` at ``when``."""
        heapq.heappush(self._heap, (when, next(self._order), call, argument))

    def every(self, period: float, first: float, call: Callable[[], object]) -> None:
        """Call ``call`` at ``first`` and every ``period`` seconds from then on."""
        number = itertools.count(1)

        def again(_: Any) -> None:
            call()
            self.at(first + next(number) * period, again)

        self.at(first, again)

    # -- the run

    def run(self, policy: Policy) -> None:
        """From the first arrival to ``scenario.duration``."""
        self._policy = policy
        policy.begin(self)
        self._plan_faults()
        heap, clock, until = self._heap, self.clock, self.scenario.duration
        arrivals = self.requests.arrival.tolist()
        arrivals.append(math.inf)
        request, due = 0, arrivals[0]
        while True:
            if not heap or due <= heap[0][0]:
                if due >= until:
                    return
                clock.seconds = due
                self._arrive(request)
                request += 1
                due = arrivals[request]
                continue
            when, _, call, argument = heapq.heappop(heap)
            if when >= until:
                return
            clock.seconds = when
            call(argument)

    def gauges(self, machine: int) -> Gauges:
        """What the machine says of itself now."""
        return self.engines.gauges(machine, self.now)

    def send(self, request: int, machine: int) -> None:
        """The request is on its way to ``machine``."""
        self.machine_of[request] = machine
        self.inside[machine] += 1
        if self._fails[machine]:
            self.at(self.now + NETWORK_S + FAILS_AFTER_S, self._failed, request)
        else:
            self.at(self.now + NETWORK_S, self._submit, request)

    def drop(self, request: int) -> None:
        """Its proxy is gone: the machine sees the connection close, and stops working at it."""
        if math.isnan(self.end_at[request]) and not self.failed[request]:
            machine = int(self.machine_of[request])
            self.lost[request] = True
            if self.engines.cancel(machine, request):
                self.inside[machine] -= 1

    def _arrive(self, request: int) -> None:
        requests = self.requests
        if requests.past_proxies[request]:
            quarter = self.members[: max(1, len(self.members) // 4)]
            self.send(request, quarter[int(requests.luck[request] * len(quarter))])
            return
        machine = self._policy.pick(request)
        if machine is not None:
            self.send(request, machine)

    def _submit(self, request: int) -> None:
        machine = int(self.machine_of[request])
        if self.lost[request]:
            self.inside[machine] -= 1
            return
        if self.engines.submit(machine, self.clock.seconds, request):
            self._step(machine)

    def _step(self, machine: int) -> None:
        began = self.engines.step(machine, self.clock.seconds)
        if began is not None:
            self.at(began.ends, self._stepped, (machine, began))

    def _stepped(self, what: tuple[int, Began]) -> None:
        machine, began = what
        if began.first or began.finished:
            self.inside[machine] -= len(began.finished)
            self.at(self.clock.seconds + NETWORK_S, self._told, began)
        self._policy.stepped(machine)
        self._step(machine)

    def _told(self, began: Began) -> None:
        policy, now = self._policy, self.clock.seconds
        past, lost = self.requests.past_proxies, self.lost
        for request in began.first:
            self.first_at[request] = now
            if not past[request] and not lost[request]:
                policy.first_token(request)
        for request in began.finished:
            self.end_at[request] = now
            if not past[request] and not lost[request]:
                policy.ended(request, False)

    # -- faults

    def _plan_faults(self) -> None:
        scenario = self.scenario
        if scenario.fails_fast:
            self.at(scenario.warmup, self._begin_to_fail)
        if scenario.churn:
            self.every(scenario.churn, scenario.churn, self._exchange)

    def _begin_to_fail(self, _: object) -> None:
        for machine in self.members[: self.scenario.fails_fast]:
            self._fails[machine] = True

    def _failed(self, request: int) -> None:
        self.inside[int(self.machine_of[request])] -= 1
        self.failed[request] = True
        if not self.requests.past_proxies[request]:
            self._policy.ended(request, True)

    def _exchange(self) -> None:
        newcomer = max(self.members) + 1
        if newcomer < len(self.inside):
            self.members = [*self.members[1:], newcomer]
            self._policy.members(self.members)
