"""What all strategies share: the empty list, the counting guard, the lane, the counters."""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from proxy_adapter import process_lane
from proxy_adapter.contract import NO_INSTANCES, Instance
from proxy_adapter.dispatch import Dispatch
from proxy_adapter.holds import ExpectedTimes
from proxy_adapter.slots import Mapped, SlotMap
from score_table.attachment import Attached
from score_table.lane import Lane

logger = logging.getLogger("loadboard.proxy_adapter")


class CountingStrategy(ABC):
    """``table`` is a table's name or path, ``None`` for none. ``rng`` makes the choices repeatable.

    The table is opened at the first pick of each process, so a strategy may be made before a fork.
    ``lane`` replaces the process's lane and its thread: for programs that run in virtual time.
    """

    name: str

    def __init__(
        self, *, table: str | None = None, rng: random.Random | None = None, lane: Lane | None = None
    ) -> None:
        self._rng = rng or random.Random()
        self._process_lane = process_lane.acquire(table) if table is not None and lane is None else None
        self._given_lane = lane
        self._slots = SlotMap()
        self._expected = ExpectedTimes()
        # Random, so that workers do not move in step.
        self._cursor = self._rng.randrange(2**16)
        self._picks: Counter[str] = Counter()

    def select(self, instances: Sequence[Instance], hint: Any = None) -> Instance:
        """See :class:`proxy_adapter.contract.Strategy`."""
        if not instances:
            raise RuntimeError(NO_INSTANCES)
        lane, attached, mapped = self._table_for(instances)
        position = self._choose(instances, hint, lane, attached, mapped)
        if lane is not None and attached is not None and mapped is not None and self._holds_selected():
            slot = mapped.slots[position]
            charge = lane.charge(mapped.keys[position], slot, attached, None)
            expected = self._expected.of(attached, slot, lane.now_ns()) if slot is not None else None
            lane.open(charge, hold_ns=expected if expected is not None else lane.hold_ns)
        self._count_pick(lane)
        return instances[position]

    def dispatch(
        self, instances: Sequence[Instance], hint: Any = None, *, prompt_tokens: int | None = None
    ) -> Dispatch[Instance]:
        """See :class:`proxy_adapter.contract.Strategy`."""
        if not instances:
            raise RuntimeError(NO_INSTANCES)
        lane, attached, mapped = self._table_for(instances)
        position = self._choose(instances, hint, lane, attached, mapped)
        instance = instances[position]
        self._count_pick(lane)
        if lane is None:
            return Dispatch(instance, None, None)
        if mapped is None:
            charge = lane.charge(str(getattr(instance, "instance_id", None)), None, None, prompt_tokens)
        else:
            charge = lane.charge(mapped.keys[position], mapped.slots[position], attached, prompt_tokens)
        guard = Dispatch(instance, lane, charge)
        lane.open(charge, first_token_visible=isinstance(hint, Mapping) and bool(hint.get("stream")))
        return guard

    def status(self) -> dict[str, Any]:
        """See :class:`proxy_adapter.contract.Strategy`."""
        lane = self._lane()
        attached = lane.current() if lane is not None else None
        degraded = "no_table"
        if lane is not None and attached is not None:
            degraded = lane.mode(attached).degraded
        return {
            "strategy": self.name,
            "table": lane.location.text if lane is not None else None,
            "degraded": degraded or None,
            "problem": str(lane.problem) if lane is not None and lane.problem is not None else None,
            "lane": attached.claim.lane if attached is not None and not attached.claim.private else None,
            "pick_core": attached.core.name if attached is not None else None,
            "outstanding": lane.outstanding() if lane is not None else 0,
            "picks": self._picks["picks"],
            "degraded_picks": {k: v for k, v in self._picks.items() if k != "picks"},
        }

    def close(self) -> None:
        """See :class:`proxy_adapter.contract.Strategy`."""
        held, self._process_lane = self._process_lane, None
        if held is not None:
            process_lane.release(held)

    @abstractmethod
    def _position(
        self,
        instances: Sequence[Instance],
        hint: Any,
        lane: Lane | None,
        attached: Attached | None,
        mapped: Mapped | None,
    ) -> int:
        """The position of the instance to take; ``mapped`` is ``None`` where there is no table."""

    def _holds_selected(self) -> bool:
        """Whether a ``select`` without a dispatch keeps its price for a while."""
        return True

    def _choose(
        self,
        instances: Sequence[Instance],
        hint: Any,
        lane: Lane | None,
        attached: Attached | None,
        mapped: Mapped | None,
    ) -> int:
        try:
            return self._position(instances, hint, lane, attached, mapped)
        except Exception:
            # A pick always answers. What went wrong is logged with its place and counted.
            if not self._picks["error"]:
                logger.exception("a pick by %s failed; instances are chosen in rotation", self.name)
            self._degraded("error", lane)
            return self._next(len(instances))

    def _lane(self) -> Lane | None:
        if self._given_lane is not None:
            return self._given_lane
        held = self._process_lane
        if held is None:
            return None
        held.ensure_running()
        return held.lane

    def _table_for(self, instances: Sequence[Instance]) -> tuple[Lane | None, Attached | None, Mapped | None]:
        lane = self._lane()
        attached = lane.current() if lane is not None else None
        if attached is None:
            return lane, None, None
        return lane, attached, self._slots.map(attached, instances)

    def _next(self, count: int) -> int:
        """The next position in rotation."""
        position = self._cursor % count
        self._cursor = position + 1
        return position

    def _count_pick(self, lane: Lane | None) -> None:
        self._picks["picks"] += 1
        if lane is not None:
            lane.bump("picks")

    def _degraded(self, reason: str, lane: Lane | None) -> None:
        """Count a degraded pick by its reason, in this process and, where it has a column, in the table."""
        self._picks[reason] += 1
        if lane is not None and reason in ("outstanding", "marked", "round_robin", "unmatched"):
            lane.bump(f"picks_{reason}")
