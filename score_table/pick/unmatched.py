"""The rule where some candidate has no slot: nobody but its own worker knows what is open there.

It scores that times the lanes in use (what all workers have there, if they do alike), on top of what the typical
instance scores without this host: the median head of the unmarked slots. So it is neither free nor shut out.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from score_table.layout import MARK_FLOOR, TIE_WINDOW
from score_table.pick.rules import PickCore, faded
from score_table.segment import Segment


def scores(
    segment: Segment,
    core: PickCore,
    slots: Sequence[int | None],
    open_units: Sequence[int],
    fade: int,
    extra: Sequence[int] | None,
) -> list[int]:
    """What a pick compares, in units, by position. ``slots`` is ``None``, and ``open_units`` looked at, where a
    candidate has no slot; ``fade`` and ``extra`` as for :class:`PickCore`."""
    matched = [slot for slot in slots if slot is not None]
    live = dict(zip(matched, core.live(matched, fade, extra), strict=True))
    typical, lanes = typical_head(segment, fade), max(1, segment.lanes_hi)
    return [
        units * lanes + typical if slot is None else live[slot]
        for slot, units in zip(slots, open_units, strict=True)
    ]


def typical_head(segment: Segment, fade: int) -> int:
    """The median ``base``, or faded ``rest``, of the slots that are not marked; 0 if all are."""
    head = segment.row(0 if fade < 0 else 1)[: segment.n]
    unmarked = [cell if fade < 0 else faded(cell, fade) for cell in head if cell < MARK_FLOOR]
    return int(statistics.median(unmarked)) if unmarked else 0


def tied(compared: Sequence[int]) -> tuple[int, ...]:
    """The positions within the tie window of the smallest score."""
    limit = min(compared) + TIE_WINDOW
    return tuple(position for position, score in enumerate(compared) if score <= limit)
