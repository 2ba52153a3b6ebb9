"""Fork storm: trees of processes that fork with requests open, use what they inherited, and end in every way.

Each process keeps the truth (what it really has open) in anonymous shared memory. Now and then one is killed, all
others are held still and the table is compared; when a tree is gone nothing may be outstanding and every lane
has to be free.
"""

from __future__ import annotations

import atexit
import contextlib
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from monitor.config import MonitorConfig
from proxy_adapter import Dispatch, Strategy, build_instance_strategy
from tests.stress.command_line import StormError, run_on_command_line
from tests.stress.storm import INSTANCES, Storm
from tests.unit.proxy_adapter.instances import Plain, plain

_PROCESSES = 15
_RUN, _HOLD = 0, 1
_MOST_OPEN = 30
_LONGEST_HOLD_S = 60.0
_ENDS = ("close", "atexit", "_exit", "kill")


class _Shared:
    """One row per process, one more for the phase."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, (_PROCESSES + 1) * (INSTANCES + 5) * 8)
        self._words: NDArray[np.int64] = np.frombuffer(self._map, dtype=np.int64).reshape(
            _PROCESSES + 1, INSTANCES + 5
        )
        self.open = self._words[:_PROCESSES, :INSTANCES]
        self.held_still = self._words[:_PROCESSES, INSTANCES]
        self.dispatches = self._words[:_PROCESSES, INSTANCES + 1]
        self.reserved = self._words[:_PROCESSES, INSTANCES + 2]  #: 1 from before the fork to the end
        self.pid = self._words[:_PROCESSES, INSTANCES + 3]
        self.forking = self._words[
            :_PROCESSES, INSTANCES + 4
        ]  #: 1 + the row that a child is just forked into
        self.phase = self._words[_PROCESSES]

    def clear(self, row: int) -> None:
        """The process of ``row`` ends, or has ended."""
        self._words[row] = 0


class _Forked(BaseException):
    """Takes a child out of the block in which it was forked."""


@dataclass
class Forks(Storm):
    """As :class:`Storm`; a round is a tree."""

    rows: _Shared = field(default_factory=_Shared)
    forked: int = 0

    def config(self) -> MonitorConfig:
        return self.base_config(lanes=_PROCESSES + 5)

    def run(self, rounds: int, monitor_share: float = 0.0) -> None:
        """Grow ``rounds`` trees; ``StormError`` at the first wrong figure."""
        self.shared = self.rows  # type: ignore[assignment]
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # whoever ends is gone at once, also for its children
        self.monitor = self._fork(self._be_monitor)
        self._wait(self._is_ready, 30.0, "the monitor")
        for _ in range(rounds):
            seed = self.rng.randrange(2**32)
            self.rows.reserved[0] = 1
            self.workers = [self._fork(lambda seed=seed: self._be_root(seed))]  # type: ignore[misc]
            for _ in range(3):
                time.sleep(self.rng.random() * 0.1)
                self._kill_one()
            self._wait(lambda: not self.rows.reserved.any(), 60.0, "the end of a tree")
            self._compare(time.monotonic(), lanes=0)
            self.forked += int(self.rows.phase[1])
            self.rows.phase[1] = 0

    def close(self) -> None:
        """End everything that is left."""
        for pid in self.rows.pid.tolist():
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        super().close()

    def summary(self) -> str:
        """What was done, in one line."""
        return (
            f"forks, seed {self.seed}: {self.forked} forks, {self.killed_workers} killed with {self.killed_open} "
            f"requests open; slowest recovery {self.slowest_s:.3f} s"
        )

    def _kill_one(self) -> None:
        rows = self.rows
        living = np.flatnonzero(rows.pid)
        if not len(living):
            return
        row = int(self.rng.choice(living.tolist()))
        pid = int(rows.pid[row])
        with contextlib.suppress(ProcessLookupError):
            if pid:
                os.kill(pid, signal.SIGKILL)
        self._wait(lambda: not Path(f"/proc/{pid}").exists(), 10.0, "the end of a killed process")
        if not pid or rows.pid[row] != pid:
            return  # it ended by itself
        self.killed_workers += 1
        self.killed_open += int(rows.open[row].sum())
        child = int(rows.forking[row]) - 1
        rows.clear(row)
        if child >= 0:
            self._find_out_whether_it_is_there(child)
        with self._all_held_still():
            self._compare(time.monotonic(), lanes=int((rows.dispatches > 0).sum()))

    def _find_out_whether_it_is_there(self, row: int) -> None:
        """A child whose parent was killed around the fork may or may not exist."""
        try:
            self._wait(lambda: bool(self.rows.pid[row]), 2.0, "a child")
        except StormError:
            self.rows.clear(row)

    @contextlib.contextmanager
    def _all_held_still(self) -> Iterator[None]:
        rows = self.rows
        rows.phase[0] = _HOLD
        try:
            self._wait(self._is_still, 20.0, "all to hold still")
            yield
        finally:
            rows.phase[0] = _RUN

    def _is_still(self) -> bool:
        return bool((self.rows.held_still[self.rows.reserved > 0] > 0).all())

    # -- the processes of a tree --------------------------------------------------------------------------

    def _be_root(self, seed: int) -> None:
        strategy = build_instance_strategy("least_load", table=self.table)
        self._be_node(strategy, 0, _PROCESSES, [], random.Random(seed))

    def _be_node(
        self,
        strategy: Strategy,
        row: int,
        end: int,
        inherited: list[Dispatch[Plain]],
        rng: random.Random,
    ) -> None:
        """A process with the rows from ``row`` to ``end`` for itself and its descendants; never returns."""
        rows, instances = self.rows, plain(INSTANCES)
        rows.pid[row] = os.getpid()
        half = (row + 1 + end) // 2
        places = [place for place in ((row + 1, half), (half, end)) if place[0] < place[1]]
        opened: list[Dispatch[Plain]] = []

        def count(guard: Dispatch[Plain], by: int) -> None:
            rows.open[row, int(guard.instance.instance_id[1:])] += by

        def fork(low: int, high: int) -> None:
            rows.forking[row] = 1 + low
            rows.reserved[low] = 1
            child_seed = rng.randrange(2**32)
            try:
                with strategy.dispatch(instances) as guard:
                    count(guard, 1)
                    rows.dispatches[row] += 1
                    if os.fork() == 0:
                        raise _Forked
                    rows.forking[row] = 0
                    rows.phase[1] += 1
                count(guard, -1)
            except _Forked:
                self._be_node(strategy, low, high, [*inherited, *opened], random.Random(child_seed))

        for _ in range(rng.randrange(50, 400)):
            if rows.phase[0] == _HOLD:
                rows.held_still[row] = 1
                given_up = time.monotonic() + _LONGEST_HOLD_S
                while rows.phase[0] == _HOLD:
                    time.sleep(0.001)
                    if time.monotonic() > given_up:
                        os._exit(1)  # nobody is there who would end it
                rows.held_still[row] = 0
            chance = rng.random()
            if chance < 0.05:
                free = [place for place in places if not rows.reserved[place[0] : place[1]].any()]
                if free:
                    fork(*rng.choice(free))
            elif chance < 0.15 and inherited:
                guard = inherited.pop()
                rng.choice((guard.release, guard.first_token, guard.fail))()
            elif opened and (len(opened) >= _MOST_OPEN or chance < 0.5):
                guard = opened.pop(rng.randrange(len(opened)))
                guard.release()
                count(guard, -1)
            else:
                guard = strategy.dispatch(instances, prompt_tokens=rng.randrange(4000))
                opened.append(guard)
                count(guard, 1)
                rows.dispatches[row] += 1
            if rng.random() < 0.2:
                time.sleep(0.0005)
        _end(rng.choice(_ENDS), strategy, lambda: rows.clear(row))


def _end(way: str, strategy: Strategy, clear: Callable[[], None]) -> None:
    clear()
    if way == "close":
        strategy.close()
    elif way == "atexit":
        atexit._run_exitfuncs()
    elif way == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(run_on_command_line(Forks, __doc__, rounds=200))
