"""The tick: read the lanes once, score every slot exactly, anchor the table at that, beat.

A dispatch adds a linear price to its own lane cell, while the score is not linear. Every tick therefore
writes ``base = S - price(natural units)`` from one read of the lanes: at that moment each live value in the
table is the exact score, and until the next tick it moves by the prices. ``rest`` is what others have there,
for the day the monitor is gone.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monitor.counts import Counts
from monitor.estimate.kv import KvView, kv_demand
from monitor.fleet import Fleet
from monitor.reclaim import Jumps
from monitor.scores.base import Loads, ScoreMode, requests
from score_table.layout import UNITS, Mark
from score_table.pick.rules import marked
from score_table.records import Detail

log = logging.getLogger("loadboard.monitor")

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Units by which a cell can lie below the price of its natural units, per request: its parts are rounded.
ROUNDING = 1.5
#: Every detail record is written at least this often, also when nothing has happened to its slot.
DETAIL_PERIOD_S = 0.5


class Table(Protocol):
    """The part of :class:`score_table.writer.TableWriter` that a tick needs."""

    @property
    def n(self) -> int:
        """Slots in use so far."""

    def naturals(self) -> Counts:
        """The lanes' natural units, summed over lanes."""

    def publish(self, base: NDArray[np.int32], rest: NDArray[np.int32], heartbeat_ns: int) -> None:
        """Write both rows over ``[0, n)``, then the heartbeat."""

    def write_detail(self, slot: int, detail: Detail) -> None:
        """Replace the slot's detail record."""


@dataclass(frozen=True)
class Rules:
    """What of the configuration a tick goes by."""

    nominal_kv_capacity: float = 400_000.0  #: tokens, where no instance tells its own
    speed_dead_band: float = 0.10  #: deviation from the fleet's mean speed that counts as none
    avoid_unknown: bool = False  #: instances without a known load are avoided, not estimated


