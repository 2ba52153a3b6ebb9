"""The pick in plain Python: the oracle, written to be read."""

from __future__ import annotations

from collections.abc import Sequence

from score_table.layout import MARK_FLOOR, TIE_WINDOW, Mark
from score_table.pick.rules import NO_SLOT, band_of, faded
from score_table.segment import Segment


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
        slots = range(self._segment.n) if candidates is None else candidates
        live = dict(zip(slots, self.live(slots, fade, extra), strict=True))
        chosen = _choose_within(live, cursor)
        if chosen is not None and live[chosen] < MARK_FLOOR:
            return chosen
        head = self._rows[0 if fade < 0 else 1]
        by_mark: dict[int, dict[int, int]] = {}
        for slot, value in live.items():
            by_mark.setdefault(band_of(head[slot]), {})[slot] = value
        by_mark.pop(Mark.UNUSED, None)
        if not by_mark:
            return NO_SLOT
        chosen = _choose_within(by_mark[min(by_mark)], cursor)
        return NO_SLOT if chosen is None else ~chosen

    def live(self, slots: Sequence[int], fade: int, extra: Sequence[int] | None) -> list[int]:
        lanes = self._rows[2 : 2 + self._segment.lanes_hi]
        result = []
        for slot in slots:
            value = self._rows[0][slot] if fade < 0 else faded(self._rows[1][slot], fade)
            value += sum(row[slot] for row in lanes)
            result.append(value if extra is None else value + extra[slot])
        return result


def _choose_within(live: dict[int, int], cursor: int) -> int | None:
    """The first of the tied best slots at or after ``cursor``; ``None`` if there is no candidate."""
    if not live:
        return None
    least = min(live.values())
    limit = least + TIE_WINDOW
    if least < MARK_FLOOR:
        limit = min(limit, MARK_FLOOR - 1)  # an unmarked slot ties with no marked one
    tied = [slot for slot, value in live.items() if value <= limit]
    return min(tied, key=lambda slot: (slot < cursor, slot))
