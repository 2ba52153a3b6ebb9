"""Other processes at work on a table while it is measured, stopped (SIGSTOP) while they are not wanted.

As a program this is one of them: ``python -m bench.neighbours ROLE TABLE PROGRESS``. Each keeps a steady rate,
and says in a file how many steps it has done.
"""

from __future__ import annotations

import argparse
import mmap
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.children import child, die_with_parent
from bench.tables import Instance, Load, open_writer, random_rows
from proxy_adapter import LeastLoadStrategy
from score_table.lane import Lane
from score_table.location import Location
from score_table.pick import core_class
from score_table.segment import Segment

#: Steps per second by role: ticks; picks; dispatches, each with its release.
RATES = {"writer": 1_000, "reader": 20_000, "counter": 100_000}

#: A neighbour that was stopped is back at its rate after this.
_RESUME_S = 0.003
_REST_S = 0.0001
#: The largest burst, as time at the rate.
_BURST_S = 0.01


class Neighbours:
    """Processes of ``roles`` on the table ``name``. They are stopped whenever :meth:`working` is not entered."""

    def __init__(self, name: str, roles: Sequence[str], cores: Sequence[int]) -> None:
        self.name = name
        self.roles = tuple(roles)
        self._cores = cores
        self._processes: list[subprocess.Popen[bytes]] = []
        self._progress: list[mmap.mmap] = []
        self._done = [0] * len(roles)
        self._time = 0.0

    def __enter__(self) -> Neighbours:
        with ExitStack() as stack:
            place = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadboard-bench-")))
            for index, role in enumerate(self.roles):
                path = place / f"{role}-{index}"
                path.write_bytes(bytes(8))
                with path.open("r+b") as file:
                    self._progress.append(mmap.mmap(file.fileno(), 8))
                started = child(
                    "bench.neighbours",
                    [role, self.name, str(path)],
                    cores=self._cores,
                    ready=lambda: self._counts()[-1] > 0,
                )
                process = stack.enter_context(started)
                self._processes.append(process)
                process.send_signal(signal.SIGSTOP)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @contextmanager
    def working(self) -> Iterator[None]:
        """They run, at their rates already."""
        for process in self._processes:
            process.send_signal(signal.SIGCONT)
        time.sleep(_RESUME_S)
        start, before = time.monotonic(), self._counts()
        try:
            yield
        finally:
            self._time += time.monotonic() - start
            self._done = [
                done + now - then for done, now, then in zip(self._done, self._counts(), before, strict=True)
            ]
            for process in self._processes:
                process.send_signal(signal.SIGSTOP)

    def rates(self) -> dict[str, float]:
        """Steps per second by role while they worked, of the slowest of each role."""
        slowest: dict[str, float] = {}
        for role, done in zip(self.roles, self._done, strict=True):
            rate = done / self._time if self._time else 0.0
            slowest[role] = min(rate, slowest.get(role, rate))
        return slowest

    def _counts(self) -> list[int]:
        return [int.from_bytes(progress[:8], sys.byteorder) for progress in self._progress]


def _writer(name: str) -> Callable[[], object]:
    segment = Segment.open(Location.parse(name), writable=False)
    rng = random.Random(2)
    writer = open_writer(name, segment.n, segment.geometry.lanes)
    ticks = [random_rows(writer.n, rng) for _ in range(16)]
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        writer.publish(*ticks[done % len(ticks)], time.monotonic_ns())

    return step


def _reader(name: str) -> Callable[[], object]:
    core = core_class()(Segment.open(Location.parse(name), writable=False))
    return lambda: core.choose(None, 0, -1, None)


def _counter(name: str) -> Callable[[], object]:
    lane = Lane(name)
    lane.attach()
    if lane.attached is None or lane.attached.claim.private:
        raise SystemExit(f"no lane of {name} is free: {lane.problem}")
    n = lane.attached.segment.n
    instances = [Instance(f"i{slot}", "127.0.0.1", 9000 + slot, Load(0, 0.0)) for slot in range(n)]
    strategy = LeastLoadStrategy(lane=lane)
    done = 0

    def step() -> None:
        nonlocal done
        done += 1
        strategy.dispatch(instances, prompt_tokens=100).release()
        if done % 2000 == 0:
            lane.housekeep()

    return step


_ROLES = {"writer": _writer, "reader": _reader, "counter": _counter}


class _Pace:
    """Steps done since ``start``. A process that comes late catches up, one that was stopped begins anew."""

    def __init__(self) -> None:
        self.begin()
        signal.signal(signal.SIGCONT, self.begin)

    def begin(self, *_: object) -> None:
        """From now on."""
        self.start, self.done = time.monotonic(), 0


def _keep_rate(step: Callable[[], object], rate: int, progress: mmap.mmap) -> None:
    """Never returns. Steps come in small bursts, as often as the system's timers allow."""
    pace, total, most = _Pace(), 0, int(rate * _BURST_S)
    while True:
        due = min(int((time.monotonic() - pace.start) * rate) - pace.done, most)
        for _ in range(due):
            step()
        pace.done += due
        total += due
        progress[:8] = total.to_bytes(8, sys.byteorder)
        time.sleep(_REST_S)


def main() -> None:
    """Work until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("role", choices=sorted(_ROLES))
    parser.add_argument("table")
    parser.add_argument("progress", type=Path)
    args = parser.parse_args()
    die_with_parent()
    with args.progress.open("r+b") as file:
        progress = mmap.mmap(file.fileno(), 8)
    _keep_rate(_ROLES[args.role](args.table), RATES[args.role], progress)


if __name__ == "__main__":
    main()
