"""The product in virtual time: real tables, lanes, boards and strategies, driven by a simulation's clock.

Per host one table in shared memory with a monitor's :class:`monitor.board.Board`, and one lane and strategy
per worker. Nothing of the product is imitated here: this module tells it the time, carries polls from the
machines to the boards, and requests from the strategies to the machines.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.virtual.leftovers import table_of
from bench.virtual.world import World
from monitor.board import Board
from monitor.config import InstanceConfig, MonitorConfig
from monitor.discovery import Discovered
from monitor.membership import Changes
from monitor.polling.failure import FailureKind
from monitor.polling.schedule import Schedule
from monitor.sample import FINISHED, GENERATED_TOKENS, PROMPT_TOKENS, Reading
from proxy_adapter.dispatch import Dispatch
from proxy_adapter.factory import STRATEGIES
from proxy_adapter.strategies.base import CountingStrategy
from score_table.lane import Lane
from score_table.removal import remove_table
from score_table.writer import TableWriter

HOUSEKEEPING_S = 0.1
#: The jitter of polls, and slots of a table: enough for every newcomer of a run.
_JITTER = 0.1
_STREAMS = {"stream": True}


@dataclass(frozen=True)
class Setting:
    """How the product is used. ``options`` are the monitor's, nested as in its configuration."""

    strategy: str = "least_load"
    options: Mapping[str, Any] = field(default_factory=dict)
    tells: bool = True  #: proxies tell the prompt's length, and see the first token
    selects: bool = False  #: proxies only call ``select``: nothing is ever released
    tick: float = 0.02
    exact: bool = False  #: a tick just before every pick
    weighs: bool = False  #: instances have their machines' speeds as weights


class Machine(NamedTuple):
    """An instance as a proxy knows it."""

    instance_id: str
    host: str
    port: int


class Host:
    """One proxy host: its monitor and its workers."""

    def __init__(self, world: World, number: int, setting: Setting, rng: random.Random) -> None:
        self._world, self._number, self._setting, self._rng = world, number, setting, rng
        scenario = world.scenario
        self._config = _config(world, setting)
        self._everyone = [
            Discovered(instance.id, instance.url, instance.tags, instance)
            for instance in self._config.instances
        ]
        self._table = table_of(os.getpid(), number)
        self._writer = TableWriter.open(
            self._table, slots=_slots(len(world.inside)), lanes=max(scenario.workers, 1)
        )
        self.board = Board(self._writer, self._config)
        self._keys: dict[int, int] = {}
        self._frozen: dict[int, Reading] = {}
        self._alive = True
        self.polls = 0
        clock = world.clock.mono_ns
        self._lanes = [Lane(self._table, clock=clock) for _ in range(scenario.workers)]
        self.strategies: list[CountingStrategy] = []

    def begin(self) -> None:
        """The monitor starts; a moment later so do the workers."""
        world, scenario = self._world, self._world.scenario
        self._polls_of(self.board.start(self._present(), world.clock.mono_ns()))
        self._tick()
        world.every(self._setting.tick, self._rng.random() * self._setting.tick, self._tick)
        for lane in self._lanes:
            lane.attach()
            strategy = STRATEGIES[self._setting.strategy](
                lane=lane, rng=random.Random(self._rng.getrandbits(64))
            )
            self.strategies.append(strategy)
            world.every(HOUSEKEEPING_S, self._rng.random() * HOUSEKEEPING_S, lane.housekeep)
        if scenario.dead_monitor:
            world.at(scenario.warmup / 2, self._die)

    def tick_now(self) -> None:
        """A tick out of turn."""
        self._tick()

    def members(self) -> None:
        """The monitor follows the machines of the world."""
        if self._alive:
            self._polls_of(self.board.follow(self._present(), self._world.clock.mono_ns()))

    def kill(self, worker: int) -> None:
        """The worker's process is gone: its lock falls, its counts stay behind; another one takes its place."""
        self._lanes[worker].after_fork()
        self._lanes[worker].attach()

    def close(self) -> None:
        """Everything is given back; the table is gone."""
        for lane in self._lanes:
            lane.close()
        self._writer.close()
        remove_table(self._table, force=True)

    def _present(self) -> Sequence[Discovered]:
        return [self._everyone[machine] for machine in self._world.members]

    def _die(self, _: object) -> None:
        self._alive = False

    def _tick(self) -> None:
        if self._alive:
            clock = self._world.clock
            self.board.tick(clock.mono_ns(), clock.boot_ns())

    # -- polls

    def _polls_of(self, changes: Changes) -> None:
        for key in changes.stopped:
            self._keys = {machine: its for machine, its in self._keys.items() if its != key}
        scenario = self._world.scenario
        for key, instance in changes.started:
            machine = int(instance.id[1:])
            self._keys[machine] = key
            schedule = Schedule(
                scenario.poll,
                0.0 if scenario.together else _JITTER,
                _Still() if scenario.together else self._rng,
            )
            self._plan(key, machine, schedule)

    def _plan(self, key: int, machine: int, schedule: Schedule) -> None:
        now_ns = self._world.clock.mono_ns()
        due_s = self._world.now + max(0, schedule.next_due(now_ns) - now_ns) / 1e9
        self._world.at(due_s, self._poll, (key, machine, schedule))

    def _poll(self, what: tuple[int, int, Schedule]) -> None:
        key, machine, schedule = what
        if not self._alive or self._keys.get(machine) != key:
            return
        clock = self._world.clock
        mono_ns, boot_ns = clock.mono_ns(), clock.boot_ns()
        schedule.started(mono_ns)
        self.polls += 1
        if machine < self._world.scenario.unknown:
            self.board.fleet.failed(key, FailureKind.STATUS, "answers 404", mono_ns)
            schedule.failed(mono_ns, slow=False)
        else:
            self.board.fleet.sampled(key, self._reading(machine), "simulated", boot_ns, mono_ns)
            schedule.succeeded(mono_ns)
        self._plan(key, machine, schedule)

    def _reading(self, machine: int) -> Reading:
        scenario = self._world.scenario
        if machine < scenario.frozen and self._world.now >= scenario.warmup / 2:
            return self._frozen.setdefault(machine, self._told(machine))
        return self._told(machine)

    def _told(self, machine: int) -> Reading:
        gauges, capacity = self._world.gauges(machine), self._world.parameters[machine].kv_capacity
        return Reading(
            running=float(gauges.running),
            waiting=float(gauges.waiting),
            kv_usage=min(1.0, gauges.kv_tokens / capacity),
            kv_capacity=None if self._world.scenario.untold else float(capacity),
            counters={
                FINISHED: {b"": float(gauges.finished)},
                PROMPT_TOKENS: {b"": float(gauges.prompt_tokens)},
                GENERATED_TOKENS: {b"": float(gauges.generated_tokens)},
            },
        )


