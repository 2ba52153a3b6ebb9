"""The detail records: which of them are due at a tick, and what they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monitor.fleet import Fleet
from monitor.overload import Overload
from monitor.pools import Pool
from monitor.sample import Sample
from monitor.scores import Loads, Taken, failing, taken
from score_table.records import Detail

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Every record is written at least this often, also when nothing has happened to its slot, as far as
#: ``MOST_PER_TICK`` allows: at 20 ms, up to 150 instances.
PERIOD_S = 0.5
#: Records per tick from which on none is written to which nothing has happened.
MOST_PER_TICK = 6


class DetailTable(Protocol):
    """The part of :class:`score_table.writer.TableWriter` that the records need."""

    def write_detail(self, slot: int, detail: Detail) -> None:
        """Replace the slot's detail record."""


class Details:
    """Writes the records of slots to which something happened, and a few of the rest in rotation."""

    def __init__(self, table: DetailTable, fleet: Fleet) -> None:
        self._table = table
        self._fleet = fleet
        self._next = 0
        self._due = 0.0
        self._last_ns: int | None = None

    def write(
        self,
        mono_ns: int,
        parts: Sequence[tuple[Pool, Loads]],
        loads: Loads,
        score: FloatArray,
        known: BoolArray,
        overload: Overload | None,
    ) -> None:
        """Those that are due at ``mono_ns``, from what this tick has found for each slot; ``parts`` are the ``loads``
        pool by pool."""
        n = len(score)
        elapsed_s = 0.0 if self._last_ns is None else (mono_ns - self._last_ns) / 1e9
        self._last_ns = mono_ns
        self._due = min(self._due + max(elapsed_s, 0.0) / PERIOD_S * n, float(n))
        due = self._fleet.changed
        for _ in range(min(int(self._due), MOST_PER_TICK - len(due))):
            self._next = (self._next + 1) % n
            due.add(self._next)
        self._due %= 1.0
        books = self._fleet.books
        beside = _beside(parts, n)
        arrays = (loads.own, loads.others, loads.n, loads.pending, loads.kv, loads.speed, loads.prompt, score)
        for slot in due:
            if slot < n and slot in books:
                values = [array.item(slot) for array in arrays]
                others = [_or_none(array.item(slot)) for array in beside]
                pool = self._fleet.pools.at(slot)
                why = "" if overload is None else overload.reason(slot, pool.rules.limits)
                self._table.write_detail(slot, self._detail(slot, pool, values, others, not known[slot], why))
        due.clear()

    def _detail(
        self,
        slot: int,
        pool: Pool,
        parts: list[float],
        beside: list[float | None],
        estimated: bool,
        avoided: str,
    ) -> Detail:
        fleet, book = self._fleet, self._fleet.books[slot]
        sample = book.sample or NOTHING
        dispatched, ended = fleet.totals.of(slot)
        if not all(map(math.isfinite, parts)):
            parts = [part if math.isfinite(part) else 0.0 for part in parts]
        own, others, requests, pending, kv, speed, prompt, score = parts
        queued, waiting, qps_1m = beside
        return Detail(
            generation=book.admission.generation,
            state=book.health.value,
            reason="; ".join(filter(None, (failing(pool.mode), avoided, book.reason))),
            engine=sample.engine,
            mode=pool.mode.name,
            pool=pool.text,
            estimated=estimated,
            sample_boot_ns=sample.taken_boot_ns,
            failure_boot_ns=book.failure_boot_ns,
            failures=book.failures,
            dispatched=dispatched,
            ended=ended,
            inflight=sample.inflight,
            running=sample.running,
            waiting=sample.waiting,
            qps_1m=fleet.dispatched.per_s(slot) if sample.qps_1m is None else sample.qps_1m,
            kv_usage=sample.kv_usage,
            queued_tokens=sample.queued_tokens,
            throughput=sample.throughput,
            kv_capacity=_or_none(fleet.kv_capacity.item(slot)),
            slots=_or_none(fleet.slots.item(slot)),
            own=own,
            others=others,
            requests=requests,
            pending=pending,
            kv_demand=kv,
            speed=speed,
            prompt_tokens=prompt,
            score=score,
            others_queued=queued,
            others_waiting=waiting,
            scored_qps=qps_1m,
            share=fleet.pools.share.item(slot),
        )


#: Stands in for the sample of an instance that has given none.
NOTHING = Sample(taken_boot_ns=0)


def _beside(parts: Sequence[tuple[Pool, Loads]], n: int) -> list[FloatArray]:
    """What only some modes take in, over all ``n`` slots: NaN where the pool's mode does not."""
    rows = [np.full(n, np.nan) for _ in Taken._fields]
    for pool, loads in parts:
        for row, values in zip(rows, taken(pool.mode, loads), strict=True):
            if values is not None:
                row[pool.at] = values
    return rows


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
