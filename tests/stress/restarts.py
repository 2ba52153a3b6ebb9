"""Restart storm: monitors that are killed, stopped and started again, on the same table and on others.

A monitor that comes back adopts the table, or replaces it: with more slots, more lanes, other fixed options, or
because somebody removed it; one with too few lanes replaces it by itself. The workers of the kill storm go on with their requests open. After each change the
table has to say exactly what they have open, and nobody may keep anything of a former table.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from monitor.config import MonitorConfig
from score_table.errors import TableError
from score_table.location import Location
from score_table.reader import TableReader
from score_table.segment import Segment
from tests.stress.command_line import StormError, run_on_command_line
from tests.stress.storm import LANES, WORKERS, Storm

_CHANGES = ("adopt", "slots", "lanes", "options", "removed", "killed young", "few lanes")
_FEW_LANES = WORKERS - 3
_MOST_SLOTS, _MOST_LANES = 1024, 64


@dataclass
class Restarts(Storm):
    """As :class:`Storm`, with another ``run``."""

    options: dict[str, Any] = field(default_factory=lambda: {"slots": 16, "lanes": LANES})
    changes: Counter[str] = field(default_factory=Counter)
    segments: set[int] = field(default_factory=set)

    def config(self) -> MonitorConfig:
        return self.base_config(**self.options)

    def run(self, rounds: int, monitor_share: float = 1.0) -> None:
        """Restart the monitor ``rounds`` times; ``StormError`` at the first wrong figure."""
        self._begin()
        own = self._holdings(os.getpid())
        theirs = [self._holdings(pid) for pid in self.workers]
        for _ in range(rounds):
            time.sleep(self.rng.random() * 0.02)
            self._restart(self.rng.choice(_CHANGES))
            with self._survivors_held_still(without=None):
                self._compare(time.monotonic(), lanes=WORKERS)
            # Workers drop the former table at their next picks.
            self._wait(
                lambda: [self._holdings(pid) for pid in self.workers] == theirs,
                5.0,
                "workers that hold nothing of a former table",
            )
            if self._holdings(os.getpid()) != own:
                raise StormError(f"{self.summary()}\n the parent holds something of a table")

    def summary(self) -> str:
        """What was done, in one line."""
        done = ", ".join(f"{name} {count}" for name, count in sorted(self.changes.items()))
        return (
            f"restarts, seed {self.seed}: {done}; {len(self.segments)} tables; "
            f"slowest recovery {self.slowest_s:.3f} s"
        )

    def _restart(self, change: str) -> None:
        self.changes[change] += 1
        former = self._segment()
        self._end_monitor(self.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM)))
        replaced = self._prepare(change)
        self.monitor = self._fork(self._be_monitor)
        if change == "killed young":
            time.sleep(self.rng.random() * 0.1)
            self._end_monitor(signal.SIGKILL)
            self.monitor = self._fork(self._be_monitor)
        self._wait(self._is_ready, 20.0, f"the next monitor ({change})")
        if change == "few lanes":
            self._wait(self._has_lanes_for_all, 20.0, "a table with a lane for each worker")
            self.options["lanes"] = WORKERS  # as the monitor's log advises
        if (self._segment() != former) != replaced:
            raise StormError(f"{self.summary()}\n {change}: table {'not ' if replaced else ''}replaced")
        self.segments.add(self._segment())

    def _prepare(self, change: str) -> bool:
        """Set the options of the next monitor; whether it has to make another table."""
        if change == "few lanes":
            Location.parse(self.table).path.unlink()
            self.options = {"slots": 16, "lanes": _FEW_LANES}
            return True
        if (
            change == "removed"
            or self.options["slots"] >= _MOST_SLOTS
            or self.options["lanes"] >= _MOST_LANES
        ):
            Location.parse(self.table).path.unlink()
            self.options = {"slots": 16, "lanes": LANES}
            return True
        if change in ("slots", "killed young"):
            self.options["slots"] += 16 * self.rng.randint(1, 4)
        elif change == "lanes":
            self.options["lanes"] += self.rng.randint(1, 4)
        elif change == "options":
            self.options["max_heartbeat_age"] = 3.0 - self.options.get("max_heartbeat_age", 1.0)
        return change != "adopt"

    def _has_lanes_for_all(self) -> bool:
        try:
            with TableReader.open(self.table) as reader:
                return reader.snapshot().lanes_in_use == WORKERS
        except TableError:
            return False

    def _end_monitor(self, number: int) -> None:
        os.kill(self.monitor, number)
        os.waitpid(self.monitor, 0)
        self.killed_monitors += 1

    def _segment(self) -> int:
        segment = Segment.open(Location.parse(self.table), writable=False)
        try:
            return segment.epoch
        finally:
            segment.close()

    def _holdings(self, pid: int) -> tuple[int, int, int]:
        """Of a process: its descriptors, its mappings of the table, and those that are of no present table."""
        path = Location.parse(self.table).path
        maps = [line for line in Path(f"/proc/{pid}/maps").read_text().splitlines() if str(path) in line]
        present = os.stat(path).st_ino if maps else 0
        strange = sum(int(line.split()[4]) != present for line in maps)
        return len(os.listdir(f"/proc/{pid}/fd")), len(maps), strange


if __name__ == "__main__":
    sys.exit(run_on_command_line(Restarts, __doc__, rounds=300))
