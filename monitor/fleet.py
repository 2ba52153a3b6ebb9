"""What the monitor knows of every slot, as the arrays that a tick works on and one book per instance.

Only the monitor's event loop touches a fleet. Pollers deliver under a *key*, one per incarnation: what comes
in under a key that is gone lands nowhere.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from monitor.book import Admission, Book
from monitor.counts import Counts
from monitor.estimate.dispatched import DispatchRate
from monitor.estimate.others import Others
from monitor.estimate.queues import Queues
from monitor.estimate.sampling import sample_of
from monitor.estimate.speed import Speed
from monitor.estimate.steady import SteadyOwn
from monitor.polled import Polled
from monitor.polling.failure import FailureKind
from monitor.polling.health import EVENT_OF, Health, HealthEvent, transition
from monitor.pools import Pools
from monitor.sample import Reading, Sample
from monitor.totals import Totals
from score_table.identity import Prices
from score_table.layout import Mark

log = logging.getLogger("loadboard.monitor")

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: A sample dated later than this against the clock is a clock mismatch, not a fresh sample.
FUTURE_LIMIT_NS = 1_000_000_000


class Fleet:
    """All slots of one table. Implements the pollers' sink: :meth:`sampled`, :meth:`failed`."""

    def __init__(self, capacity: int, *, staleness_s: float, pools: Pools) -> None:
        self.staleness_s = staleness_s
        self.pools = pools
        self.polled = Polled(capacity)
        self.others = Others(capacity)
        self.queues = Queues(capacity)
        self.steady_own = SteadyOwn(capacity)
        self.speed = Speed(capacity)
        self.dispatched = DispatchRate(capacity)
        self.totals = Totals(capacity)
        self.books: dict[int, Book] = {}
        #: Slots whose detail record has something new to say.
        self.changed: set[int] = set()

        self.marks = np.full(capacity, Mark.UNUSED, dtype=np.int8)
        self.up = np.zeros(capacity, dtype=np.bool_)
        self.frozen = np.zeros(capacity, dtype=np.bool_)
        self.load_known = np.zeros(capacity, dtype=np.bool_)
        self.sample_boot_ns = np.zeros(capacity, dtype=np.int64)
        self.kv_capacity = np.full(capacity, np.nan)
        self.slots = np.full(capacity, np.nan)
        self.price_request = np.zeros(capacity)
        self.price_prompt_token = np.zeros(capacity)
        self.price_kv_token = np.zeros(capacity)

        self._slot_of: dict[int, int] = {}
        self._counts: Counts | None = None
        self._mono_ns = self._boot_ns = 0

    # Membership

    def admit(self, slot: int, key: int, admission: Admission, mono_ns: int) -> None:
        """A new incarnation in ``slot``. Nothing of an earlier one is left."""
        self.drop(slot)
        book = self.books[slot] = Book(admission, key, mono_ns)
        self._slot_of[key] = slot
        pool = self.pools.place(slot, admission.tags, admission.weight)
        self.others.begin(slot, pool.at)
        self.queues.begin(slot, pool.at)
        self.marks[slot] = book.mark
        self._size(slot, book)
        self._price(slot, admission.prices)
        self.dispatched.clear(slot, mono_ns)
        self.totals.begin(slot)
        self.changed.add(slot)

    def readmit(self, slot: int, key: int, admission: Admission) -> None:
        """The same incarnation with other settings: late answers under the old key land nowhere."""
        book = self.books[slot]
        self._slot_of.pop(book.key, None)
        self._slot_of[key] = slot
        before, book.key, book.admission = book.admission, key, admission
        self.pools.place(slot, admission.tags, admission.weight)
        self.marks[slot] = book.mark
        self._size(slot, book)
        self._price(slot, admission.prices)
        self.changed.add(slot)
        if admission.draining != before.draining:
            told = "draining, it gets no new requests" if admission.draining else "no longer draining"
            log.info("%s: %s", admission.instance_id, told)

    def drop(self, slot: int) -> None:
        """The instance is gone. Its slot is unused until the next :meth:`admit`."""
        book = self.books.pop(slot, None)
        if book is not None:
            self._slot_of.pop(book.key, None)
        self.pools.remove(slot)
        self.marks[slot] = Mark.UNUSED
        self.up[slot] = self.frozen[slot] = self.load_known[slot] = False
        self.sample_boot_ns[slot] = 0
        self.kv_capacity[slot] = self.slots[slot] = np.nan
        for array in (self.price_request, self.price_prompt_token, self.price_kv_token):
            array[slot] = 0.0
        self.polled.clear(slot)
        self.others.clear(slot)
        self.queues.clear(slot)
        self.steady_own.clear(slot)
        self.speed.clear(slot)
        self.changed.discard(slot)

    # The lanes

    def counted(self, counts: Counts, mono_ns: int, boot_ns: int) -> None:
        """The lanes were read: ``counts`` is what this host has there until the next call."""
        self._counts = counts
        self.totals.counted(counts)
        self._mono_ns, self._boot_ns = mono_ns, boot_ns
        self.dispatched.counted(counts.dispatched, mono_ns)

    def jumped(self, slots: Sequence[int]) -> None:
        """The counts of ``slots`` have changed by other than dispatches and ends; :meth:`counted` has the new ones.

        What was derived from their difference to a poll is void.
        """
        self.others.reseed(slots)
        self.queues.reseed(slots)
        if self._counts is not None:
            self.polled.counted(slots, self._counts)

    # The pollers' sink

    def sampled(self, key: int, reading: Reading, engine: str, boot_ns: int, mono_ns: int) -> None:
        """A poll answered. ``boot_ns`` and ``mono_ns`` say when its answer had arrived."""
        slot = self._slot_of.get(key)
        if slot is None:
            return
        book = self.books[slot]
        rates = book.rates.update(mono_ns, reading)
        if rates.restarted:
            log.info("%s: the engine was restarted, its counters began anew", book.admission.instance_id)
            self.speed.clear(slot)
        sample = sample_of(reading, rates, engine, boot_ns)
        book.sample = sample
        book.failures = 0
        book.ways_to_fail.clear()
        book.repeats.counted(HealthEvent.SAMPLE)
        self.pools.at(slot).means.sampled(sample.qps_1m, rates.mean_prompt_tokens, rates.throughput, mono_ns)
        counts = self._counts
        open_here, ended_here = (
            (int(counts.outstanding[slot] - counts.held[slot]), int(counts.ended[slot])) if counts else (0, 0)
        )
        frozen = book.frozen.judge(reading, sample.inflight, mono_ns, open_here, ended_here)
        # An answer that stands still at some work says nothing of the time that it takes.
        if book.frozen.moved or not sample.running:
            self.speed.sampled(slot, sample.running, sample.throughput, mono_ns)
        if frozen and not self.frozen[slot]:
            log.warning(
                "%s: claims %g requests (this host has %d there) but nothing in its answers has moved for %g s; "
                "its gauges are not believed until they move",
                book.admission.instance_id,
                sample.inflight,
                open_here,
                book.frozen.after_s,
            )
        self._take_in(slot, book, sample, frozen, mono_ns)
        self._happened(slot, HealthEvent.SAMPLE, _remark(sample, book.frozen.after_s if frozen else None))

    def failed(self, key: int, kind: FailureKind, reason: str, mono_ns: int) -> None:
        """A poll gave no sample, for ``reason``."""
        slot = self._slot_of.get(key)
        if slot is None:
            return
        book = self.books[slot]
        # The record and the log line name the instance themselves.
        reason = reason.removeprefix(f"instance {book.admission.instance_id}: ")
        book.failures += 1
        book.failure = reason
        book.failure_boot_ns = self._boot_ns + mono_ns - self._mono_ns
        event = book.repeats.counted(EVENT_OF[kind])
        if event is HealthEvent.REFUSED and not book.admission.polls_itself:
            # Only the address of the metrics refused; the one that serves may be well.
            event = HealthEvent.FAILED
        logged = self._happened(slot, event, reason)
        # One that is up may miss a poll. Of any other, each way to fail is told once.
        if not logged and book.health is not Health.UP and kind not in book.ways_to_fail:
            log.warning("%s: still %s (%s)", book.admission.instance_id, book.health.value, reason)
        book.ways_to_fail.add(kind)

    def states(self) -> dict[Health, int]:
        """How many instances are in each state; those without any are left out."""
        found = [book.health for book in self.books.values()]
        return {health: found.count(health) for health in Health if health in found}

    # Ageing

    def fresh(self, n: int, boot_ns: int) -> BoolArray:
        """Which of the first ``n`` slots have a sample that counts at ``boot_ns``; others that had one expire.

        Ages are signed: a sample dated slightly in the future is fresh, one far in the future is none.
        """
        age_ns = boot_ns - self.sample_boot_ns[:n]
        fresh: BoolArray = self.up[:n] & (age_ns <= self.staleness_s * 1e9) & (age_ns >= -FUTURE_LIMIT_NS)
        if np.count_nonzero(fresh) != np.count_nonzero(self.up[:n]):
            for slot in np.flatnonzero(self.up[:n] & ~fresh).tolist():
                self._expired(slot, float(age_ns[slot]) / 1e9)
        return fresh

    def _expired(self, slot: int, age_s: float) -> None:
        book = self.books[slot]
        if age_s < 0:
            reason = f"its sample is dated {-age_s:.1f} s in the future: the clocks of the host do not match"
        elif book.failures:
            reason = book.failure
        else:
            reason = f"no sample for {age_s:.1f} s"
        self._happened(slot, HealthEvent.EXPIRED, reason)

    def _take_in(self, slot: int, book: Book, sample: Sample, frozen: bool, mono_ns: int) -> None:
        admission = book.admission
        self.frozen[slot] = frozen
        self.sample_boot_ns[slot] = sample.taken_boot_ns
        self.load_known[slot] = sample.inflight is not None
        self.polled.sampled(slot, sample)
        self._size(slot, book)
        counts = self._counts
        # The last read of the lanes, at most a tick old: the engine's gauges are older than its answer too.
        outstanding, held, pending = (
            (int(counts.outstanding[slot]), int(counts.held[slot]), int(counts.prompt_tokens[slot]))
            if counts is not None
            else (0, 0, 0)
        )
        if counts is not None:
            self.polled.counted(slot, counts)
        if sample.inflight is not None and not frozen:
            cold = admission.cold and mono_ns - book.admitted_ns <= self.staleness_s * 1e9
            foreign = sample.inflight - (outstanding - held)
            at = (mono_ns, admission.interval_s, self.staleness_s, cold)
            self.others.sampled(slot, foreign, *at)
            # Which of the own tokens belong to held requests nobody counts: their share of the requests.
            own_tokens = pending * (1.0 - held / outstanding) if outstanding else 0.0
            prompt_tokens = self.pools.at(slot).means.prompt_tokens
            self.queues.sampled(slot, sample.queued_tokens, sample.waiting, own_tokens, prompt_tokens, at)

    def _price(self, slot: int, prices: Prices) -> None:
        self.price_request[slot] = prices.request
        self.price_prompt_token[slot] = prices.prompt_token
        self.price_kv_token[slot] = prices.kv_token

    def _size(self, slot: int, book: Book) -> None:
        sample, admission = book.sample, book.admission
        self.kv_capacity[slot] = _first_known(sample.kv_capacity if sample else None, admission.kv_capacity)
        self.slots[slot] = _first_known(sample.slots if sample else None, admission.slots)

    def _happened(self, slot: int, event: HealthEvent, reason: str) -> bool:
        """Whether it changed the state of the instance, which is logged."""
        book = self.books[slot]
        before, book.health = book.health, transition(book.health, event)
        if event is HealthEvent.SAMPLE or book.health is not Health.UP:
            book.reason = reason
        self.up[slot] = book.health is Health.UP
        self.marks[slot] = book.mark
        self.changed.add(slot)
        if book.health is before:
            return False
        bad = book.health in (Health.STALE, Health.UNREACHABLE)
        log.log(
            logging.WARNING if bad else logging.INFO,
            "%s: %s, was %s%s",
            book.admission.instance_id,
            book.health.value,
            before.value,
            f" ({book.reason})" if book.reason else "",
        )
        return True


def _remark(sample: Sample, frozen_s: float | None) -> str:
    if frozen_s is not None:
        return f"its gauges have not moved for {frozen_s:g} s and are not believed"
    return "; ".join(sample.problems)


def _first_known(*values: float | None) -> float:
    return next((float(value) for value in values if value is not None), math.nan)
