"""Rotation, whatever the load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from proxy_adapter.contract import Instance
from proxy_adapter.slots import Mapped
from proxy_adapter.strategies.base import CountingStrategy
from score_table.attachment import Attached
from score_table.lane import Lane


class RoundRobinStrategy(CountingStrategy):
    """Each instance in turn, from a random start. Dispatches are counted, so that other strategies see them."""

    name = "round_robin"

    def _position(
        self,
        instances: Sequence[Instance],
        hint: Any,
        lane: Lane | None,
        attached: Attached | None,
        mapped: Mapped | None,
    ) -> int:
        return self._next(len(instances))

    def _holds_selected(self) -> bool:
        return False
