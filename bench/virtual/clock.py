"""Time that stands still until somebody moves it."""

from __future__ import annotations

#: CLOCK_MONOTONIC at the beginning of a run. Not 0: to the product that is "never".
START_NS = 1_000_000_000_000
#: CLOCK_BOOTTIME is ahead of it by what the host slept.
BOOT_AHEAD_NS = 7_000_000_000_000


class VirtualClock:
    """A :class:`monitor.clock.Clock` in a simulation's hand."""

    def __init__(self) -> None:
        self.seconds = 0.0  #: since the beginning of the run

    def mono_ns(self) -> int:
        """CLOCK_MONOTONIC."""
        return START_NS + int(self.seconds * 1e9)

    def boot_ns(self) -> int:
        """CLOCK_BOOTTIME."""
        return self.mono_ns() + BOOT_AHEAD_NS
