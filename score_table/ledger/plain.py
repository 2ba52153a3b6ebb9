"""The ledger in Python: the oracle, and what counts where there is no compiler.

Every change is appended to a queue and worked off at once, under a lock that is held for microseconds and
never across I/O. A signal handler or a finalizer that comes in the middle of a change of its own thread only
appends; the interrupted code works it off. So no change interrupts another one halfway, and none waits for
more than another one.
"""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from score_table.claim import Claim
from score_table.identity import Directory
from score_table.layout import Reason
from score_table.ledger import counting
from score_table.ledger.charge import Charge, Phase, PlainSeat
from score_table.ledger.guard import PlainGuard
from score_table.ledger.rules import (
    FIRST_PROMPT_TOKENS,
    HOLD_STEP,
    MEAN_WEIGHT,
    NOMINAL,
    PREFILL_RATE,
    UNGUARDED_LIMIT,
    Picked,
    Seat,
    Settled,
    guess,
    held_ns,
    tokens_of,
)
from score_table.pick import PickCore

#: Never used twice in a process, so that a seat of another ledger is one that is not settled.
_versions = itertools.count(1)
_OPEN = (Phase.PREFILL, Phase.DECODE)


class PlainLedger:
    """See :class:`score_table.ledger.rules.Ledger`."""

    def __init__(self, clock: Callable[[], int] | None, hold_ns: int) -> None:
        self.version = next(_versions)  # a new seat has version 0: not settled
        self.mean_prompt_tokens = FIRST_PROMPT_TOKENS
        self._clock = clock or time.monotonic_ns
        self._hold_ns = hold_ns
        self._claim: Claim | None = None
        self._directory: Directory | None = None
        self._pid = os.getpid()
        self._open: dict[Charge, None] = {}
        self._unguarded: dict[Charge, None] = {}  #: of these, those that end by time; the oldest first
        self._timed: list[tuple[int, int, Callable[[Charge], None], Charge]] = []
        self._order = itertools.count()
        self._start_anew()

    def _start_anew(self) -> None:
        self._queue: deque[tuple[Callable[[Charge], None], Charge]] = deque()
        self._busy = threading.RLock()
        self._working = False  #: under ``_busy``: this very thread is in the middle of a change

    # -- the contract -------------------------------------------------------------------------------------

    def seat(self, key: str, host: str | None, port: int | None) -> PlainSeat:
        return PlainSeat(key, host, port, self._hold_ns)

    def attach(self, claim: Claim, core: PickCore, directory: Directory, settled: list[Settled]) -> int:
        def change() -> None:
            self._claim, self._pid = claim, os.getpid()
            self._settle(settled)
            self._count_all_again()

        return self._follow(directory, change)

    def settle(self, directory: Directory, settled: list[Settled]) -> int:
        def change() -> None:
            self._settle(settled)
            if self._rows is not None and self._rows.private:
                # The monitor cannot see that a slot is still in use here, and may give it to another.
                self._rows.clear()
                self._count_all_again()
                return
            for charge in self._open:
                if charge.slot is None and self._slot_of(charge) is not None:
                    charge.seat.units -= charge.added
                    self._count(charge)

        return self._follow(directory, change)

    def _follow(self, directory: Directory, change: Callable[[], None]) -> int:
        done = False

        def step() -> None:
            nonlocal done
            if directory.is_up_to_date():
                self._directory = directory
                change()
                done = True

        self._do(step)
        return self.version if done else 0

    def void(self, *, forked: bool) -> None:
        if forked:
            self._start_anew()

        def change() -> None:
            self._queue.clear()
            self._timed.clear()
            self._claim = None
            self.version = next(_versions)
            for charge in self._open:
                charge.phase = Phase.CLOSED
                charge.seat.units = charge.seat.open = 0
            self._open.clear()
            self._unguarded.clear()

        self._do(change)

    def dispatch(
        self,
        instance: Picked,
        seat: Any,
        prompt_tokens: Any,
        first_token_visible: bool,
        reason: int = 0,
    ) -> PlainGuard[Picked]:
        charge = self._charge(seat, prompt_tokens, bool(first_token_visible), reason, self._clock())
        guard = PlainGuard(instance, self, charge)  # before it counts, so that nothing counted is ever lost
        self._post(self._apply_open, charge)
        return guard

    def hold(self, seat: Any, reason: int = 0) -> None:
        now = self._clock()
        charge = self._charge(seat, None, False, reason, now)
        self._post(self._apply_open, charge)
        seat.turn = seat.turn + HOLD_STEP & 0xFFFFFFFF
        self._post_at(now + held_ns(seat.hold_ns, seat.turn), self._apply_close, charge)
        self._post(self._apply_unguarded, charge)

    def picker(self, seat_of: Callable[[Any], Seat]) -> None:
        return None

    def housekeep(self, now_ns: int) -> None:
        def change() -> None:
            while self._timed and self._timed[0][0] <= now_ns:
                _, _, step, charge = heapq.heappop(self._timed)
                step(charge)

        self._do(change)

    def audit(self) -> bool:
        wrong = False

        def change() -> None:
            nonlocal wrong
            rows = self._rows
            wrong = rows is not None and rows.is_mine() and counting.repair(rows, self._open)

        self._do(change)
        return wrong

    def outstanding(self) -> int:
        self._drain()
        return len(self._open)

    # -- for the guards -----------------------------------------------------------------------------------

    def first_token(self, charge: Charge) -> None:
        """The prefill is over: its part of the price is taken back, once."""
        self._post(self._apply_first_token, charge)

    def fail(self, charge: Charge, *, suspect: bool) -> None:
        """The request failed at the instance: its count stays for the hold time, marked as held."""
        self._post(self._apply_suspect if suspect else self._apply_held, charge)
        self._post_at(self._clock() + self._hold_ns, self._apply_close, charge)
        self._post(self._apply_unguarded, charge)

    def close(self, charge: Charge) -> None:
        """The request ended; harmless if it already had."""
        self._post(self._apply_close, charge)

    def close_later(self, charge: Charge) -> None:
        """As :meth:`close`, for finalizers: only appends, the next step or housekeeping does it."""
        self._queue.append((self._apply_close, charge))

    @property
    def _rows(self) -> Claim | None:
        """The rows to count in; ``None``: there are none, or they are those of the process that forked this one."""
        return self._claim if self._pid == os.getpid() else None

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

    def _do(self, step: Callable[[], None]) -> bool:
        """Run ``step`` after the changes that are queued now, with no other in between.

        False, and nothing is done, where a signal handler asks for it in the middle of a change.
        """
        with self._busy:
            if self._working:
                return False
            try:
                self._working = True
                self._work_off()
                step()
            finally:
                self._working = False
        self._drain()
        return True

    def _work_off(self) -> None:
        # Done first and removed afterwards: an exception that a signal handler raises in the middle leaves the
        # change in the queue, to be done again; what it did by halves the audit puts right.
        while self._queue:
            change, charge = self._queue[0]
            change(charge)
            self._queue.popleft()

    # -- changes; only ever run one at a time -------------------------------------------------------------

    def _charge(
        self, seat: PlainSeat, prompt_tokens: Any, first_token_visible: bool, reason: int, now: int
    ) -> Charge:
        tokens = tokens_of(prompt_tokens)
        if tokens is None:
            seat.guessed = True
            begins = Phase.PREFILL if first_token_visible else Phase.DECODE
            tokens = guess(seat.prompt_tokens, self.mean_prompt_tokens)
            return Charge(seat, tokens, 0, Reason(reason), guessed=True, begins=begins)
        self.mean_prompt_tokens += (tokens - self.mean_prompt_tokens) * MEAN_WEIGHT
        prefill_ends = 0 if first_token_visible else now + tokens * 10**9 // PREFILL_RATE
        return Charge(seat, tokens, prefill_ends, Reason(reason))

    def _settle(self, settled: Iterable[Any]) -> None:
        self.version = next(_versions)
        for seat, slot, *prices, moved in settled:
            seat.settle(self.version, slot, *prices)
            seat.incarnation += moved

    def _slot_of(self, charge: Charge) -> int | None:
        """Where to count it: nowhere, where its id belongs to another address by now."""
        seat = charge.seat
        here = seat.version == self.version and seat.incarnation == charge.incarnation
        return seat.slot if here and self._rows is not None else None

    def _count(self, charge: Charge) -> None:
        """Count ``charge`` where its seat says now.

        By an outdated slot map nothing is counted in a row: the slot may have another holder. The next slot map
        moves it to the right one.
        """
        current = self._directory is not None and self._directory.is_up_to_date()
        charge.slot, charge.home = self._slot_of(charge) if current else None, None
        if charge.slot is None:
            counting.price(charge, NOMINAL)
            charge.seat.units += charge.added
        elif self._rows is not None and self._rows.is_mine():
            counting.add(self._rows, charge, charge.slot)
            charge.home = self._rows
        # else the lane is lost: housekeeping claims anew and counts every open charge there

    def _count_all_again(self) -> None:
        for charge in self._open:
            charge.seat.units = 0
            charge.dispatched = True  # what a process brings along was not dispatched in this lane
        for charge in self._open:
            self._count(charge)

    def _rows_of(self, charge: Charge) -> Claim | None:
        """The rows that hold this charge now; ``None`` if they are not this process's any more."""
        rows = self._rows
        return rows if rows is not None and rows is charge.home and rows.is_mine() else None

    def _apply_open(self, charge: Charge) -> None:
        if charge.phase != Phase.NEW:
            return
        charge.phase = charge.begins
        charge.seat.open += 1
        self._open[charge] = None
        self._count(charge)
        if charge.prefill_ends:
            entry = (charge.prefill_ends, next(self._order), self._apply_first_token, charge)
            heapq.heappush(self._timed, entry)

    def _apply_first_token(self, charge: Charge) -> None:
        if charge.phase != Phase.PREFILL or charge.held:
            return
        rows = self._rows_of(charge)
        if charge.slot is None:
            charge.seat.units -= charge.added_prefill
        elif rows is not None:
            counting.end_prefill(rows, charge, charge.slot)
        charge.added_prefill = 0
        charge.phase = Phase.DECODE

    def _apply_held(self, charge: Charge) -> None:
        self._hold(charge, suspect=False)

    def _apply_suspect(self, charge: Charge) -> None:
        self._hold(charge, suspect=True)

    def _hold(self, charge: Charge, *, suspect: bool) -> None:
        if charge.phase not in _OPEN or charge.held:
            return
        charge.held = True
        rows = self._rows_of(charge)
        if rows is not None and charge.slot is not None:
            counting.hold(rows, charge.slot, suspect=suspect)

    def _apply_unguarded(self, charge: Charge) -> None:
        if charge.phase not in _OPEN:
            return
        self._unguarded[charge] = None
        if len(self._unguarded) > UNGUARDED_LIMIT:
            self._apply_close(next(iter(self._unguarded)))

    def _apply_close(self, charge: Charge) -> None:
        if charge.phase not in _OPEN:
            return
        rows = self._rows_of(charge)
        if charge.slot is None:
            charge.seat.units -= charge.added
        elif rows is not None:
            counting.take_back(rows, charge, charge.slot)
        charge.phase = Phase.CLOSED
        charge.seat.open -= 1
        self._open.pop(charge, None)
        self._unguarded.pop(charge, None)
