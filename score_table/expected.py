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


def expect(seats: Iterable[Seat], holders: Mapping[int, Identity], record: Record) -> None:
    """Set ``hold_ns`` and ``prompt_tokens`` of ``seats``, all with a slot in ``holders``, where a seat of the same tags
    is ``guessed``; that is cleared. A length that no record tells stays as it was."""
    kinds: dict[frozenset[tuple[str, str]], list[tuple[Seat, int]]] = {}
    for seat in seats:
        slot = seat.slot
        if slot is not None and slot in holders:
            kinds.setdefault(frozenset(holders[slot].tags.items()), []).append((seat, slot))
    for kind in kinds.values():
        if any(seat.guessed for seat, _ in kind):
            _expect_alike(kind, holders, record)


def begin(seat: Seat, slot: int, holders: Mapping[int, Identity], record: Record) -> None:
    """Set both of a new seat, by its own record alone."""
    _expect_alike([(seat, slot)], holders, record)


def _expect_alike(kind: Sequence[tuple[Seat, int]], holders: Mapping[int, Identity], record: Record) -> None:
    records: dict[int, Detail] = {}
    for seat, slot in kind:
        seat.guessed = False
        found = record(slot)
        # Not that of a former holder.
        if found is not None and found.generation == holders[slot].generation:
            records[slot] = found
            seat.prompt_tokens = found.prompt_tokens
    expected = hold_ns(records.values())
    for seat, _ in kind:
        seat.hold_ns = expected
