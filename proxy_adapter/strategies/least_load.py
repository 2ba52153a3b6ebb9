"""The least-loaded instance, by the score table and all lanes of this host."""

from __future__ import annotations

import statistics

from proxy_adapter.slots import Mapped
from proxy_adapter.strategies import object_load
from proxy_adapter.strategies.base import CountingStrategy, Question
from score_table.attachment import Attached
from score_table.lane import Lane, live_row
from score_table.layout import MARK_FLOOR, TIE_WINDOW, UNITS
from score_table.pick import NO_SLOT


class LeastLoadStrategy(CountingStrategy):
    """The smallest live score wins, ties rotate. Without a table: see :mod:`.object_load`."""

    name = "least_load"

    def _position(self, question: Question) -> int:
        _, _, lane, attached, mapped = question
        if lane is None or attached is None or mapped is None:
            self._degraded("no_table", lane)
            return self._by_objects(question)
        mode = lane.mode(attached)
        if mode.degraded == "round_robin":
            self._degraded("round_robin", lane)
            return self._by_objects(question)
        if mode.degraded:
            self._degraded(mode.degraded, lane)
        if not mapped.matched_all:
            self._degraded("unmatched", lane)
            return self._with_unmatched(lane, attached, mapped, mode.fade)
        claim = attached.claim
        extra = claim.cells if claim.private else None
        slot = attached.core.choose(mapped.candidates, self._cursor, mode.fade, extra)
        if slot == NO_SLOT:
            self._degraded("round_robin", lane)
            return self._by_objects(question)
        if slot < 0:
            slot = ~slot
            self._degraded("marked", lane)
        self._cursor = slot + 1
        return mapped.position[slot]

    def _by_objects(self, question: Question) -> int:
        count = len(question.instances)
        position = object_load.choose(question.instances, question.hint, self._cursor % count, range(count))
        self._cursor = position + 1
        return position

    def _with_unmatched(self, lane: Lane, attached: Attached, mapped: Mapped, fade: int) -> int:
        """Some candidate has no slot: it scores this process's outstanding there times the lanes in use, plus
        the fleet median of what others have; so it is neither free nor shut out."""
        slots = [slot for slot in mapped.slots if slot is not None]
        live = dict(zip(slots, live_row(attached, slots, fade), strict=True))
        rest = [cell for cell in attached.segment.row(1)[: attached.segment.n] if cell < MARK_FLOOR]
        median = int(statistics.median(rest)) if rest else 0
        lanes = max(1, attached.segment.lanes_hi)
        scores = [
            live[slot] if slot is not None else lane.unmatched.get(key, 0) * lanes * UNITS + max(0, median)
            for slot, key in zip(mapped.slots, mapped.keys, strict=True)
        ]
        limit = min(scores) + TIE_WINDOW
        tied = [position for position, score in enumerate(scores) if score <= limit]
        cursor = self._cursor % len(scores)
        position = min(tied, key=lambda index: (index < cursor, index))
        self._cursor = position + 1
        return position
