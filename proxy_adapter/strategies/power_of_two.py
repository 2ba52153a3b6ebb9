"""The better of two random instances."""

from __future__ import annotations

from collections.abc import Sequence

from proxy_adapter.slots import Mapped
from proxy_adapter.strategies import explaining, object_load
from proxy_adapter.strategies.base import Choice, Question
from proxy_adapter.strategies.least_load import LeastLoadStrategy, scores_of
from score_table.attachment import Attached
from score_table.explanation import Explanation
from score_table.lane import live_row
from score_table.layout import MARK_FLOOR, TIE_WINDOW, Reason


class PowerOfTwoStrategy(LeastLoadStrategy):
    """Two different candidates at random, the one with the smaller live score wins, ties at random.

    Of up to two candidates, and where both of the pair are marked, the rule of least load chooses among all.
    """

    name = "power_of_two"

    def _make_picker(self) -> None:
        return None

    def _position(self, question: Question) -> Choice:
        instances, hint, lane, attached, mapped = question
        if len(instances) <= 2:
            return super()._position(question)
        pair = self._rng.sample(range(len(instances)), 2)
        if lane is None or attached is None or mapped is None:
            self._degraded("no_table", lane)
            return Choice(object_load.choose(instances, hint, pair[0], pair), Reason.ROUND_ROBIN)
        mode = lane.mode(attached)
        if mode.degraded == "round_robin":
            self._degraded("round_robin", lane)
            return Choice(object_load.choose(instances, hint, pair[0], pair), Reason.ROUND_ROBIN)
        first, second, unmatched = _compared(attached, mapped, mode.fade, pair)
        if min(first, second) >= MARK_FLOOR:
            return super()._position(question)
        reason = Reason.SCORE
        if mode.degraded:
            self._degraded(mode.degraded, lane)
            reason = Reason.OUTSTANDING
        if unmatched:
            self._degraded("unmatched", lane)
            reason = Reason.UNMATCHED
        if abs(first - second) <= TIE_WINDOW and max(first, second) < MARK_FLOOR:
            return Choice(pair[0], reason)
        return Choice(pair[0] if first < second else pair[1], reason)

    def _explain(self, question: Question) -> Explanation:
        """The table as it is; which two are drawn nobody can tell before."""
        explanation = super()._explain(question)
        if len(question.instances) <= 2 or explanation.decided_by == "marked":
            return explanation
        return explaining.ruled(explanation, "two_at_random", None, explanation.decided_by)


def _compared(attached: Attached, mapped: Mapped, fade: int, pair: Sequence[int]) -> tuple[int, int, bool]:
    """The live scores of the pair, and whether one of it has no slot."""
    slots = [slot for position in pair if (slot := mapped.slots[position]) is not None]
    if len(slots) == 2:
        first, second = live_row(attached, slots, fade)
        return first, second, False
    scores = scores_of(attached, mapped, fade)
    return scores[pair[0]], scores[pair[1]], True
