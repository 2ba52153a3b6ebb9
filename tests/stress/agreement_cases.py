"""Random tables and questions for the agreement proof, drawn in batches by numpy's generator.

Each batch has a generator of its own, so that case number X of seed S is the same whatever else runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from score_table.layout import MARK_FLOOR, MARKED_SCORE_LIMIT, SCORE_LIMIT, TIE_WINDOW, UNITS, Geometry, Mark

BATCH = 250
#: The most picks of one sequence.
MOST_PICKS = 6
#: What the batches take turns in: capacity in slots and lanes, and bounds of n (0 and the highest included).
SHAPES = (
    (Geometry(64, 8), 0, 17),
    (Geometry(64, 8), 1, 16),
    (Geometry(16, 1), 1, 16),
    (Geometry(64, 8), 1, 64),
    (Geometry(32, 2), 1, 32),
    (Geometry(64, 8), 1, 16),
    (Geometry(64, 8), 17, 64),
    (Geometry(16, 4), 1, 16),
)
#: Every so many batches one of large tables: the code for many slots differs.
_LARGE_EVERY = 50
_LARGE = (Geometry(304, 8), 65, 304)

Cells = NDArray[np.int64]
Rng = np.random.Generator
Shape = tuple[int, ...]


# -- what cells hold: each draws an array of the shape ------------------------------------------------------------


def _unmarked_of(low: int, high: int) -> Callable[[Rng, Shape], Cells]:
    return lambda rng, shape: rng.integers(low, high, shape, endpoint=True)


def _near_ties(rng: Rng, shape: Shape) -> Cells:
    middle: Cells = rng.integers(-SCORE_LIMIT // 2, SCORE_LIMIT // 2, (shape[0], 1))
    above: Cells = rng.choice([0, 0, 1, TIE_WINDOW - 1, TIE_WINDOW, TIE_WINDOW + 1, 3 * TIE_WINDOW], shape)
    return middle + above


def _near_limits(rng: Rng, shape: Shape) -> Cells:
    return rng.choice([-1, 1], shape) * (SCORE_LIMIT - rng.integers(0, 2 * TIE_WINDOW, shape))


def _requests(rng: Rng, shape: Shape) -> Cells:
    return UNITS * rng.integers(0, 20, shape) + rng.integers(-40, 40, shape)


def _marked(rng: Rng, shape: Shape, marks: Cells) -> Cells:
    """``marks`` around scores of every size, the limits included."""
    scores = rng.integers(-MARKED_SCORE_LIMIT, MARKED_SCORE_LIMIT, shape, endpoint=True)
    size = rng.integers(0, 3, (shape[0], 1))
    scores = np.where(size == 0, scores % 300 - 150, scores)
    scores = np.where(size == 1, np.sign(scores) * (MARKED_SCORE_LIMIT - abs(scores) % 200), scores)
    return _MARK_CELLS[marks] + scores


def _all_marked(rng: Rng, shape: Shape) -> Cells:
    return _marked(rng, shape, rng.integers(Mark.AVOIDED, Mark.UNUSED, shape, endpoint=True))


def _one_mark(rng: Rng, shape: Shape) -> Cells:
    marks = rng.integers(Mark.AVOIDED, Mark.UNUSED, (shape[0], 1), endpoint=True)
    return _marked(rng, shape, np.broadcast_to(marks, shape))


def _some_marked(rng: Rng, shape: Shape) -> Cells:
    unmarked = np.where(rng.random((shape[0], 1)) < 0.5, _requests(rng, shape), _near_limits(rng, shape))
    return np.where(rng.random(shape) < rng.random((shape[0], 1)), _all_marked(rng, shape), unmarked)


def _border(rng: Rng, shape: Shape) -> Cells:
    """The highest unmarked and the lowest marked cells; see ``_saturate``."""
    above = rng.integers(0, TIE_WINDOW, shape)
    lowest = Mark.AVOIDED.cell - MARKED_SCORE_LIMIT
    return np.where(rng.random(shape) < 0.3, lowest + above, SCORE_LIMIT - above)


_MARK_CELLS = np.array([0, *(mark.cell for mark in Mark if mark)], dtype=np.int64)
HEADS: tuple[Callable[[Rng, Shape], Cells], ...] = (
    _border,
    _unmarked_of(-300, 300),
    _unmarked_of(-SCORE_LIMIT, SCORE_LIMIT),
    _unmarked_of(-SCORE_LIMIT, -1),
    _unmarked_of(0, 0),
    _requests,
    _near_ties,
    _near_limits,
    _some_marked,
    _some_marked,
    _all_marked,
    _one_mark,
)
_BORDER = HEADS.index(_border)


def _heads(rng: Rng, kinds: NDArray[np.intp], slots: int) -> Cells:
    cells = np.empty((kinds.size, slots), dtype=np.int64)
    for kind, drawn in enumerate(HEADS):
        of_kind = np.flatnonzero(kinds == kind)
        cells[of_kind] = drawn(rng, (of_kind.size, slots))
    return cells


def _counted(rng: Rng, shape: Shape, limit: int) -> Cells:
    """Lane cells of every kind, 0..``limit``."""
    kinds = rng.integers(0, 6, (shape[0],) + (1,) * (len(shape) - 1))
    cells = np.zeros(shape, dtype=np.int64)
    np.copyto(cells, rng.integers(0, 300, shape), where=kinds == 1)
    np.copyto(cells, UNITS * rng.integers(0, 9, shape) + rng.integers(0, 200, shape), where=kinds == 2)
    np.copyto(cells, UNITS * (rng.random(shape) < 0.1), where=kinds == 3)
    np.copyto(cells, rng.integers(0, limit, shape, endpoint=True), where=kinds == 4)
    np.copyto(cells, limit - rng.integers(0, 3, shape), where=kinds == 5)
    return cells


# -- cases --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """One table, one question, and what happens between its picks."""

    number: int
    n: int
    rows: NDArray[np.int32]  #: base, rest and all lanes, in full length
    lanes_hi: int
    candidates: list[int] | None  #: in any order, some of them twice
    cursor: int
    fade: int
    extra: NDArray[np.int32] | None
    steps: list[tuple[int, int, int]]  #: per pick: who counts it, its price, the next cursor (-1: behind it)

    def __str__(self) -> str:
        """All of it as JSON; of the rows what is in use."""
        shown: dict[str, Any] = {**vars(self), "rows": self.rows[: 2 + self.lanes_hi, : self.n].tolist()}
        shown["extra"] = None if self.extra is None else self.extra.tolist()
        return json.dumps(shown)


def batch_shape(batch: int) -> tuple[Geometry, int, int]:
    """Geometry and bounds of n of the cases of this batch."""
    return _LARGE if batch % _LARGE_EVERY == _LARGE_EVERY - 1 else SHAPES[batch % len(SHAPES)]


def batches(first: int, end: int) -> range:
    """The batches that hold the cases [``first``, ``end``)."""
    return range(first // BATCH, -(-end // BATCH))


def cases_of(seed: int, batch: int) -> Iterator[Case]:
    """The ``BATCH`` cases of this batch."""
    rng = np.random.default_rng([seed, batch])
    geometry, least_n, most_n = batch_shape(batch)
    slots, lanes, limit = geometry.slots, geometry.lanes, geometry.lane_cell_limit
    n = rng.integers(least_n, most_n, BATCH, endpoint=True)
    fades = np.where(rng.random(BATCH) < 0.6, -1, rng.choice([0, 0, 1, 2, 5, 16, 30, 31], BATCH))
    kinds = rng.integers(0, len(HEADS), (2, BATCH))
    rows = np.empty((BATCH, 2 + lanes, slots), dtype=np.int64)
    rows[:, 0], rows[:, 1] = (_heads(rng, kinds[row], slots) for row in (0, 1))
    rows[:, 2:] = _counted(rng, (BATCH, lanes, slots), limit)
    extra = _counted(rng, (BATCH, slots), limit)
    for index in np.flatnonzero((kinds[0] == _BORDER) & (fades < 0)):
        _saturate(rows[index], extra[index], limit)
    with_extra = rng.random(BATCH) < 0.4
    lanes_hi = rng.integers(0, lanes, BATCH, endpoint=True)
    lanes_hi[kinds[0] == _BORDER] = lanes
    order = np.argsort(rng.random((BATCH, slots)) + 2 * (np.arange(slots) >= n[:, None]), axis=1)
    how_many = rng.integers(0, 5, BATCH)
    chosen = np.select(
        [how_many <= 1, how_many == 2, how_many == 3],
        [-1, rng.integers(0, n, endpoint=True), np.minimum(n, 1)],
        n,
    )
    place = rng.random(BATCH)
    outside = np.where(place < 0.1, -rng.integers(1, 80, BATCH), rng.integers(0, 2**40, BATCH))
    cursors = np.where(place < 0.2, outside, rng.integers(0, n + 2))
    picks = rng.integers(1, MOST_PICKS, BATCH, endpoint=True)
    by = rng.integers(0, lanes, (BATCH, MOST_PICKS))
    prices = rng.choice([0, 1, TIE_WINDOW, UNITS, UNITS + 476, 50 * UNITS, 2**20], (BATCH, MOST_PICKS))
    jumps = np.where(
        rng.random((BATCH, MOST_PICKS)) < 0.8, -1, rng.integers(0, slots + 2, (BATCH, MOST_PICKS))
    )
    whole, private = rows.astype(np.int32), extra.astype(np.int32)
    for case in range(BATCH):
        some = None if chosen[case] < 0 else order[case, : chosen[case]].tolist()
        steps = zip(by[case].tolist(), prices[case].tolist(), jumps[case].tolist(), strict=True)
        yield Case(
            number=batch * BATCH + case,
            n=int(n[case]),
            rows=whole[case],
            lanes_hi=int(lanes_hi[case]),
            candidates=None if some is None else some + some[: case % 3],
            cursor=int(cursors[case]),
            fade=int(fades[case]),
            extra=private[case] if with_extra[case] else None,
            steps=list(steps)[: picks[case]],
        )


def _saturate(rows: Cells, extra: Cells, limit: int) -> None:
    """All lanes of unmarked slots at their stop, all of marked ones at 0: the two come as close as they can."""
    cells = np.where(rows[0] < MARK_FLOOR, limit, 0)
    rows[2:] = cells
    extra[:] = cells
