"""What others do, and what could be done by somebody who knows everything. Ties are broken at random."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from bench.virtual.world import NETWORK_S, World
from loadboard.sim.model import Gauges


class Comparator:
    """A policy that has no timers and learns nothing, for others to fill in."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.world: World

    def begin(self, world: World) -> None:
        """See :class:`bench.virtual.world.Policy`."""
        self.world = world

    def pick(self, request: int) -> int | None:
        """See :class:`bench.virtual.world.Policy`."""
        raise NotImplementedError

    def first_token(self, request: int) -> None:
        """Nothing to learn."""

    def ended(self, request: int, failed: bool) -> None:
        """Nothing to learn."""

    def stepped(self, machine: int) -> None:
        """Nothing to learn."""

    def members(self, machines: list[int]) -> None:
        """Every pick asks the world who is there."""

    def close(self) -> None:
        """Nothing is held."""

    def _least(self, load: Callable[[int], float], machines: Sequence[int] | None = None) -> int:
        machines = self.world.members if machines is None else machines
        loads = [load(machine) for machine in machines]
        least = min(loads)
        return self._rng.choice(
            [machine for machine, its in zip(machines, loads, strict=True) if its == least]
        )


class Random(Comparator):
    """Each machine with the same probability."""

    def pick(self, request: int) -> int:
        """Any."""
        return self._rng.choice(self.world.members)


class _PerWorker(Comparator):
    """What each worker process knows of its own requests."""

    def begin(self, world: World) -> None:
        """Nothing is open."""
        super().begin(world)
        scenario, machines = world.scenario, len(world.inside)
        self._open = [[0] * machines for _ in range(scenario.hosts * scenario.workers)]

    def worker_of(self, request: int) -> int:
        """Number of its worker among those of all hosts."""
        requests = self.world.requests
        return int(requests.host[request]) * self.world.scenario.workers + int(requests.worker[request])

    def pick(self, request: int) -> int:
        """The best by what its worker knows, which counts it."""
        worker = self.worker_of(request)
        machine = self.choose(worker)
        self._open[worker][machine] += 1
        self.counted(worker, machine, request)
        return machine

    def choose(self, worker: int) -> int:
        """The machine for that worker's next request."""
        raise NotImplementedError

    def counted(self, worker: int, machine: int, request: int) -> None:
        """That worker has sent ``request`` to ``machine``."""

    def ended(self, request: int, failed: bool) -> None:
        """One less at its worker."""
        self._open[self.worker_of(request)][int(self.world.machine_of[request])] -= 1


class RoundRobin(_PerWorker):
    """Each worker process goes round by itself, from a start of its own."""

    def begin(self, world: World) -> None:
        """Starts at random."""
        super().begin(world)
        self._next = [self._rng.randrange(len(world.members)) for _ in self._open]

    def choose(self, worker: int) -> int:
        """The next one."""
        self._next[worker] += 1
        return self.world.members[self._next[worker] % len(self.world.members)]


class PerProcess(_PerWorker):
    """Fewest outstanding requests of the own worker process, what most proxies do today."""

    def choose(self, worker: int) -> int:
        """Fewest own ones."""
        return self._least(self._open[worker].__getitem__)


class _Polled(Comparator):
    """Each host polls every machine as the product does, at random phases of its own."""

    def begin(self, world: World) -> None:
        """Plan the polls."""
        super().begin(world)
        scenario, machines = world.scenario, range(len(world.inside))
        nothing = Gauges(0, 0, 0, 0, 0, 0, 0)
        self.said = [[nothing for _ in machines] for _ in range(scenario.hosts)]
        self._said_at = [[0.0 for _ in machines] for _ in range(scenario.hosts)]
        self.tokens_per_s = [[0.0 for _ in machines] for _ in range(scenario.hosts)]
        for host in range(scenario.hosts):
            for machine in machines:
                phase = 0.0 if scenario.together else self._rng.random() * scenario.poll
                world.every(scenario.poll, phase, partial(self._poll, host, machine))

    def _poll(self, host: int, machine: int) -> None:
        said, before = self.world.gauges(machine), self.said[host][machine]
        seconds = self.world.now - self._said_at[host][machine]
        if seconds > 0:
            self.tokens_per_s[host][machine] = (said.generated_tokens - before.generated_tokens) / seconds
        self.said[host][machine], self._said_at[host][machine] = said, self.world.now
        self.polled(host, machine)

    def polled(self, host: int, machine: int) -> None:
        """That host has news of that machine."""

    def kv_usage(self, host: int, machine: int) -> float:
        """As polled, below 1."""
        return min(self.said[host][machine].kv_tokens / self.world.parameters[machine].kv_capacity, 0.999)


class StaleArgmin(_Polled):
    """Fewest requests by the last poll, and nothing else: the naive design."""

    def pick(self, request: int) -> int:
        """The smallest polled count."""
        said = self.said[int(self.world.requests.host[request])]
        return self._least(lambda machine: said[machine].running + said[machine].waiting)


class PowerOfTwoPolled(_Polled):
    """The better one of two at random by the last poll."""

    def pick(self, request: int) -> int:
        """Two different ones, the smaller polled count."""
        said = self.said[int(self.world.requests.host[request])]
        pair = self._rng.sample(self.world.members, 2)
        return self._least(lambda machine: said[machine].running + said[machine].waiting, pair)


