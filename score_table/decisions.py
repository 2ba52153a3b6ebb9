"""How many requests each instance got, and by what they were decided; from the lanes' totals.

Totals outlive the workers that counted them, and the holder of a slot. What they said when a slot was assigned
stands in its identity block, so that what was decided for its holder can be told at any moment, by anybody, and
while the monitor is silent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from score_table.identity import Directory
from score_table.layout import Natural, Reason
from score_table.segment import Segment


def counted(segment: Segment, slot: int) -> list[int]:
    """The natural units of all lanes at ``slot``, one sum for each :class:`Natural` in their order."""
    summed: list[int] = _rows(segment)[:, :, slot].sum(axis=0).tolist()
    return summed


def totals(counts: Sequence[int]) -> tuple[int, ...]:
    """Of what :func:`counted` says, the dispatches, then those by each reason but the score; not negative, whoever
    wrote nonsense there."""
    return tuple(max(0, counts[reason.row]) for reason in Reason)


def decisions(counts: Sequence[int], before: Sequence[int]) -> dict[str, int]:
    """Requests by reason, from what is :func:`counted` at a slot now and its :func:`totals` at the assignment."""
    dispatched, *split = (max(0, late - early) for late, early in zip(totals(counts), before, strict=True))
    names = [reason.name.lower() for reason in Reason]
    # The words of one step are not read as one: for a moment a reason may be ahead of the dispatches.
    return dict(zip(names, [max(0, dispatched - sum(split)), *split], strict=True))


def decisions_by_id(segment: Segment, directory: Directory) -> dict[str, dict[str, int]]:
    """Of all instances in ``directory``, by their ids."""
    return {
        holder.id: decisions(counted(segment, slot), holder.before)
        for slot, holder in directory.holders.items()
    }


def _rows(segment: Segment) -> NDArray[np.int64]:
    """The natural units of the lanes in use: shape (lanes, kinds, C)."""
    geometry = segment.geometry
    rows: NDArray[np.int64] = np.ndarray(
        (segment.lanes_hi, len(Natural), geometry.slots),
        dtype=np.int64,
        buffer=segment.data,
        offset=geometry.naturals_offset,
        strides=(len(Natural) * geometry.naturals_stride, geometry.naturals_stride, 8),
    )
    return rows
