"""When a table is looked at: a live one now, a copy of one at the moment that it holds."""

from __future__ import annotations

import time
from typing import NamedTuple

from score_table.location import Location


class Moment(NamedTuple):
    """CLOCK_MONOTONIC and CLOCK_BOOTTIME of one moment, in ns."""

    mono_ns: int
    boot_ns: int


def is_copy(place: Location) -> bool:
    """Whether the table is a copy that somebody keeps: beside one that a monitor has written there is a lock file."""
    return not place.lock_path.exists()


def moment(mono_ns: int | None = None) -> Moment:
    """That moment of CLOCK_MONOTONIC; now by default."""
    now, boot = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if mono_ns is None:
        return Moment(now, boot)
    # Of another boot, whose clock was ahead of this one, nothing else is known than that it had not slept.
    return Moment(mono_ns, boot - (now - mono_ns) if mono_ns <= now else mono_ns)
