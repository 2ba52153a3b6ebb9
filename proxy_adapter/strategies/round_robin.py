"""Rotation, whatever the load."""

from __future__ import annotations

from collections.abc import Sequence

from proxy_adapter.strategies import explaining
from proxy_adapter.strategies.base import Choice, CountingStrategy, Question
from score_table.explanation import Explanation
from score_table.layout import Reason
from score_table.pick.rules import band_of


class RoundRobinStrategy(CountingStrategy):
    """Each instance in turn, from a random start. Dispatches are counted, so that other strategies see them.

    Marked ones are passed over while another one of the list is not marked, and the monitor lives: marks that nobody
    takes back must not shut anybody out.
    """

    name = "round_robin"

    def _position(self, question: Question) -> Choice:
        choice = self._in_turn(question)
        if choice.reason is Reason.MARKED:
            self._degraded("marked", question.lane)
        self._turns.set_of_list(question.instances, choice.position + 1)
        return choice

    def _explain(self, question: Question) -> Explanation:
        position, reason = self._in_turn(question)
        explanation = explaining.from_table(question, None)
        cursor = self._turns.of_list(question.instances)
        return explaining.ruled(explanation, "rotation", position, reason.name.lower(), cursor=cursor)

    def _in_turn(self, question: Question) -> Choice:
        instances, _, lane, attached, mapped = question
        first = self._turns.of_list(instances)
        if (
            lane is not None
            and attached is not None
            and mapped is not None
            and not lane.mode(attached).degraded
        ):
            position, mark = _mildest(attached.segment.row(0), mapped.slots, first)
            return Choice(position, Reason.MARKED if mark else Reason.ROUND_ROBIN)
        return Choice(first, Reason.ROUND_ROBIN)

    def _holds_selected(self) -> bool:
        return False


def _mildest(base: memoryview, slots: Sequence[int | None], first: int) -> tuple[int, int]:
    """The first position from ``first`` on, cyclically, that has no mark, else the mildest; and its mark.

    What has no slot has no mark.
    """
    found, mildest = first, -1
    for position in (*range(first, len(slots)), *range(first)):
        slot = slots[position]
        mark = 0 if slot is None else band_of(base[slot])
        if not mark:
            return position, 0
        if mildest < 0 or mark < mildest:
            found, mildest = position, mark
    return found, mildest
