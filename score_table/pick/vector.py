"""The pick with numpy: column sums of the whole matrix at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from score_table.layout import MARK_BAND, MARK_FLOOR, TIE_WINDOW, Mark
from score_table.pick.rules import NO_SLOT
from score_table.segment import Segment


class NumpyCore:
    """See :class:`score_table.pick.rules.PickCore`."""

    name = "numpy"

    def __init__(self, segment: Segment) -> None:
        geometry = segment.geometry
        self._segment = segment
        self._matrix: NDArray[np.int32] = np.ndarray(
            (geometry.rows, geometry.slots),
            dtype=np.int32,
            buffer=segment.data,
            offset=geometry.matrix_offset,
            strides=(geometry.matrix_stride, 4),
        )

    def prepare(self, slots: Sequence[int]) -> NDArray[np.intp]:
        return np.unique(np.asarray(slots, dtype=np.intp))

    def choose(
        self, candidates: NDArray[np.intp] | None, cursor: int, fade: int, extra: Sequence[int] | None
    ) -> int:
        live, head = self._sums(candidates, fade, extra)
        if not len(live):
            return NO_SLOT
        least = live.min()
        if least < MARK_FLOOR:
            tied = np.flatnonzero(live <= least + TIE_WINDOW)
            return self._slot(tied, candidates, cursor)
        band = (head - MARK_FLOOR) // MARK_BAND
        band[head < MARK_FLOOR] = -1
        mildest = band.min()
        if mildest >= Mark.UNUSED - 1:
            return NO_SLOT
        of_band = np.flatnonzero(band == mildest)
        limit = live[of_band].min() + TIE_WINDOW
        return ~self._slot(of_band[live[of_band] <= limit], candidates, cursor)

    def live(self, slots: Sequence[int], fade: int, extra: Sequence[int] | None) -> list[int]:
        result: list[int] = self._sums(np.asarray(slots, dtype=np.intp), fade, extra)[0].tolist()
        return result

    def _sums(
        self, candidates: NDArray[np.intp] | None, fade: int, extra: Sequence[int] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """Live values and head cells of the candidates, both private copies."""
        segment, matrix = self._segment, self._matrix
        head_row, lanes = (0 if fade < 0 else 1), slice(2, 2 + segment.lanes_hi)
        if candidates is None:
            n = segment.n
            head = matrix[head_row, :n].copy()
            live = np.add.reduce(matrix[lanes, :n], axis=0, dtype=np.int32)
        else:
            head = matrix[head_row].take(candidates)
            live = np.add.reduce(matrix[lanes].take(candidates, axis=1), axis=0, dtype=np.int32)
        if fade > 0:
            np.right_shift(head, fade, out=head, where=head < MARK_FLOOR)
        live += head
        if extra is not None:
            private = np.asarray(extra, dtype=np.int32)
            live += private[: len(live)] if candidates is None else private.take(candidates)
        return live, head

    @staticmethod
    def _slot(tied: NDArray[np.intp], candidates: NDArray[np.intp] | None, cursor: int) -> int:
        slots = tied if candidates is None else candidates[tied]
        at = int(slots.searchsorted(cursor))
        return int(slots[at if at < len(slots) else 0])