class Product:
    """The :class:`bench.virtual.world.Policy` that is the product, on all hosts of a scenario."""

    def __init__(self, rng: random.Random, setting: Setting) -> None:
        self._rng, self._setting = rng, setting
        self.hosts: list[Host] = []
        self._open: dict[int, Dispatch[Machine]] = {}
        self.world: World

    def begin(self, world: World) -> None:
        """Monitors and workers start."""
        self.world = world
        scenario = world.scenario
        self._told = world.requests.told.tolist()
        self._host = world.requests.host.tolist()
        self._worker = world.requests.worker.tolist()
        self._machines = [
            Machine(f"m{number}", f"m{number}.test", 8000) for number in range(len(world.inside))
        ]
        self._candidates = [self._machines[member] for member in world.members]
        for number in range(scenario.hosts):
            self.hosts.append(Host(world, number, self._setting, random.Random(self._rng.getrandbits(64))))
        for host in self.hosts:
            host.begin()
        if scenario.worker_killed:
            world.at(scenario.warmup, self._kill)

    def pick(self, request: int) -> int:
        """By the strategy of the request's worker, which counts it."""
        setting, host = self._setting, self.hosts[self._host[request]]
        if setting.exact:
            host.tick_now()
        strategy = host.strategies[self._worker[request]]
        if setting.selects:
            return int(strategy.select(self._candidates).instance_id[1:])
        if setting.tells:
            guard = strategy.dispatch(self._candidates, _STREAMS, prompt_tokens=self._told[request])
        else:
            guard = strategy.dispatch(self._candidates)
        self._open[request] = guard
        return int(guard.instance.instance_id[1:])

    def first_token(self, request: int) -> None:
        """The proxy sees it, where it streams."""
        if self._setting.tells and not self._setting.selects:
            self._open[request].first_token()

    def ended(self, request: int, failed: bool) -> None:
        """The guard is released, or fails."""
        if self._setting.selects:
            return
        guard = self._open.pop(request)
        if failed:
            guard.fail()
        else:
            guard.release()

    def stepped(self, machine: int) -> None:
        """Proxies do not see steps."""

    def members(self, machines: list[int]) -> None:
        """The proxies' list and every monitor's configuration change."""
        self._candidates = [self._machines[machine] for machine in machines]
        for host in self.hosts:
            host.members()

    def close(self) -> None:
        """Give the tables back."""
        for guard in self._open.values():
            guard.release()
        for host in self.hosts:
            host.close()

    def _kill(self, _: object) -> None:
        """Worker 0 of host 0 dies as soon as it has sixty requests open."""
        mine = [request for request in self._open if self._host[request] == 0 and self._worker[request] == 0]
        if len(mine) < KILLED_WITH:
            self.world.at(self.world.now + 0.01, self._kill)
            return
        self.hosts[0].kill(0)
        for request in mine:
            del self._open[request]
            self.world.drop(request)


#: Requests that a killed worker has open.
KILLED_WITH = 60


class _Still(random.Random):
    """Polls of all hosts at the same moments."""

    def random(self) -> float:
        """The beginning of every range."""
        return 0.0


def _slots(machines: int) -> int:
    return max(16, -(-machines // 16) * 16)


def _config(world: World, setting: Setting) -> MonitorConfig:
    scenario = world.scenario
    options = dict(setting.options)
    options.setdefault("staleness", max(5.0, 1.2 * scenario.poll + 2.1))
    return MonitorConfig(
        instances=tuple(
            InstanceConfig(
                id=f"m{number}",
                url=f"http://m{number}.test:8000",
                slots=None if scenario.untold else machine.slots,
                weight=machine.speed if setting.weighs else 1.0,
            )
            for number, machine in enumerate(world.parameters)
        ),
        slots=_slots(len(world.inside)),
        lanes=max(scenario.workers, 1),
        interval=scenario.poll,
        **options,
    )
