"""The pick in plain Python: the oracle, written to be read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from score_table.layout import MARK_FLOOR, TIE_WINDOW, Mark
from score_table.pick.rules import NO_SLOT, band_of, faded
from score_table.segment import Segment


class Best(NamedTuple):
    """The best candidates."""

    slots: tuple[int, ...]  #: those that tie, in rising order
    marked: bool  #: there are only marked ones, and these have the mildest mark


class PlainCore:
    """See :class:`score_table.pick.rules.PickCore`."""

    name = "plain"

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._rows = [segment.row(row) for row in range(segment.geometry.rows)]

    def prepare(self, slots: Sequence[int]) -> tuple[int, ...]:
        return tuple(sorted(set(slots)))

    def choose(
        self, candidates: tuple[int, ...] | None, cursor: int, fade: int, extra: Sequence[int] | None
    ) -> int:
        best = self.best(candidates, fade, extra)
        if best is None:
            return NO_SLOT
        chosen = first_from(best.slots, cursor)
        return ~chosen if best.marked else chosen

    def best(self, candidates: tuple[int, ...] | None, fade: int, extra: Sequence[int] | None) -> Best | None:
        """All that ``choose`` may answer, whatever the cursor; ``None`` where that is ``NO_SLOT``."""
        slots = range(self._segment.n) if candidates is None else candidates
        live = dict(zip(slots, self.live(slots, fade, extra), strict=True))
        if not live:
            return None
        if min(live.values()) < MARK_FLOOR:
            return _within(live, marked=False)
        head = self._rows[0 if fade < 0 else 1]
        by_mark: dict[int, dict[int, int]] = {}
        for slot, value in live.items():
            by_mark.setdefault(band_of(head[slot]), {})[slot] = value
        mildest = min(by_mark)
        return None if mildest >= Mark.UNUSED else _within(by_mark[mildest], marked=True)

    def live(self, slots: Sequence[int], fade: int, extra: Sequence[int] | None) -> list[int]:
        lanes = self._rows[2 : 2 + self._segment.lanes_hi]
        result = []
        for slot in slots:
            value = self._rows[0][slot] if fade < 0 else faded(self._rows[1][slot], fade)
            value += sum(row[slot] for row in lanes)
            result.append(value if extra is None else value + extra[slot])
        return result


def first_from(tied: Iterable[int], cursor: int) -> int:
    """The first of them at or after ``cursor``, cyclically. There is one."""
    return min(tied, key=lambda each: (each < cursor, each))


def _within(live: Mapping[int, int], *, marked: bool) -> Best:
    """Those within the tie window of the smallest; an unmarked one ties with no marked one."""
    least = min(live.values())
    limit = least + TIE_WINDOW if marked else min(least + TIE_WINDOW, MARK_FLOOR - 1)
    return Best(tuple(sorted(slot for slot, value in live.items() if value <= limit)), marked)
