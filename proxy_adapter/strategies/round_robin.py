"""Rotation, whatever the load."""

from __future__ import annotations

from proxy_adapter.strategies.base import CountingStrategy, Question


class RoundRobinStrategy(CountingStrategy):
    """Each instance in turn, from a random start. Dispatches are counted, so that other strategies see them."""

    name = "round_robin"

    def _position(self, question: Question) -> int:
        return self._next(question.instances)

    def _holds_selected(self) -> bool:
        return False
