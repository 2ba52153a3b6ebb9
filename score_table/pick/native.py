"""The pick in C: the column sums and the choice in one call. Absent where it could not be built."""

from __future__ import annotations

import os

from score_table import _native
from score_table.layout import HOT_LINE, MARK_BAND, MARK_FLOOR, TIE_WINDOW, Mark
from score_table.segment import Segment


class NativeCore:
    """See :class:`score_table.pick.rules.PickCore`. The methods are those of C, bound once."""

    name = "native"

    def __init__(self, segment: Segment) -> None:
        geometry = segment.geometry
        fd = segment.open_again()
        try:
            core = _native.Core(
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
        self.prepare = core.prepare
        self.choose = core.choose
        self.live = core.live
