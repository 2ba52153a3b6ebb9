"""The least-loaded instance, by the score table and all lanes of this host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy_adapter.contract import Instance
from proxy_adapter.dispatch import Dispatch
from proxy_adapter.slots import Mapped
from proxy_adapter.strategies import explaining, object_load
from proxy_adapter.strategies.base import Choice, CountingStrategy, Question
from score_table.attachment import Attached
from score_table.explanation import Explanation
from score_table.layout import Reason
from score_table.ledger import Picker
from score_table.pick import NO_SLOT, unmatched
from score_table.pick.plain import first_from


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

    def _position(self, question: Question) -> Choice:
        _, _, lane, attached, mapped = question
        if lane is None or attached is None or mapped is None:
            self._degraded("no_table", lane)
            return self._by_objects(question)
        reason, mode = Reason.SCORE, lane.mode(attached)
        if mode.degraded == "round_robin":
            self._degraded("round_robin", lane)
            return self._by_objects(question)
        if mode.degraded:
            self._degraded(mode.degraded, lane)
            reason = Reason.OUTSTANDING
        if not mapped.matched_all:
            self._degraded("unmatched", lane)
            return self._with_unmatched(attached, mapped, mode.fade)
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
            reason = Reason.MARKED
        self._turns.set_of_slots(*mapped.span, slot + 1)
        return Choice(mapped.position[slot], reason)

    def _explain(self, question: Question) -> Explanation:
        mapped, in_list = question.mapped, self._turns.of_list(question.instances)
        if mapped is None:
            explanation = explaining.from_table(question, None)
        else:
            cursor = self._turns.of_slots(*mapped.span) if mapped.matched_all else in_list
            explanation = explaining.from_table(question, cursor)
        if explanation.picked is None:
            return explaining.by_objects(explanation, question, in_list)
        return explanation

    def _by_objects(self, question: Question) -> Choice:
        instances = question.instances
        cursor = self._turns.of_list(instances)
        position = object_load.choose(instances, question.hint, cursor, range(len(instances)))
        self._turns.set_of_list(instances, position + 1)
        return Choice(position, Reason.ROUND_ROBIN)

    def _with_unmatched(self, attached: Attached, mapped: Mapped, fade: int) -> Choice:
        """Some candidate has no slot."""
        tied = unmatched.tied(scores_of(attached, mapped, fade))
        position = first_from(tied, self._turns.of_list(mapped.instances))
        self._turns.set_of_list(mapped.instances, position + 1)
        return Choice(position, Reason.UNMATCHED)


def scores_of(attached: Attached, mapped: Mapped, fade: int) -> list[int]:
    """The live score of each instance of the list, marks included; one without a slot as :mod:`score_table.pick.unmatched`
    says."""
    extra = attached.claim.cells if attached.claim.private else None
    return unmatched.scores(
        attached.segment, attached.core, mapped.slots, explaining.open_units(mapped), fade, extra
    )
