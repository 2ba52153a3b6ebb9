"""How far a table can be believed at a moment: by its state and its monitor's heartbeat."""

from __future__ import annotations

from typing import NamedTuple

from score_table.layout import State
from score_table.pick.rules import fade_of
from score_table.segment import Segment


class Mode(NamedTuple):
    """How far the table can be believed: ``degraded`` names the mode, "" is none."""

    degraded: str
    fade: int  #: < 0: read ``base``; else ``rest`` shifted by this


def mode_of(segment: Segment, now_ns: int) -> Mode:
    """Whether the monitor is alive at ``now_ns`` (CLOCK_MONOTONIC), by its heartbeat; else how old its last word is."""
    silence = now_ns - segment.read("heartbeat")
    limit = segment.max_heartbeat_age_ns
    if segment.state == State.READY and -limit <= silence <= limit:
        return Mode("", -1)
    if segment.state == State.INIT:
        return Mode("round_robin", 0)
    return Mode("outstanding", fade_of(silence))
