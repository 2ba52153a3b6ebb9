"""The tick: read the lanes once, score every slot exactly, anchor the table at that, beat.

A dispatch adds a linear price to its own lane cell, while the score is not linear. Every tick therefore
writes ``base = S - price(natural units)`` from one read of the lanes: at that moment each live value in the
table is the exact score, and until the next tick it moves by the prices. ``rest`` is what others have there,
for the day the monitor is gone. Both are divided by the share that the instance's weight gives it, and so
are the prices.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monitor.counts import Counts
from monitor.details import Details, DetailTable
from monitor.fleet import Fleet
from monitor.loads import Lanes, loads_of
from monitor.overload import Overload, changed
from monitor.pools import Pool, joined
from monitor.reclaim import Jumps
from monitor.scores import Loads
from score_table.layout import UNITS, Mark
from score_table.pick.rules import marked

log = logging.getLogger("loadboard.monitor")

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Units by which a cell can lie below the price of its natural units, per request: its parts are rounded.
ROUNDING = 1.5


class Table(DetailTable, Protocol):
    """The part of :class:`score_table.writer.TableWriter` that a tick needs."""

    @property
    def n(self) -> int:
        """Slots in use so far."""

    def naturals(self) -> Counts:
        """The lanes' natural units, summed over lanes."""

    def publish(self, base: NDArray[np.int32], rest: NDArray[np.int32], heartbeat_ns: int) -> None:
        """Write both rows over ``[0, n)``, then the heartbeat."""


class Ticker:
    """Scores a fleet and publishes it. Pure but for the table: time comes with every call."""

    def __init__(self, table: Table, fleet: Fleet) -> None:
        self._table = table
        self._fleet = fleet
        #: Scores so far that were not finite and were replaced by the request count.
        self.unsound = 0
        self._unsound: set[int] = set()
        self._jumps = Jumps()
        self._suspects: NDArray[np.int64] | None = None
        self._details = Details(table, fleet)
        self._overload: Overload | None = None

    def tick(self, mono_ns: int, boot_ns: int) -> list[int]:
        """One tick at ``mono_ns`` (CLOCK_MONOTONIC) = ``boot_ns`` (CLOCK_BOOTTIME).

        Returns the slots that a worker newly suspects: its connection there was refused.
        """
        fleet, n = self._fleet, self._table.n
        counts = self._table.naturals()
        fleet.counted(counts, mono_ns, boot_ns)
        fleet.jumped(self._jumps.seen(counts))
        known, avoidable = self._known(n, boot_ns)
        lanes = Lanes.of(counts, n, fleet, mono_ns)
        pools = fleet.pools.present(n)
        parts = [(pool, loads_of(pool, fleet, lanes, known, mono_ns)) for pool in pools]
        loads = joined(parts, n)
        score = np.empty(n)
        for pool, part in parts:
            score[pool.at] = pool.mode.score(part)
        score, others = self._sound(score, loads)
        share = fleet.pools.share[:n]
        score, others = score / share, others / share
        price = np.minimum(
            counts.outstanding[:n] * fleet.price_request[:n]
            + counts.prompt_tokens[:n] * fleet.price_prompt_token[:n]
            + counts.kv_tokens[:n] * fleet.price_kv_token[:n],
            # Less where a cell stopped at its limit: what is not in the cells must not be taken off the base.
            counts.cells[:n] + ROUNDING * counts.outstanding[:n],
        )
        marks = self._marks(pools, avoidable)
        overload = self._overloaded(pools, lanes, loads, marks)
        # Not into rest, which may be read long after the last tick: a veto must not outlive what it is made of.
        vetoed = marks if overload is None else np.where(overload.avoided, np.int8(Mark.AVOIDED), marks)
        self._table.publish(marked(score * UNITS - price, vetoed), marked(others * UNITS, marks), mono_ns)
        self._details.write(mono_ns, parts, loads, score, known, overload)
        return self._newly_suspected(counts)

    def _known(self, n: int, boot_ns: int) -> tuple[BoolArray, BoolArray]:
        """Slots whose sample is believed; and slots that ``unknown = "avoid"`` is about.

        One whose gauges stand still is not believed but not avoided either: only a request moves them again.
        """
        fleet = self._fleet
        told = fleet.fresh(n, boot_ns) & fleet.load_known[:n]
        return told & ~fleet.frozen[:n], ~told

    def _marks(self, pools: Sequence[Pool], avoidable: BoolArray) -> NDArray[np.int8]:
        """The marks of the fleet, and those of ``unknown = "avoid"``."""
        marks = self._fleet.marks[: len(avoidable)]
        for pool in pools:
            if pool.rules.avoid_unknown:
                marks = marks.copy()
                mine = marks[pool.at]
                marks[pool.at] = np.where(
                    (mine == Mark.NONE) & avoidable[pool.at], np.int8(Mark.AVOIDED), mine
                )
        return marks

    def _overloaded(
        self, pools: Sequence[Pool], lanes: Lanes, loads: Loads, marks: NDArray[np.int8]
    ) -> Overload | None:
        """What the overload limits say; ``None`` where there are none."""
        before, self._overload = self._overload, None
        if any(pool.rules.limits.active for pool in pools):
            self._overload = Overload.judged(pools, self._fleet, lanes, loads, marks)
        self._fleet.changed.update(changed(before, self._overload))
        return self._overload

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
