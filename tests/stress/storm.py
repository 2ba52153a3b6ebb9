"""Kill storm: workers and monitors killed at random moments with requests open, and the counts looked at each time.

Everything is forked from one warm parent that has one thread. Workers dispatch and release at random and
keep the truth (what they really have open) in anonymous shared memory. After each kill the survivors are held
still, and the table has to say exactly their truth within a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from monitor import daemon
from monitor.config import InstanceConfig, MonitorConfig
from proxy_adapter import Dispatch, build_instance_strategy
from score_table.layout import LANE_BLOCK, Natural
from score_table.location import Location
from score_table.reader import TableReader
from score_table.segment import Segment
from tests.stress.command_line import StormError, run_on_command_line
from tests.unit.proxy_adapter.instances import Plain, plain

INSTANCES = 8
WORKERS = 6
LANES = 16
_MOST_OPEN = 60
_DEADLINE_S = 1.0

_RUN, _HOLD = 0, 1
_PR_SET_PDEATHSIG = 1


class Shared:
    """The truth of the workers, in memory that all forks share: one row per worker, one more for flags."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, (WORKERS + 1) * (INSTANCES + 4) * 8)
        self._words: NDArray[np.int64] = np.frombuffer(self._map, dtype=np.int64).reshape(
            WORKERS + 1, INSTANCES + 4
        )
        self.open = self._words[:WORKERS, :INSTANCES]
        self.held_still = self._words[:WORKERS, INSTANCES]
        self.dispatches = self._words[:WORKERS, INSTANCES + 1]
        self.phase = self._words[WORKERS]


