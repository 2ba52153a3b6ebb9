"""The two clocks of the monitor, as an argument so that tests and the simulator bring their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Nanosecond clocks that never jump with the wall clock."""

    def mono_ns(self) -> int:
        """CLOCK_MONOTONIC in ns: schedules, deadlines, the heartbeat. Stands still while the host sleeps."""

    def boot_ns(self) -> int:
        """CLOCK_BOOTTIME in ns: when a sample was taken. Runs on while the host sleeps, so samples age."""


class SystemClock:
    """The clocks of the kernel."""

    def mono_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)

    def boot_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
