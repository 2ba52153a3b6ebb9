"""What is expected of a request that does not tell: how long one takes, and how long its prompt is.

A pick that nobody will end keeps its price for the time that a request takes at instances *of its kind*, those with
the same tags. A time of its own for each instance would swing: a busy one would keep its picks longer than it has
them, and an idle one shorter. The length of the prompt is what the monitor has found among the requests there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from score_table.identity import Identity
from score_table.ledger.rules import Seat
from score_table.records import Detail

UNKNOWN_NS = 10_000_000_000
_LEAST_NS, _MOST_NS = 50_000_000, 120_000_000_000

#: The record of a slot, ``None`` where there is none.
Record = Callable[[int], "Detail | None"]
#: The tags of an instance.
Kind = frozenset[tuple[str, str]]


def hold_ns(records: Iterable[Detail]) -> int:
    """Requests in the instances over their completion rate (Little's law), in ns, 0.05 to 120 s.

    10 s if no record has both, above 0: an instance that was empty when it was asked says nothing of a request's time.
    """
    inflight = rate = 0.0
    for record in records:
        there, finished = record.inflight or 0.0, record.qps_1m or 0.0
        if there > 0 and finished > 0:
            inflight += there
            rate += finished
    # In this order what is no number, of sums that somebody wrote nonsense for, is the least.
    return int(min(_MOST_NS, max(_LEAST_NS, inflight / rate * 1e9))) if rate else UNKNOWN_NS


class Expected:
    """What is expected at the seats of one process, learned from the records of the instances that they stand for."""

    def __init__(self) -> None:
        self._hold_ns: dict[Kind, int] = {}

    def learn(self, seats: Iterable[Seat], holders: Mapping[int, Identity], record: Record) -> None:
        """Set ``hold_ns`` and ``prompt_tokens`` of ``seats``, all with a slot in ``holders``, where a seat of the same
        tags is ``guessed``; that is cleared. A length that no record tells stays as it was."""
        kinds: dict[Kind, list[tuple[Seat, int]]] = {}
        for seat in seats:
            slot = seat.slot
            if slot is not None and slot in holders:
                kinds.setdefault(_kind(holders[slot]), []).append((seat, slot))
        learned = {
            kind: _learn_alike(alike, holders, record)
            for kind, alike in kinds.items()
            if any(seat.guessed for seat, _ in alike)
        }
        known = {kind: hold for kind, hold in self._hold_ns.items() if kind in kinds}
        self._hold_ns = known | learned

    def begin(self, seat: Seat, slot: int, holders: Mapping[int, Identity], record: Record) -> None:
        """Set both of a new seat, by its own record; the hold time is that of its kind where this is known.

        What a newcomer says of itself is nothing at first, and it gets many requests then.
        """
        hold = _learn_alike([(seat, slot)], holders, record)
        seat.hold_ns = self._hold_ns.get(_kind(holders[slot]), hold)


def _kind(holder: Identity) -> Kind:
    return frozenset(holder.tags.items())


def _learn_alike(alike: Sequence[tuple[Seat, int]], holders: Mapping[int, Identity], record: Record) -> int:
    records: dict[int, Detail] = {}
    for seat, slot in alike:
        seat.guessed = False
        found = record(slot)
        # Not that of a former holder.
        if found is not None and found.generation == holders[slot].generation:
            records[slot] = found
            seat.prompt_tokens = found.prompt_tokens
    expected = hold_ns(records.values())
    for seat, _ in alike:
        seat.hold_ns = expected
    return expected
