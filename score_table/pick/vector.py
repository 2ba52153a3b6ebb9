"""The pick with numpy. What it costs is the number of numpy calls, so they are few and cheap ones.

A product with a row of weights (1 for the head in use and for the lanes, 0 for the other head) gives the live
values in one call. Of few values Python finds the least and its ties faster than numpy; of many, ``argmin``
is faster than ``min``, and a byte search in the mask of the ties finds the first one from the cursor on.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from score_table.layout import HOT_LINE, MARK_BAND, MARK_FLOOR, TIE_WINDOW, Mark
from score_table.pick.rules import NO_SLOT
from score_table.segment import Segment

#: Up to so many columns the product, which goes down each column on its own, beats sums of whole rows.
_FEW_COLUMNS = 128
#: Up to so many values Python beats numpy.
_FEW_VALUES = 32
_N = HOT_LINE["n"].offset // 4
_LANES_HI = HOT_LINE["lanes_hi"].offset // 4


class Candidates(NamedTuple):
    """Different slots in rising order, for numpy and for Python."""

    array: NDArray[np.intp]
    slots: list[int]


class _View(NamedTuple):
    """What is in use of the matrix while the header says ``n`` and ``lanes_hi``. Never changed, only replaced."""

    n: int
    lanes_hi: int
    rows: NDArray[np.int32]  #: base, rest and lanes in full length, padding included: a contiguous block
    used: NDArray[np.int32]  #: of these rows the slots in use
    base_weights: NDArray[np.int32]
    rest_weights: NDArray[np.int32]


class NumpyCore:
    """See :class:`score_table.pick.rules.PickCore`."""

    name = "numpy"

    def __init__(self, segment: Segment) -> None:
        geometry = segment.geometry
        self._slots = geometry.slots
        self._words = segment.unsigned32
        self._matrix: NDArray[np.int32] = np.ndarray(
            (geometry.rows, geometry.matrix_stride // 4),
            dtype=np.int32,
            buffer=segment.data,
            offset=geometry.matrix_offset,
        )
        self._view = self._view_of(0, 0)

    def prepare(self, slots: Sequence[int]) -> Candidates:
        array = np.unique(np.asarray(slots, dtype=np.intp))
        return Candidates(array, array.tolist())

    def choose(
        self, candidates: Candidates | None, cursor: int, fade: int, extra: Sequence[int] | None
    ) -> int:
        view = self._current_view()
        if candidates is None:
            cells = view.used
            start = cursor if cursor > 0 else 0
        else:
            cells = view.rows.take(candidates.array, axis=1)
            start = bisect_left(candidates.slots, cursor)
        live = _sums(view, cells, fade)
        if extra is not None:
            private = np.asarray(extra, dtype=np.int32)
            live += private[: live.size] if candidates is None else private.take(candidates.array)
        if not live.size:
            return NO_SLOT
        at = _best(live, start)
        if at >= 0:
            return at if candidates is None else candidates.slots[at]
        at = _best_marked(live, cells[0 if fade < 0 else 1], start)
        if at < 0:
            return NO_SLOT
        return ~at if candidates is None else ~candidates.slots[at]

    def live(self, slots: Sequence[int], fade: int, extra: Sequence[int] | None) -> list[int]:
        view, wanted = self._current_view(), np.asarray(slots, dtype=np.intp)
        live = _sums(view, view.rows.take(wanted, axis=1), fade)
        if extra is not None:
            live += np.asarray(extra, dtype=np.int32).take(wanted)
        result: list[int] = live.tolist()
        return result

    def _current_view(self) -> _View:
        view, n, lanes_hi = self._view, self._words[_N], self._words[_LANES_HI]
        if view.n != n or view.lanes_hi != lanes_hi:
            # Threads that come here at once make equal ones.
            view = self._view = self._view_of(n, lanes_hi)
        return view

    def _view_of(self, n: int, lanes_hi: int) -> _View:
        rows = self._matrix[: 2 + lanes_hi]  # slices end at the capacity, whatever the header says
        weights = np.ones((2, len(rows)), dtype=np.int32)
        weights[0, 1] = weights[1, 0] = 0
        return _View(n, lanes_hi, rows, rows[:, : min(n, self._slots)], *weights)


def _sums(view: _View, cells: NDArray[np.int32], fade: int) -> NDArray[np.int32]:
    """The live values, without an extra row, of the slots whose columns are ``cells``."""
    if fade <= 0 and cells.shape[1] <= _FEW_COLUMNS:
        product: NDArray[np.int32] = (view.base_weights if fade < 0 else view.rest_weights).dot(cells)
        return product
    live: NDArray[np.int32] = np.add.reduce(cells[2:], axis=0, dtype=np.int32)
    head = cells[0 if fade < 0 else 1]
    if fade > 0:
        head = head.copy()  # read once, as the monitor may be back
        np.right_shift(head, fade, out=head, where=head < MARK_FLOOR)
    live += head
    return live


def _best(live: NDArray[np.int32], start: int) -> int:
    """The index of the unmarked one to take; -1 if all are marked."""
    if live.size > _FEW_VALUES:
        return _first(live <= _limit(live.item(live.argmin())), start)
    values = live.tolist()
    limit = _limit(min(values))
    for at in range(start, len(values)):
        if values[at] <= limit:
            return at
    for at, value in enumerate(values[:start]):
        if value <= limit:
            return at
    return -1


def _best_marked(live: NDArray[np.int32], head: NDArray[np.int32], start: int) -> int:
    """Of marked ones the index of the one to take; -1 if all are unused.

    ``head`` may be the table's own cells, which were read before for ``live``: a mark that has changed since
    is as good as the one before.
    """
    band = np.maximum((head - MARK_FLOOR) // MARK_BAND, -1)
    mildest = band.min()
    if mildest >= Mark.UNUSED - 1:
        return -1
    of_band = band == mildest
    return _first(of_band & (live <= int(live[of_band].min()) + TIE_WINDOW), start)


def _limit(least: int) -> int:
    """The highest live value that ties with ``least`` and is unmarked; below all values if ``least`` is marked."""
    return least + TIE_WINDOW if least < MARK_FLOOR - TIE_WINDOW else MARK_FLOOR - 1


def _first(tied: NDArray[np.bool_], start: int) -> int:
    """The index of the first tied one at or after ``start``, else of the first one; -1 if none is tied."""
    flags = tied.tobytes()
    at = flags.find(b"\1", start)
    return at if at >= 0 else flags.find(b"\1")