@dataclass
class Storm:
    """One storm on its own table. ``seed`` makes the choices and waits repeatable (not the scheduling)."""

    table: str
    seed: int
    rng: random.Random = field(init=False)
    shared: Shared = field(default_factory=Shared)
    workers: list[int] = field(default_factory=list)
    monitor: int = 0
    killed_workers: int = 0
    killed_monitors: int = 0
    slowest_s: float = 0.0
    killed_open: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def run(self, rounds: int, monitor_share: float = 0.1) -> None:
        """Kill ``rounds`` times; ``StormError`` at the first wrong figure."""
        self._begin()
        descriptors = len(os.listdir("/proc/self/fd"))
        for _ in range(rounds):
            time.sleep(self.rng.random() * 0.02)
            if self.rng.random() < monitor_share:
                self._kill_monitor()
            else:
                self._kill_worker(self.rng.randrange(WORKERS))
            if len(os.listdir("/proc/self/fd")) != descriptors:
                raise StormError("the parent leaks descriptors")

    def close(self) -> None:
        """End everything that is left."""
        for pid in (*self.workers, self.monitor):
            if pid:
                _kill(pid)
        self.workers, self.monitor = [], 0

    def summary(self) -> str:
        """What was done, in one line."""
        return (
            f"seed {self.seed}: {self.killed_workers} workers killed with {self.killed_open} requests open, "
            f"{self.killed_monitors} monitors killed; slowest recovery {self.slowest_s:.3f} s"
        )

    def _begin(self) -> None:
        self.monitor = self._fork(self._be_monitor)
        self._wait(self._is_ready, 30.0, "the first monitor")
        self.workers = [self._fork_worker(index) for index in range(WORKERS)]
        self._wait(lambda: bool((self.shared.dispatches > 0).all()), 30.0, "the first workers")

    # -- the parent ---------------------------------------------------------------------------------------

    def _kill_worker(self, index: int) -> None:
        _kill(self.workers[index])
        died = time.monotonic()
        self.killed_workers += 1
        self.killed_open += int(self.shared.open[index].sum())
        self.shared.open[index] = 0
        self.shared.dispatches[index] = 0
        with self._survivors_held_still(without=index):
            self._compare(died, lanes=WORKERS - 1)
        self.workers[index] = self._fork_worker(index)
        self._wait(lambda: self.shared.dispatches[index] > 0, 10.0, "a new worker")

    def _kill_monitor(self) -> None:
        _kill(self.monitor)
        self.killed_monitors += 1
        self.monitor = self._fork(self._be_monitor)
        self._wait(self._is_ready, 10.0, "the next monitor")
        with self._survivors_held_still(without=None):
            self._compare(time.monotonic(), lanes=WORKERS)

    def _compare(self, since: float, lanes: int) -> None:
        truth = self.shared.open.sum(axis=0)
        while True:
            counted, in_use, errors, lowest = self._table_says()
            if (counted == truth).all() and in_use == lanes:
                break
            if time.monotonic() - since > _DEADLINE_S:
                raise StormError(
                    f"{self.summary()}\n after {_DEADLINE_S} s the table says {counted.tolist()} in {in_use} lanes, "
                    f"true is {truth.tolist()} in {lanes}"
                )
            time.sleep(0.002)
        self.slowest_s = max(self.slowest_s, time.monotonic() - since)
        if errors or lowest < 0:
            raise StormError(f"{self.summary()}\n count errors {errors}, lowest cell {lowest}")
        name = Location.parse(self.table).path.name
        left = {path.name for path in Path("/dev/shm").glob(f"{name}*")}
        if left != {name, f"{name}.lock"}:
            raise StormError(f"{self.summary()}\n left behind: {sorted(left)}")

    def _table_says(self) -> tuple[NDArray[np.int64], int, int, int]:
        """Outstanding per instance, lanes in use, count errors, lowest lane cell."""
        segment = Segment.open(Location.parse(self.table), writable=False)
        try:
            counted = np.zeros(INSTANCES, dtype=np.int64)
            in_use = errors = lowest = 0
            for lane in range(segment.lanes_hi):
                block = segment.lane_block(lane)
                in_use += block[0] != 0
                errors += block[LANE_BLOCK["count_errors"].offset // 8]
                counted += np.array(segment.natural(lane, Natural.OUTSTANDING)[:INSTANCES])
                lowest = min(lowest, *segment.row(2 + lane)[:INSTANCES])
                del block
            return counted, in_use, errors, lowest
        finally:
            segment.close()

    def _is_ready(self) -> bool:
        try:
            with TableReader.open(self.table) as reader:
                now = reader.snapshot()
        except Exception:
            return False
        return now.monitor_pid == self.monitor and now.degraded is None

    @contextlib.contextmanager
    def _survivors_held_still(self, without: int | None) -> Iterator[None]:
        self.shared.phase[0] = _HOLD
        others = [index for index in range(WORKERS) if index != without]
        self._wait(lambda: bool(self.shared.held_still[others].all()), 10.0, "workers that hold still")
        try:
            yield
        finally:
            self.shared.phase[0] = _RUN

    def _wait(self, condition: Callable[[], bool], timeout_s: float, what: str) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise StormError(f"{self.summary()}\n waited {timeout_s} s in vain for {what}")
            time.sleep(0.001)

    def _fork(self, work: Callable[[], None]) -> int:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                die_with_parent()
                with open(os.devnull, "w") as nowhere:
                    os.dup2(nowhere.fileno(), 2)
                work()
                status = 0
            finally:
                os._exit(status)
        return pid

    def _fork_worker(self, index: int) -> int:
        self.shared.held_still[index] = 0
        seed = self.rng.randrange(2**32)
        return self._fork(lambda: self._be_worker(index, random.Random(seed)))

    # -- the children -------------------------------------------------------------------------------------

    def config(self) -> MonitorConfig:
        """What the next monitor is started with."""
        return self.base_config()

    def base_config(self, **options: Any) -> MonitorConfig:
        """Eight instances that are not there, and ``options``."""
        instances = tuple(
            # Nothing listens on port 1: every instance is unreachable, so the last resort picks among all.
            InstanceConfig(id=f"i{n}", url=f"http://127.0.0.1:1/e{n}")
            for n in range(INSTANCES)
        )
        options = {"lanes": LANES, "slots": 16, **options}
        return MonitorConfig(table=self.table, log_level="error", instances=instances, **options)

    def _be_monitor(self) -> None:
        config = self.config()
        daemon.main(config, lambda: config)

    def _be_worker(self, index: int, rng: random.Random) -> None:
        strategy = build_instance_strategy("least_load", table=self.table)
        instances: list[Plain] = plain(INSTANCES)
        mine = self.shared.open[index]
        open_guards: list[Dispatch[Plain]] = []
        position = {instance.instance_id: at for at, instance in enumerate(instances)}

        def change() -> None:
            if open_guards and (len(open_guards) >= _MOST_OPEN or rng.random() < 0.45):
                guard = open_guards.pop(rng.randrange(len(open_guards)))
                if rng.random() < 0.3:
                    guard.first_token()
                guard.release()
                mine[position[guard.instance.instance_id]] -= 1
            else:
                guard = strategy.dispatch(instances, prompt_tokens=rng.randrange(4000))
                open_guards.append(guard)
                mine[position[guard.instance.instance_id]] += 1
            self.shared.dispatches[index] += 1

        signal.signal(signal.SIGTERM, _leave)
        while True:
            if self.shared.phase[0] == _HOLD:
                self.shared.held_still[index] = 1
                while self.shared.phase[0] == _HOLD:
                    time.sleep(0.001)
                self.shared.held_still[index] = 0
            change()
            if rng.random() < 0.1:
                time.sleep(0.0005)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(0)


def die_with_parent() -> None:
    """In a forked child: nothing of a storm outlives it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


if __name__ == "__main__":
    sys.exit(run_on_command_line(Storm, __doc__, rounds=10_000))
