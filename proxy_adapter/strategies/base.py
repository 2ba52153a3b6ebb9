"""What all strategies share: the empty list, the counting guard, the lane, the counters."""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from proxy_adapter import process_lane
from proxy_adapter.contract import NO_INSTANCES, Instance, InstanceLike
from proxy_adapter.dispatch import Dispatch, Uncounted
from proxy_adapter.slots import Mapped, SlotMap
from proxy_adapter.strategies.turns import Turns
from score_table.attachment import Attached
from score_table.decisions import decisions_by_id
from score_table.explanation import Explanation
from score_table.lane import Lane
from score_table.layout import Reason
from score_table.ledger import Picker, Seat

logger = logging.getLogger("loadboard.proxy_adapter")


class Question(NamedTuple):
    """What one pick is asked, and what it can look at."""

    instances: Sequence[InstanceLike]
    hint: Any
    lane: Lane | None  #: ``None``: the strategy works without a table
    attached: Attached | None  #: ``None``: there is no table
    mapped: Mapped | None  #: the slots of ``instances``; ``None`` exactly where ``attached`` is


class Choice(NamedTuple):
    """The position of the instance to take, and by what that was decided."""

    position: int
    reason: Reason = Reason.SCORE


class CountingStrategy(ABC):
    """``table`` is a table's name or path, ``None`` for none. ``rng`` makes the choices repeatable; a forked child takes
    another one, so that it does not choose what its parent and its siblings choose.

    The table is opened at the first pick of each process, so a strategy may be made before a fork.
    ``lane`` replaces the process's lane and its thread: for programs that run in virtual time.
    """

    name: str

    def __init__(
        self, *, table: str | None = None, rng: random.Random | None = None, lane: Lane | None = None
    ) -> None:
        self._rng = rng or random.Random()
        self._process_lane = process_lane.acquire(table) if table is not None and lane is None else None
        self._lane = lane if self._process_lane is None else self._process_lane.lane
        self._slots = SlotMap(self._lane) if self._lane is not None else None
        self._picker = self._make_picker()
        self._turns = Turns(self._rng, self._picker)
        self._picks: Counter[str] = Counter()
        process_lane.tell_of_forks(self)

    def select(self, instances: Sequence[Instance], hint: Any = None) -> Instance:
        """One of ``instances``, counted for the time that a request there takes.

        ``RuntimeError("no instances")`` if there is none. All of it: :class:`proxy_adapter.contract.Strategy`.
        """
        # A copy: another thread may change the list meanwhile.
        instances = tuple(instances)
        if not instances:
            raise RuntimeError(NO_INSTANCES)
        question = self._question(instances, hint)
        position, reason = self._choose(question)
        lane, mapped = question.lane, question.mapped
        if lane is not None and mapped is not None and self._holds_selected():
            lane.ledger.hold(mapped.seats[position], reason)
        self._count_pick(lane)
        return instances[position]

    def dispatch(
        self, instances: Sequence[Instance], hint: Any = None, *, prompt_tokens: int | None = None
    ) -> Dispatch[Instance]:
        """A guard of one of ``instances``, counted until it is released; use it with ``with`` or ``async with``.

        ``prompt_tokens``: length of the prompt where known. A true ``hint["stream"]`` says that ``first_token()``
        will be called. All of it: :class:`proxy_adapter.contract.Strategy`.
        """
        # A copy: another thread may change the list meanwhile.
        instances = tuple(instances)
        if not instances:
            raise RuntimeError(NO_INSTANCES)
        question = self._question(instances, hint)
        position, reason = self._choose(question)
        lane, mapped = question.lane, question.mapped
        instance = instances[position]
        self._count_pick(lane)
        if lane is None:
            return Uncounted(instance)
        seat = mapped.seats[position] if mapped is not None else self._seat(lane, instance)
        return lane.ledger.dispatch(instance, seat, prompt_tokens, _streams(hint), reason)

    def why(self, instances: Sequence[Instance], hint: Any = None) -> Explanation:
        """Which of ``instances`` :meth:`select` would take now, and why. Neither picks nor counts.

        ``RuntimeError("no instances")`` if there is none.
        """
        instances = tuple(instances)
        if not instances:
            raise RuntimeError(NO_INSTANCES)
        return self._explain(self._question(instances, hint))

    def status(self) -> dict[str, Any]:
        """What the strategy works with now: table, mode, problem, picks and degraded picks by reason."""
        lane = self._running_lane()
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
            "picks": self._picks["picks"] + (self._picker.picks if self._picker is not None else 0),
            "degraded_picks": {k: v for k, v in self._picks.items() if k != "picks"},
            "decisions": {} if attached is None else decisions_by_id(attached.segment, attached.directory),
        }

    def close(self) -> None:
        """Give back what this process holds of the table. The strategy goes on without a table."""
        held, self._process_lane = self._process_lane, None
        if held is not None:
            self._picks["picks"] += self._picker.picks if self._picker is not None else 0
            self._lane = self._slots = self._picker = None
            process_lane.release(held)

    @abstractmethod
    def _position(self, question: Question) -> Choice:
        """The instance to take. The list is not empty."""

    @abstractmethod
    def _explain(self, question: Question) -> Explanation:
        """What :meth:`_position` would answer now, and why. Changes nothing."""

    def _make_picker(self) -> Picker | None:
        """What answers before :meth:`_position` where it can; ``None`` for strategies that have no such thing."""
        return None

    def after_fork(self) -> None:
        """In a forked child: choose otherwise than the parent and its other children."""
        self._rng = random.Random()
        self._turns = Turns(self._rng, self._picker)

    def _holds_selected(self) -> bool:
        """Whether a ``select`` without a dispatch keeps its price for a while."""
        return True

    def _choose(self, question: Question) -> Choice:
        try:
            return self._position(question)
        except Exception:
            self._failed("the pick", question.lane)
            return Choice(self._next(question.instances), Reason.ROUND_ROBIN)

    def _running_lane(self) -> Lane | None:
        held = self._process_lane
        if held is not None:
            held.ensure_running()
        return self._lane

    def _question(self, instances: Sequence[InstanceLike], hint: Any) -> Question:
        lane, slots = self._running_lane(), self._slots
        attached = lane.current() if lane is not None else None
        if attached is None or slots is None:
            return Question(instances, hint, lane, None, None)
        try:
            return Question(instances, hint, lane, attached, slots.map(attached, instances))
        except Exception:
            # Objects whose id or address cannot be read have no slot.
            self._failed("mapping instances to slots", lane)
            return Question(instances, hint, lane, None, None)

    def _seat(self, lane: Lane, instance: InstanceLike) -> Seat:
        """Where to count at ``instance`` while there is no table; those that cannot tell an id share one count."""
        try:
            return SlotMap(lane).seat(instance)
        except Exception:
            return lane.seat("<no readable id>", None, None)

    def _next(self, instances: Sequence[InstanceLike]) -> int:
        """The next position in rotation."""
        position = self._turns.of_list(instances)
        self._turns.set_of_list(instances, position + 1)
        return position

    def _count_pick(self, lane: Lane | None) -> None:
        self._picks["picks"] += 1
        if lane is not None:
            lane.bump("picks")

    def _failed(self, what: str, lane: Lane | None) -> None:
        """Called in an ``except`` block: a pick always answers; what went wrong is counted, and logged once."""
        if not self._picks["error"]:
            logger.exception("%s: %s failed; instances are chosen without the table", self.name, what)
        self._degraded("error", lane)

    def _degraded(self, reason: str, lane: Lane | None) -> None:
        """Count a degraded pick by its reason, in this process and, where it has a column, in the table."""
        self._picks[reason] += 1
        if lane is not None and reason in ("outstanding", "marked", "round_robin", "unmatched"):
            lane.bump(f"picks_{reason}")


def _streams(hint: Any) -> bool:
    """Whether the caller will say when the first token comes."""
    try:
        return isinstance(hint, Mapping) and bool(hint.get("stream"))
    except Exception:
        return False