class Ticker:
    """Scores a fleet and publishes it. Pure but for the table: time comes with every call."""

    def __init__(self, table: Table, fleet: Fleet, mode: ScoreMode, rules: Rules) -> None:
        self._table = table
        self._fleet = fleet
        self._mode = mode
        self._rules = rules
        #: Scores so far that were not finite and were replaced by the request count.
        self.unsound = 0
        self._unsound: set[int] = set()
        self._jumps = Jumps()
        self._suspects: NDArray[np.int64] | None = None
        self._next_detail = 0
        self._details_due = 0.0
        self._last_ns: int | None = None

    def configure(self, mode: ScoreMode, rules: Rules) -> None:
        """Go by other options from the next tick on. Prices stay those of each slot's generation."""
        self._mode, self._rules = mode, rules

    def tick(self, mono_ns: int, boot_ns: int) -> list[int]:
        """One tick at ``mono_ns`` (CLOCK_MONOTONIC) = ``boot_ns`` (CLOCK_BOOTTIME).

        Returns the slots that a worker newly suspects: its connection there was refused.
        """
        fleet, n = self._fleet, self._table.n
        counts = self._table.naturals()
        fleet.counted(counts, mono_ns, boot_ns)
        fleet.jumped(self._jumps.seen(counts))
        known, avoidable = self._known(n, boot_ns)
        loads = self._loads(counts, known, mono_ns)
        score, others = self._sound(self._mode.score(loads), loads)
        price = np.minimum(
            counts.outstanding[:n] * fleet.price_request[:n]
            + counts.prompt_tokens[:n] * fleet.price_prompt_token[:n]
            + counts.kv_tokens[:n] * fleet.price_kv_token[:n],
            # Less where a cell stopped at its limit: what is not in the cells must not be taken off the base.
            counts.cells[:n] + ROUNDING * counts.outstanding[:n],
        )
        marks = fleet.marks[:n]
        if self._rules.avoid_unknown:
            marks = np.where((marks == Mark.NONE) & avoidable, np.int8(Mark.AVOIDED), marks)
        self._table.publish(marked(score * UNITS - price, marks), marked(others * UNITS, marks), mono_ns)
        self._write_details(n, mono_ns, loads, score, known)
        return self._newly_suspected(counts)

    def _known(self, n: int, boot_ns: int) -> tuple[BoolArray, BoolArray]:
        """Slots whose sample is believed; and slots that ``unknown = "avoid"`` is about.

        One whose gauges stand still is not believed but not avoided either: only a request moves them again.
        """
        fleet = self._fleet
        told = fleet.fresh(n, boot_ns) & fleet.load_known[:n]
        return told & ~fleet.frozen[:n], ~told

    def _loads(self, counts: Counts, known: BoolArray, mono_ns: int) -> Loads:
        fleet, n = self._fleet, len(known)
        own = counts.outstanding[:n].astype(np.float64)
        tokens = counts.kv_tokens[:n].astype(np.float64)
        others = np.maximum(fleet.others.now(known, mono_ns), -fleet.steady_own.least(own, mono_ns))
        n_requests = requests(own, others)
        believed = fleet.up[:n] & ~fleet.frozen[:n]
        view = KvView(
            own_tokens=tokens,
            others=others,
            n=n_requests,
            usage=np.where(believed, fleet.usage[:n], np.nan),
            tokens_at_poll=fleet.tokens_at_poll[:n],
            capacity=fleet.kv_capacity[:n],
            known=known,
        )
        means = fleet.means
        return Loads(
            own=own,
            others=others,
            n=n_requests,
            pending=counts.prompt_tokens[:n].astype(np.float64),
            kv=kv_demand(view, means.prompt_tokens, means.generated_tokens, self._rules.nominal_kv_capacity),
            speed=fleet.speed.factors(known, self._rules.speed_dead_band),
            slots=fleet.slots[:n],
        )

    def _sound(self, score: FloatArray, loads: Loads) -> tuple[FloatArray, FloatArray]:
        """Score and ``others``, with the plain request count where a score is not finite.

        Every input is bounded, so this is a second wall: nothing non-finite may reach the table, and one
        bad slot must not keep the others from being published.
        """
        sound = np.isfinite(score) & np.isfinite(loads.others)
        if sound.all():
            self._unsound.clear()
            return score, loads.others
        bad = set(np.flatnonzero(~sound).tolist())
        self.unsound += len(bad)
        for slot in bad - self._unsound:
            log.error(
                "slot %d has the score %s: counted requests are used instead; this is a fault of the monitor, "
                "please report it",
                slot,
                score[slot],
            )
        self._unsound = bad
        return np.where(sound, score, loads.own + 1.0), np.where(np.isfinite(loads.others), loads.others, 0.0)

    def _newly_suspected(self, counts: Counts) -> list[int]:
        before, self._suspects = self._suspects, counts.suspects.copy()
        if before is None or (self._suspects == before).all():
            return []
        slots: list[int] = np.flatnonzero(self._suspects > before).tolist()
        return slots

    def _write_details(self, n: int, mono_ns: int, loads: Loads, score: FloatArray, known: BoolArray) -> None:
        """The records of slots to which something happened, and a few of the rest in rotation."""
        elapsed_s = 0.0 if self._last_ns is None else (mono_ns - self._last_ns) / 1e9
        self._last_ns = mono_ns
        self._details_due = min(self._details_due + max(elapsed_s, 0.0) / DETAIL_PERIOD_S * n, float(n))
        due = self._fleet.changed
        for _ in range(int(self._details_due)):
            self._next_detail = (self._next_detail + 1) % n
            due.add(self._next_detail)
        self._details_due %= 1.0
        for slot in due:
            if slot < n and slot in self._fleet.books:
                self._table.write_detail(slot, self._detail(slot, loads, score, known))
        due.clear()

    def _detail(self, slot: int, loads: Loads, score: FloatArray, known: BoolArray) -> Detail:
        fleet, book = self._fleet, self._fleet.books[slot]
        sample = book.sample
        qps_1m = sample.qps_1m if sample else None
        dispatched, ended = fleet.totals(slot)
        return Detail(
            generation=book.admission.generation,
            state=book.health.value,
            reason=book.reason,
            engine=sample.engine if sample else "",
            estimated=not known[slot],
            sample_boot_ns=sample.taken_boot_ns if sample else 0,
            failure_boot_ns=book.failure_boot_ns,
            failures=book.failures,
            dispatched=dispatched,
            ended=ended,
            inflight=sample.inflight if sample else None,
            running=sample.running if sample else None,
            waiting=sample.waiting if sample else None,
            qps_1m=fleet.dispatched.per_s(slot) if qps_1m is None else qps_1m,
            kv_usage=sample.kv_usage if sample else None,
            queued_tokens=sample.queued_tokens if sample else None,
            throughput=sample.throughput if sample else None,
            kv_capacity=_or_none(fleet.kv_capacity[slot]),
            slots=_or_none(fleet.slots[slot]),
            own=_finite(loads.own[slot]),
            others=_finite(loads.others[slot]),
            requests=_finite(loads.n[slot]),
            pending=_finite(loads.pending[slot]),
            kv_demand=_finite(loads.kv[slot]),
            speed=_finite(loads.speed[slot]),
            score=_finite(score[slot]),
        )


def _or_none(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _finite(value: float) -> float:
    return float(value) if math.isfinite(value) else 0.0
