"""The rules of a pick, which every implementation follows to the bit.

``live[i] = head[i] + sum of the lane cells of slot i``, where ``head`` is ``base``, or the faded ``rest``
while the monitor is silent. Among candidates within the tie window of the smallest live value the first slot
at or after the cursor is taken, cyclically. Marked slots are taken only where no unmarked candidate is
there: the mildest mark first, and within one mark the same rule on the live values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from score_table.layout import (
    MARK_BAND,
    MARK_FLOOR,
    MARKED_SCORE_LIMIT,
    SCORE_LIMIT,
    UNITS,
    Mark,
)
from score_table.segment import Segment

__all__ = ["NO_SLOT", "UNITS", "Mark", "PickCore", "band_of", "faded", "marked"]

#: What ``choose`` answers where no candidate holds a slot in use.
NO_SLOT = -(2**31)
#: While the monitor is silent, ``rest`` halves every 10 s; after 310 s only the lanes count.
FADE_NS = 10_000_000_000
MAX_FADE = 31


class PickCore(Protocol):
    """One implementation of the pick on one segment. Thread-safe; never blocks; allocates no shared state."""

    name: str

    def __init__(self, segment: Segment) -> None: ...

    def prepare(self, slots: Sequence[int]) -> Any:
        """A candidate set in the form this core reads fastest. ``slots`` are in range; order is irrelevant."""

    def choose(self, candidates: Any, cursor: int, fade: int, extra: Sequence[int] | None) -> int:
        """The slot to take: >= 0 if unmarked, ``~slot`` if only marked ones are there, else ``NO_SLOT``.

        ``candidates`` comes from ``prepare``; ``None`` means all slots in use. ``fade`` < 0 reads ``base``,
        otherwise ``rest`` shifted right by it (0..31). ``extra`` is one more row of C cells outside of the
        table (what this process counts while it has no lane).
        """

    def live(self, slots: Sequence[int], fade: int, extra: Sequence[int] | None) -> list[int]:
        """The live values of ``slots``, in that order."""


def band_of(head: int) -> int:
    """The mark of a head cell, as an int of :class:`Mark` (0 = none)."""
    return 0 if head < MARK_FLOOR else (head - MARK_FLOOR) // MARK_BAND + 1


def faded(rest: int, fade: int) -> int:
    """``rest`` after ``fade`` halvings (arithmetic shift); a marked cell stays."""
    return rest if rest >= MARK_FLOOR else rest >> fade


def fade_of(silence_ns: int) -> int:
    """How far ``rest`` has faded when the monitor has been silent for ``silence_ns`` (negative: clock mismatch)."""
    return MAX_FADE if silence_ns < 0 else min(MAX_FADE, silence_ns // FADE_NS)


def marked(units: NDArray[Any], marks: NDArray[np.int8]) -> NDArray[np.int32]:
    """Cells for ``base`` or ``rest``: ``units`` (any finite numbers, shape (n,)) clamped, plus its mark.

    ``marks`` holds values of :class:`Mark`. ``ValueError`` if a unit is not finite: nothing of that kind
    may reach the table.
    """
    if not np.isfinite(units).all():
        raise ValueError(f"units of slots {np.flatnonzero(~np.isfinite(units)).tolist()} are not finite")
    whole: NDArray[np.int32] = np.rint(_within(units, SCORE_LIMIT)).astype(np.int32)
    if marks.any():
        cells = _MARK_CELLS[marks] + _within(whole, MARKED_SCORE_LIMIT)
        whole = np.where(marks == 0, whole, cells)
    return whole


def _within(values: NDArray[Any], limit: int) -> NDArray[Any]:
    # np.clip costs twice as much on a few hundred values, on every tick.
    clamped: NDArray[Any] = np.minimum(np.maximum(values, -limit), limit)
    return clamped


_MARK_CELLS = np.array([0, *(mark.cell for mark in Mark if mark)], dtype=np.int32)
