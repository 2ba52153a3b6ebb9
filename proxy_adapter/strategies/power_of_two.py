"""The better of two random instances."""

from __future__ import annotations

from proxy_adapter.strategies import object_load
from proxy_adapter.strategies.base import Question
from proxy_adapter.strategies.least_load import LeastLoadStrategy
from score_table.lane import live_row
from score_table.layout import MARK_FLOOR, TIE_WINDOW


class PowerOfTwoStrategy(LeastLoadStrategy):
    """Two different candidates at random, the one with the smaller live score wins, ties at random.

    Where both are marked, or the table cannot be used for all of them, the rule of least load answers.
    """

    name = "power_of_two"

    def _make_picker(self) -> None:
        return None

    def _position(self, question: Question) -> int:
        instances, hint, lane, attached, mapped = question
        if len(instances) > 2:
            pair = self._rng.sample(range(len(instances)), 2)
            if lane is None or attached is None or mapped is None:
                self._degraded("no_table", lane)
                return object_load.choose(instances, hint, pair[0], pair)
            mode = lane.mode(attached)
            slots = [slot for position in pair if (slot := mapped.slots[position]) is not None]
            if len(slots) == 2 and mode.degraded != "round_robin":
                first, second = live_row(attached, slots, mode.fade)
                if min(first, second) < MARK_FLOOR:
                    if mode.degraded:
                        self._degraded(mode.degraded, lane)
                    if abs(first - second) <= TIE_WINDOW:
                        return pair[0]
                    return pair[0] if first < second else pair[1]
        return super()._position(question)
