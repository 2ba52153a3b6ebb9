"""The lane of one worker process: what it has outstanding at each instance, counted where all can see it.

A :class:`Lane` lives as long as its process uses a table. It attaches when a table is there, claims a lane,
follows the table when it is replaced, and moves every open charge with it. It starts no thread: its owner
calls :meth:`Lane.housekeep` about ten times a second.

Every change is appended to a queue and worked off at once, under a lock that is held for microseconds and
never across I/O. A signal handler or a finalizer that comes in the middle of a change of its own thread only
appends; the interrupted code works it off. So no change interrupts another one halfway, and none waits for
more than another one.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from score_table import counting
from score_table.attachment import Attached, Attachment, Proposal
from score_table.charge import Charge, Phase
from score_table.claim import Claim, close_inherited_locks
from score_table.errors import TableError
from score_table.layout import PROMPT_TOKENS_LIMIT, State
from score_table.location import Location
from score_table.pick import PickCore, core_class
from score_table.pick.rules import fade_of
from score_table.unmatched import Unmatched

logger = logging.getLogger("loadboard.score_table")

#: Prompt tokens an engine is taken to prefill per second where nobody sees the first token.
PREFILL_RATE = 7500
#: Seconds for which a failed request keeps its price, so that fast failures attract nothing.
HOLD_NS = 10_000_000_000
#: Prompt tokens of a request that does not tell, before any has told.
FIRST_PROMPT_TOKENS = 220
_MEAN_WEIGHT = 1 / 64
_AUDIT_NS = 1_000_000_000


class Mode(NamedTuple):
    """How far the table can be believed now: ``degraded`` names the mode, "" is none."""

    degraded: str
    fade: int  #: < 0: read ``base``; else ``rest`` shifted by this


class Lane:
    """See the module. ``location`` as for :class:`Location`; ``clock`` gives CLOCK_MONOTONIC ns.

    Nothing here raises because of a missing or broken table; ``problem`` says what is wrong with it.
    """

    def __init__(
        self,
        location: str,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        hold_ns: int = HOLD_NS,
        core: type[PickCore] | None = None,
    ) -> None:
        self.location = Location.parse(location)
        self.mean_prompt_tokens = float(FIRST_PROMPT_TOKENS)
        self.unmatched = Unmatched()  #: open charges that have no slot
        self.epoch = 0  #: grows in every forked child; charges of an older one are void
        self._clock = clock
        self.hold_ns = hold_ns
        self._attachment = Attachment(self.location, core or core_class())
        self._queue: deque[tuple[Callable[[Charge], None], Charge]] = deque()
        self._busy = threading.RLock()
        self._working = False  #: under ``_busy``: this very thread is in the middle of a change
        self._caring = threading.Lock()
        self._open: set[Charge] = set()
        self._timed: list[tuple[int, int, Callable[[Charge], None], Charge]] = []
        self._order = itertools.count()
        self._closed = False
        self._next_audit = 0

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
        if attached is None or attached.is_up_to_date():
            return attached
        newer = attached.with_new_directory()
        with self._busy:
            # Unless the table was replaced in between.
            if self._attachment.now is attached and not self._working:
                self._attachment.now = newer
        return newer

    def mode(self, attached: Attached) -> Mode:
        """Whether the monitor is alive, by its heartbeat; else how old its last word is."""
        segment = attached.segment
        silence = self._clock() - segment.read("heartbeat")
        limit = segment.max_heartbeat_age_ns
        if segment.state == State.READY and -limit <= silence <= limit:
            return Mode("", -1)
        if segment.state == State.INIT:
            return Mode("round_robin", 0)
        return Mode("outstanding", fade_of(silence))

    def charge(
        self,
        key: str,
        slot: int | None,
        prompt_tokens: int | None,
        address: tuple[object, object] = (None, None),
    ) -> Charge:
        """A charge to be opened. ``address`` (host, port) finds its slot later where ``key`` is not the table's.

        ``prompt_tokens`` ``None`` means the running mean of those that told.

        A length that is no number or not finite is unknown as well; one out of range is cut to it.
        """
        try:
            tokens = min(max(0, int(prompt_tokens)), PROMPT_TOKENS_LIMIT)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            tokens = int(self.mean_prompt_tokens)
        else:
            self.mean_prompt_tokens += (tokens - self.mean_prompt_tokens) * _MEAN_WEIGHT
        return Charge(key, slot, tokens, self.epoch, address)

    # -- counting -----------------------------------------------------------------------------------------

    def open(self, charge: Charge, *, first_token_visible: bool = False, hold_ns: int | None = None) -> None:
        """Count the request. ``hold_ns``: take it back by itself after that time (a pick nobody ends).

        Without ``first_token_visible`` the prefill part goes after the time a prefill of that length takes.
        """
        now = self._clock()
        if not first_token_visible:
            charge.prefill_ends = now + charge.prompt_tokens * 1_000_000_000 // PREFILL_RATE
        self._post(self._apply_open, charge)
        if hold_ns is not None:
            self._post_at(now + hold_ns, self._apply_close, charge)

    def first_token(self, charge: Charge) -> None:
        """The prefill is over: its part of the price is taken back, once."""
        self._post(self._apply_first_token, charge)

    def fail(self, charge: Charge, *, suspect: bool = False) -> None:
        """The request failed at the instance: its count stays for the hold time, marked as held.

        ``suspect``: the connection was refused; the monitor looks at that instance at once.
        """
        self._post(self._apply_suspect if suspect else self._apply_held, charge)
        self._post_at(self._clock() + self.hold_ns, self._apply_close, charge)

    def close_charge(self, charge: Charge) -> None:
        """The request ended; harmless if it already had."""
        self._post(self._apply_close, charge)

    def close_charge_later(self, charge: Charge) -> None:
        """As :meth:`close_charge`, for finalizers: only appends, the next step or housekeeping does it."""
        self._queue.append((self._apply_close, charge))

    def outstanding(self) -> int:
        """Requests this process has open, held ones included."""
        self._drain()
        return len(self._open)

    def bump(self, word: str) -> None:
        """Add one to a counter of the lane block, where there is a table."""
        attached = self.attached
        if attached is not None:
            attached.claim.bump(word)

    # -- life ---------------------------------------------------------------------------------------------

    def housekeep(self, now: int | None = None) -> None:
        """One round: queued and timed changes, the table's and the lane's health. Never raises."""
        now = self._clock() if now is None else now
        self._do(lambda: self._end_timed(now))
        if now >= self._next_audit:
            self._next_audit = now + _AUDIT_NS
            self._do(self._audit)
        if not self._closed:
            self._care(now, self._attachment.propose)
            if self.unmatched and self.current() is not None:
                self._do(self._match_again)

    def attach(self) -> None:
        """Attach now instead of at the next housekeeping."""
        if self._attachment.now is None and not self._closed:
            self._care(self._clock(), self._attachment.propose_table)

    def after_fork(self) -> None:
        """In the child: forget all that is the parent's, without touching its lane or its lock."""
        self.epoch += 1
        self._queue = deque()
        self._busy = threading.RLock()
        self._working = False
        self._caring = threading.Lock()
        self._open = set()
        self._timed = []
        self.unmatched = Unmatched()
        close_inherited_locks()
        self._attachment.forget()

    def close(self) -> None:
        """Give the lane back. Open charges are void from now on."""

        def end() -> None:
            self._closed = True
            self._open.clear()
            self._timed.clear()
            self._attachment.release()
            self.epoch += 1

        self._do(end)

    def _care(self, now: int, propose: Callable[[int], Proposal | None]) -> None:
        if not self._caring.acquire(blocking=False):
            return
        try:
            proposal = propose(now)
            if proposal is not None:
                self._do(lambda: self._accept(proposal))
        finally:
            self._caring.release()

    def _accept(self, proposal: Proposal) -> None:
        if self._closed:
            proposal.attached.claim.release()
            return
        former = self._attachment.accept(proposal)
        self._count_all_again()
        if former is not None:
            if proposal.lost:
                former.abandon()
            else:
                former.release()

    def _end_timed(self, now: int) -> None:
        while self._timed and self._timed[0][0] <= now:
            _, _, change, charge = heapq.heappop(self._timed)
            change(charge)

    # -- the queue ----------------------------------------------------------------------------------------

    def _post(self, change: Callable[[Charge], None], charge: Charge) -> None:
        self._queue.append((change, charge))
        self._drain()

    def _post_at(self, when: int, change: Callable[[Charge], None], charge: Charge) -> None:
        def schedule(charge: Charge) -> None:
            heapq.heappush(self._timed, (when, next(self._order), change, charge))

        self._post(schedule, charge)

    def _drain(self) -> None:
        # The loop closes the gap between the last look at the queue and the end of the work: what a signal
        # handler of this thread appended in there relies on this thread.
        while self._queue:
            with self._busy:
                if self._working:
                    return
                try:
                    self._working = True
                    self._work_off()
                finally:
                    self._working = False

    def _do(self, step: Callable[[], None]) -> None:
        """Run ``step`` after the changes that are queued now, with no other in between."""
        with self._busy:
            if self._working:
                return  # called from a signal handler in the middle of a change; the next round does it
            try:
                self._working = True
                self._work_off()
                step()
            finally:
                self._working = False
        self._drain()

    def _work_off(self) -> None:
        # Done first and removed afterwards: an exception that a signal handler raises in the middle leaves the
        # change in the queue, to be done again; what it did by halves the audit puts right.
        while self._queue:
            change, charge = self._queue[0]
            if charge.epoch == self.epoch:
                change(charge)
            self._queue.popleft()

    # -- changes; only ever run one at a time -------------------------------------------------------------

    def _apply_open(self, charge: Charge) -> None:
        if charge.phase != Phase.NEW:
            return
        charge.phase = Phase.PREFILL
        self._open.add(charge)
        self._count(charge)
        if charge.prefill_ends:
            entry = (charge.prefill_ends, next(self._order), self._apply_first_token, charge)
            heapq.heappush(self._timed, entry)

    def _apply_first_token(self, charge: Charge) -> None:
        if charge.phase != Phase.PREFILL or charge.held:
            return
        rows = self._rows_of(charge)
        if rows is not None and charge.slot is not None:
            counting.end_prefill(rows, charge, charge.slot)
        charge.phase = Phase.DECODE
        if charge.slot is None:
            self.unmatched.add(charge)

    def _apply_held(self, charge: Charge) -> None:
        self._hold(charge, suspect=False)

    def _apply_suspect(self, charge: Charge) -> None:
        self._hold(charge, suspect=True)

    def _hold(self, charge: Charge, *, suspect: bool) -> None:
        if charge.phase not in (Phase.PREFILL, Phase.DECODE) or charge.held:
            return
        charge.held = True
        rows = self._rows_of(charge)
        if rows is not None and charge.slot is not None:
            counting.hold(rows, charge.slot, suspect=suspect)

    def _apply_close(self, charge: Charge) -> None:
        if charge.phase not in (Phase.PREFILL, Phase.DECODE):
            return
        rows = self._rows_of(charge)
        if charge.slot is None:
            self.unmatched.remove(charge)
        elif rows is not None:
            counting.take_back(rows, charge, charge.slot)
        charge.phase = Phase.CLOSED
        self._open.discard(charge)

    def _rows_of(self, charge: Charge) -> Claim | None:
        """The rows that hold this charge now; ``None`` if they are not this process's any more."""
        attached = self._attachment.now
        if attached is None or attached.claim is not charge.home or not attached.claim.is_mine():
            return None
        return attached.claim

    def _count(self, charge: Charge) -> None:
        attached = self._attachment.now
        charge.home = None
        if attached is not None and charge.slot is not None and not attached.is_up_to_date():
            attached = self._attachment.now = attached.with_new_directory()
        holder = attached.directory.holders.get(charge.slot) if attached and charge.slot is not None else None
        if attached is not None and (holder is None or holder.id != charge.key):
            # Picked without a slot, or from a table or a slot map that has been replaced in between.
            charge.slot = attached.directory.find(charge.key, *charge.address)
            holder = attached.directory.holders[charge.slot] if charge.slot is not None else None
        if attached is None or charge.slot is None or holder is None:
            charge.slot = None
            self.unmatched.add(charge)
            return
        charge.key = holder.id
        if not attached.claim.is_mine():
            return  # lost; housekeeping claims anew and counts every open charge there
        counting.add(attached.claim, charge, charge.slot, holder.prices)
        charge.home = attached.claim

    def _count_all_again(self) -> None:
        """Move every open charge to the present rows, its slot looked up anew."""
        self.unmatched = Unmatched()
        for charge in self._open:
            charge.slot = None
            self._count(charge)

    def _match_again(self) -> None:
        """Give open charges without a slot one, where their instance has joined the table since."""
        attached = self._attachment.now
        if attached is None:
            return
        for charge in self.unmatched:
            if attached.directory.find(charge.key, *charge.address) is not None:
                self.unmatched.remove(charge)
                self._count(charge)

    def _audit(self) -> None:
        """Put the own rows right, should they not say what is open.

        They always do, unless an exception that a signal handler raised came in the middle of a change.
        """
        attached = self._attachment.now
        if attached is not None and attached.claim.is_mine() and counting.repair(attached.claim, self._open):
            logger.warning(
                "the counts of this process in table %s were not those of its open requests; they are now. A "
                "signal handler that raises in the middle of a dispatch does this",
                self.location.text,
            )


def live_row(attached: Attached, slots: Sequence[int], fade: int) -> list[int]:
    """Live values of ``slots``, what this process counts outside of the table included."""
    claim = attached.claim
    return attached.core.live(slots, fade, claim.cells if claim.private else None)
