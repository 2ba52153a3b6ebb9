"""The pick in C: the column sums and the choice in one call. Absent where it could not be built."""

from __future__ import annotations

import os

from score_table import _native
from score_table.layout import (
    DISPATCH_LIMIT,
    HOT_LINE,
    LANE_BLOCK,
    MARK_BAND,
    MARK_FLOOR,
    NATURAL_LEVELS,
    PROMPT_TOKENS_LIMIT,
    TIE_WINDOW,
    Mark,
    Natural,
    Reason,
    State,
)
from score_table.segment import Segment

_LAYOUT = {
    **{name: HOT_LINE[name].offset for name in ("heartbeat", "state", "membership")},
    **{name: LANE_BLOCK[name].offset // 8 for name in ("token", "picks", "count_errors", "saturations")},
    **{kind.name: kind.value for kind in Natural},
    "NATURAL_LEVELS": NATURAL_LEVELS,
    "REASONS": len(Reason),
    "PROMPT_TOKENS_LIMIT": PROMPT_TOKENS_LIMIT,
    "DISPATCH_LIMIT": DISPATCH_LIMIT,
    "READY": int(State.READY),
}
if getattr(_native, "LAYOUT", None) != _LAYOUT:
    raise ImportError("it was built for another layout of the table: install loadboard again")


class NativeCore:
    """See :class:`score_table.pick.rules.PickCore`. The methods are those of C, bound once."""

    name = "native"

    def __init__(self, segment: Segment) -> None:
        geometry = segment.geometry
        fd = segment.open_again(writable=False)
        try:
            self.core = _native.Core(
                fd,
                geometry.total_size,
                geometry.matrix_offset,
                geometry.matrix_stride,
                HOT_LINE["n"].offset,
                HOT_LINE["lanes_hi"].offset,
                geometry.slots,
                geometry.lanes,
                TIE_WINDOW,
                MARK_FLOOR,
                MARK_BAND,
                int(Mark.UNUSED),
            )
        finally:
            os.close(fd)
        self.max_heartbeat_age_ns = segment.max_heartbeat_age_ns
        self.prepare = self.core.prepare
        self.choose = self.core.choose
        self.live = self.core.live
