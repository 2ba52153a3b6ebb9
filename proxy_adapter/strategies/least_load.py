"""The least-loaded instance, by the score table and all lanes of this host."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from proxy_adapter.contract import Instance
from proxy_adapter.dispatch import Dispatch
from proxy_adapter.slots import Mapped
from proxy_adapter.strategies import object_load
from proxy_adapter.strategies.base import CountingStrategy, Question
from score_table.attachment import Attached
from score_table.lane import Lane, live_row
from score_table.layout import MARK_FLOOR, TIE_WINDOW, UNITS
from score_table.ledger import Picker
from score_table.pick import NO_SLOT
from score_table.pick.rules import faded


class LeastLoadStrategy(CountingStrategy):
    """The smallest live score wins, ties rotate. Without a table: see :mod:`.object_load`."""

    name = "least_load"

    def select(self, instances: Sequence[Instance], hint: Any = None) -> Instance:
        """As :meth:`CountingStrategy.select`, in C where everything is as it should be."""
        picker = self._picker
        if picker is not None:
            instance = picker.select(instances)
            if instance is not None:
                return instance
        return super().select(instances, hint)

    def dispatch(
        self, instances: Sequence[Instance], hint: Any = None, *, prompt_tokens: int | None = None
    ) -> Dispatch[Instance]:
        """As :meth:`CountingStrategy.dispatch`, in C where everything is as it should be."""
        picker = self._picker
        if picker is not None:
            guard = picker.dispatch(instances, hint, prompt_tokens)
            if guard is not None:
                return guard
        return super().dispatch(instances, hint, prompt_tokens=prompt_tokens)

    def _make_picker(self) -> Picker | None:
        lane, slots = self._lane, self._slots
        return lane.ledger.picker(slots.seat) if lane is not None and slots is not None else None

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
        extra = attached.claim.cells if attached.claim.private else None
        cursor = self._turns.of_slots(*mapped.span) % max(1, attached.segment.n)
        slot = attached.core.choose(mapped.candidates, cursor, mode.fade, extra)
        if slot != NO_SLOT and (slot if slot >= 0 else ~slot) not in mapped.position:
            # "All slots" has just become one more than this list has.
            candidates = attached.core.prepare(list(mapped.position))
            slot = attached.core.choose(candidates, cursor, mode.fade, extra)
        if slot == NO_SLOT:
            self._degraded("round_robin", lane)
            return self._by_objects(question)
        if slot < 0:
            slot = ~slot
            self._degraded("marked", lane)
        self._turns.set_of_slots(*mapped.span, slot + 1)
        return mapped.position[slot]

    def _by_objects(self, question: Question) -> int:
        instances = question.instances
        cursor = self._turns.of_list(instances)
        position = object_load.choose(instances, question.hint, cursor, range(len(instances)))
        self._turns.set_of_list(instances, position + 1)
        return position

    def _with_unmatched(self, lane: Lane, attached: Attached, mapped: Mapped, fade: int) -> int:
        """Some candidate has no slot: it scores this process's outstanding there (at nominal prices) times the lanes in use, on top
        of what the typical instance scores without this host; so it is neither free nor shut out."""
        slots = [slot for slot in mapped.slots if slot is not None]
        live = dict(zip(slots, live_row(attached, slots, fade), strict=True))
        head = attached.segment.row(0 if fade < 0 else 1)[: attached.segment.n]
        unmarked = [cell if fade < 0 else faded(cell, fade) for cell in head if cell < MARK_FLOOR]
        typical = int(statistics.median(unmarked)) if unmarked else 0
        lanes = max(1, attached.segment.lanes_hi)
        scores = [
            live[slot] if slot is not None else max(seat.units, seat.open * UNITS) * lanes + typical
            for slot, seat in zip(mapped.slots, mapped.seats, strict=True)
        ]
        limit = min(scores) + TIE_WINDOW
        tied = [position for position, score in enumerate(scores) if score <= limit]
        cursor = self._turns.of_list(mapped.instances)
        position = min(tied, key=lambda index: (index < cursor, index))
        self._turns.set_of_list(mapped.instances, position + 1)
        return position