class Smg1629(_Polled, _PerWorker):
    """SMG's ``least_load`` of its pull request 1629, one process per worker: own requests plus a barrier on the polled
    KV usage, 1.5 k/(1-k)."""

    def choose(self, worker: int) -> int:
        """Own requests and the barrier."""
        open_here, host = self._open[worker], worker // self.world.scenario.workers

        def score(machine: int) -> float:
            usage = self.kv_usage(host, machine)
            return open_here[machine] + 1.5 * usage / (1.0 - usage)

        return self._least(score)


class Smg1647(_Polled, _PerWorker):
    """SMG's ``least_load`` of its pull request 1647, one process per worker: queued tokens by the last poll (1024
    for a waiting request, as for an engine that tells no tokens) plus those that the process has sent since, over
    the polled rate of tokens (2000 where there is none), plus 0.15 k/(1-k) seconds."""

    def begin(self, world: World) -> None:
        """Nothing is sent yet."""
        super().begin(world)
        self._since = [[0] * len(world.inside) for _ in range(world.scenario.hosts * world.scenario.workers)]

    def polled(self, host: int, machine: int) -> None:
        """A report starts the count of its workers anew."""
        workers = self.world.scenario.workers
        for worker in range(host * workers, (host + 1) * workers):
            self._since[worker][machine] = 0

    def choose(self, worker: int) -> int:
        """The smallest expected wait."""
        since, host = self._since[worker], worker // self.world.scenario.workers

        def score(machine: int) -> float:
            usage = self.kv_usage(host, machine)
            tokens = 1024 * self.said[host][machine].waiting + since[machine]
            return tokens / (self.tokens_per_s[host][machine] or 2000.0) + 0.15 * usage / (1.0 - usage)

        return self._least(score)

    def counted(self, worker: int, machine: int, request: int) -> None:
        """Its prompt's tokens."""
        self._since[worker][machine] += int(self.world.requests.told[request])


class ShortestQueue(Comparator):
    """Omniscient join-the-shortest-queue: who really has the fewest requests, under way ones included."""

    def pick(self, request: int) -> int:
        """The fewest."""
        return self._least(self.world.inside.__getitem__)


class LeastWork(Comparator):
    """Omniscient least work left: it even knows how long every answer will be."""

    def begin(self, world: World) -> None:
        """Nothing is under way."""
        super().begin(world)
        self._under_way: deque[tuple[float, int, float]] = deque()

    def pick(self, request: int) -> int:
        """The least work, under way included."""
        world, coming = self.world, [0.0] * len(self.world.inside)
        while self._under_way and self._under_way[0][0] <= world.now:
            self._under_way.popleft()
        for _, machine, work in self._under_way:
            coming[machine] += work
        left = world.engines.works(world.now)
        machine = self._least(lambda machine: float(left[machine]) + coming[machine])
        self._under_way.append((world.now + NETWORK_S, machine, self._work_of(request, machine)))
        return machine

    def _work_of(self, request: int, machine: int) -> float:
        """As :meth:`bench.virtual.engines.Engines.work` counts it once it is there."""
        parameters = self.world.parameters[machine]
        prompt, answer = int(self.world.requests.prompt[request]), int(self.world.requests.answer[request])
        prefill = prompt * parameters.prefill_token_s * (1.0 + prompt / 2.0 / parameters.prefill_context)
        token = parameters.sequence_s + parameters.step_s / parameters.slots
        decode = answer * (token + parameters.kv_token_s * (prompt + answer / 2.0))
        return (prefill + decode) / parameters.speed


class CentralQueue(Comparator):
    """One queue for all machines: a request is sent when a machine can take it into its batch at once."""

    def begin(self, world: World) -> None:
        """The queue is empty."""
        super().begin(world)
        self._queue: deque[int] = deque()
        self._sent = [0] * len(world.inside)
        self._sent_tokens = [0] * len(world.inside)

    def pick(self, request: int) -> int | None:
        """A machine with room, the emptiest; else it waits."""
        if not self._queue:
            roomy = [machine for machine in self.world.members if self._has_room(machine, request)]
            if roomy:
                machine = self._least(self.world.inside.__getitem__, roomy)
                self._send(machine, request)
                return machine
        self._queue.append(request)
        return None

    def stepped(self, machine: int) -> None:
        """Send what fits now."""
        self._sent[machine] = self._sent_tokens[machine] = 0
        if machine not in self.world.members:
            return
        while self._queue and self._has_room(machine, self._queue[0]):
            request = self._queue.popleft()
            self._send(machine, request)
            self.world.send(request, machine)

    def _send(self, machine: int, request: int) -> None:
        self._sent[machine] += 1
        self._sent_tokens[machine] += int(self.world.requests.prompt[request])

    def _has_room(self, machine: int, request: int) -> bool:
        world, parameters = self.world, self.world.parameters[machine]
        if world.inside[machine] >= parameters.slots:
            return False
        if world.inside[machine] == 0:
            return True
        gauges = world.gauges(machine)
        tokens = gauges.kv_tokens + self._sent_tokens[machine] + int(world.requests.prompt[request])
        return gauges.waiting == 0 and tokens <= parameters.kv_capacity * (1.0 - parameters.watermark)


COMPARATORS: dict[str, Callable[[random.Random], Comparator]] = {
    "round_robin": RoundRobin,
    "random": Random,
    "per_process": PerProcess,
    "stale_argmin": StaleArgmin,
    "power_of_two_polled": PowerOfTwoPolled,
    "smg_1629": Smg1629,
    "smg_1647": Smg1647,
    "shortest_queue": ShortestQueue,
    "least_work": LeastWork,
    "central_queue": CentralQueue,
}
