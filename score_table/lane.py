"""The life of one worker process at a table: it attaches, claims a lane, and follows the table.

A :class:`Lane` lives as long as its process uses a table. It attaches when a table is there, claims a lane,
follows the table when it is replaced, and moves every open charge with it; what is open stands in its
``ledger``. It starts no thread: its owner calls :meth:`Lane.housekeep` about ten times a second.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from weakref import WeakValueDictionary

from score_table.attachment import Attached, Attachment, Proposal
from score_table.errors import TableError
from score_table.expected import Expected
from score_table.identity import Directory, Prices
from score_table.ledger import Ledger, Seat, ledger_class
from score_table.ledger.rules import Settled
from score_table.location import Location
from score_table.mode import Mode, mode_of
from score_table.pick import PickCore, core_class
from score_table.records import read_detail

logger = logging.getLogger("loadboard.score_table")

#: Seconds for which a failed request keeps its price, so that fast failures attract nothing.
HOLD_NS = 10_000_000_000
_SECOND_NS = 1_000_000_000
_PLACES_KEPT = 16384
#: Slot maps read for one pick at most, where the slots change again and again.
_TRIES = 3
_NO_PRICES = Prices(0.0, 0.0, 0.0)


class Lane:
    """See the module. ``location`` as for :class:`Location`; ``clock`` gives CLOCK_MONOTONIC ns.

    Nothing here raises because of a missing or broken table; ``problem`` says what is wrong with it.
    """

    def __init__(
        self,
        location: str,
        *,
        clock: Callable[[], int] | None = None,
        hold_ns: int = HOLD_NS,
        core: type[PickCore] | None = None,
    ) -> None:
        self.location = Location.parse(location)
        self._clock = clock or time.monotonic_ns
        core = core or core_class()
        self.ledger: Ledger = ledger_class(core)(clock, hold_ns)
        self._attachment = Attachment(self.location, core)
        self._seats: WeakValueDictionary[tuple[str, str | None, int | None], Seat] = WeakValueDictionary()
        #: The URL of each seat when it last had a slot; also of seats that nobody needs any more, for a while.
        self._places: dict[tuple[str, str | None, int | None], str] = {}
        self._expected = Expected()
        self._changing = threading.RLock()  #: which table is in use; held for microseconds
        self._caring = threading.Lock()
        self._closed = False
        self._next_second = 0

    @property
    def attached(self) -> Attached | None:
        """The table in use, whatever the age of its slot map; for counters and viewers."""
        return self._attachment.now

    @property
    def problem(self) -> TableError | None:
        """Why there is no table, as last met; ``None`` if nothing is wrong."""
        return self._attachment.problem

    def now_ns(self) -> int:
        """The lane's clock."""
        return self._clock()

    # -- picking ------------------------------------------------------------------------------------------

    def current(self) -> Attached | None:
        """The table to pick from, its slot map as new as the table; ``None`` while there is no table."""
        attached = self._attachment.now
        for _ in range(_TRIES):
            if attached is None or attached.is_up_to_date():
                break
            attached = self._settle_all(attached)
        return attached

    def mode(self, attached: Attached) -> Mode:
        """Whether the monitor is alive, by its heartbeat; else how old its last word is."""
        return mode_of(attached.segment, self._clock())

    def seat(self, key: str, host: str | None, port: int | None) -> Seat:
        """The seat of that instance: where this process counts at it, in this table and the next ones."""
        where = (key, host, port)
        seat = self._seats.get(where)
        if seat is None:
            attached = self.current()
            with self._changing:  # so that no newer slot map comes before the seat is known
                seat = self.ledger.seat(key, host, port)
                if attached is not None and attached is self._attachment.now:
                    [(_, slot, *prices, _)] = self._settled([seat], attached.directory)
                    seat.settle(attached.version, slot, *prices)
                    if slot is not None:
                        record = partial(read_detail, attached.segment)
                        self._expected.begin(seat, slot, attached.directory.holders, record)
                seat = self._seats.setdefault(where, seat)
        return seat

    def outstanding(self) -> int:
        """Requests this process has open, held ones included."""
        return self.ledger.outstanding()

    def bump(self, word: str) -> None:
        """Add one to a counter of the lane block, where there is a table."""
        attached = self.attached
        if attached is not None:
            attached.claim.bump(word)

    # -- life ---------------------------------------------------------------------------------------------

    def housekeep(self, now: int | None = None) -> None:
        """One round: what ends by time, the table's and the lane's health. Never raises."""
        now = self._clock() if now is None else now
        self.ledger.housekeep(now)
        if self._closed:
            return
        self._care(now, self._attachment.propose)
        attached = self.current()
        if now >= self._next_second:
            self._next_second = now + _SECOND_NS
            self._audit()
            if attached is not None:
                seats = self._all_seats()
                if any(seat.version != attached.version for seat in seats):
                    # One that was made while the table or its slot map changed.
                    attached = self._settle_all(attached)
                self._expect(attached, seats)

    def attach(self) -> None:
        """Attach now instead of at the next housekeeping."""
        if self._attachment.now is None and not self._closed:
            self._care(self._clock(), self._attachment.propose_table)

    def after_fork(self) -> None:
        """In the child: forget all that is the parent's, without touching its lane or its lock."""
        self._changing = threading.RLock()
        self._caring = threading.Lock()
        self.ledger.void(forked=True)
        self._attachment.forget()

    def close(self) -> None:
        """Give the lane back. Open charges are void from now on."""
        with self._changing:
            self._closed = True
            self.ledger.void(forked=False)
            self._attachment.release()

    def _care(self, now: int, propose: Callable[[int], Proposal | None]) -> None:
        if not self._caring.acquire(blocking=False):
            return
        try:
            proposal = propose(now)
            if proposal is not None:
                with self._changing:
                    self._accept(proposal)
        finally:
            self._caring.release()

    def _accept(self, proposal: Proposal) -> None:
        """Move to the proposed rows: every open charge first, then the former rows are given back."""
        attached = proposal.attached
        version = 0
        if not self._closed:
            version = self.ledger.attach(
                attached.claim,
                attached.core,
                attached.directory,
                self._settled(self._all_seats(), attached.directory),
            )
        if not version:
            attached.claim.release()
            return
        former = self._attachment.accept(proposal._replace(attached=attached._replace(version=version)))
        if former is not None and former is not attached.claim:
            if proposal.lost:
                former.abandon()
            else:
                former.release()

    def _settle_all(self, attached: Attached) -> Attached:
        """The same table with its slot map read anew, all seats settled by it."""
        newer = attached.with_new_directory()
        with self._changing:
            # Unless the table was replaced in between.
            if self._attachment.now is attached:
                version = self.ledger.settle(
                    newer.directory, self._settled(self._all_seats(), newer.directory)
                )
                if version:
                    newer = newer._replace(version=version)
                    self._attachment.now = newer
            elif self._attachment.now is not None:
                newer = self._attachment.now
        return newer

    def _settled(self, seats: Iterable[Seat], directory: Directory) -> list[Settled]:
        """Where each seat is in ``directory``; remembers at which URL."""
        settled: list[Settled] = []
        for seat in seats:
            slot, prices, moved = directory.find(seat.key, seat.host, seat.port), _NO_PRICES, False
            if slot is not None:
                holder = directory.holders[slot]
                where = (seat.key, seat.host, seat.port)
                prices, moved = holder.prices, self._places.get(where, holder.url) != holder.url
                if len(self._places) >= _PLACES_KEPT:
                    self._places.clear()
                self._places[where] = holder.url
            settled.append((seat, slot, prices.request, prices.prompt_token, prices.kv_token, moved))
        return settled

    def _all_seats(self) -> list[Seat]:
        # Not values(): another thread may add one meanwhile.
        return [seat for reference in self._seats.valuerefs() if (seat := reference()) is not None]

    def _expect(self, attached: Attached, seats: Iterable[Seat]) -> None:
        """What a request takes now, for instances like those that lately got one which did not tell."""
        settled = [seat for seat in seats if seat.version == attached.version]
        self._expected.learn(settled, attached.directory.holders, partial(read_detail, attached.segment))

    def _audit(self) -> None:
        """Put the own rows right, should they not say what is open. They always do, unless somebody else wrote
        there, or an exception that a signal handler raised came in the middle of a step in Python."""
        if self.ledger.audit():
            logger.warning(
                "the counts of this process in table %s were not those of its open requests; they are now. A "
                "signal handler that raises in the middle of a dispatch does this",
                self.location.text,
            )


def live_row(attached: Attached, slots: Sequence[int], fade: int) -> list[int]:
    """Live values of ``slots``, what this process counts outside of the table included."""
    claim = attached.claim
    return attached.core.live(slots, fade, claim.cells if claim.private else None)
