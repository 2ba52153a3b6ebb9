"""Everything that works on one open table: polls, ticks, reclaims, and follows the configuration."""

from __future__ import annotations

import asyncio
import logging
import random

from monitor.clock import Clock
from monitor.config import MonitorConfig
from monitor.discovery import Source
from monitor.discovery.static import StaticSource
from monitor.estimate.means import Means
from monitor.fleet import Fleet
from monitor.membership import Membership
from monitor.pollers import Pollers
from monitor.reclaim import reclaim
from monitor.scores import score_mode
from monitor.sd_notify import Notifier
from monitor.tick import Rules, Ticker
from score_table.writer import TableWriter

log = logging.getLogger("loadboard.monitor")

_NS = 1_000_000_000

RECLAIM_NS = _NS // 10
CHORES_S = 1.0
#: A tick that keeps failing is logged at its first failure and then this often.
FAILURE_LOG_NS = 5 * _NS


class Service:
    """One open table being served, on the running loop."""

    def __init__(self, config: MonitorConfig, table: TableWriter, clock: Clock, notifier: Notifier) -> None:
        self._config = config
        self._table = table
        self._clock = clock
        self._notifier = notifier
        #: Set when the table's name leads elsewhere.
        self.lost = asyncio.Event()
        #: Ticks so far that ended in an exception.
        self.failed_ticks = 0
        self._ready = False
        self._fleet = Fleet(table.capacity, staleness_s=config.staleness, means=_means(config))
        mode = score_mode(config)
        self._ticker = Ticker(table, self._fleet, mode, _rules(config))
        self._membership = Membership(table, self._fleet, mode)
        self._source: Source = StaticSource(config.instances)
        self._instances = self._source.current()
        self._pollers = Pollers(config, self._fleet, clock, random.Random())
        self._next_reclaim = self._next_watchdog = self._next_failure_log = 0

    async def start(self) -> None:
        """Take over the table, publish once, then begin to poll."""
        changes = self._membership.adopt(self._instances, self._config, self._clock.mono_ns())
        self.tick()
        await self._pollers.follow(changes, self._config)

    async def configure(self, config: MonitorConfig) -> None:
        """Follow a new configuration."""
        before, self._config = self._config, config
        self._fleet.staleness_s = config.staleness
        if _start_values(before) != _start_values(config):
            self._fleet.means = _means(config)
        mode = score_mode(config)
        self._ticker.configure(mode, _rules(config))
        self._membership.configure(mode)
        self._source = StaticSource(config.instances)
        await self._follow_source()

    async def _follow_source(self) -> None:
        self._instances = self._source.current()
        changes = self._membership.apply(self._instances, self._config, self._clock.mono_ns())
        await self._pollers.follow(changes, self._config)

    async def aclose(self) -> None:
        """Stop polling."""
        await self._pollers.aclose()

    async def beat(self) -> None:
        """Tick on a fixed grid until cancelled; grid points that were missed are left out."""
        due = self._clock.mono_ns()
        while True:
            step = round(self._config.tick * _NS)
            now = self._clock.mono_ns()
            due += max(1, -(-(now - due) // step)) * step
            await asyncio.sleep((due - now) / _NS)
            self.tick()

    def tick(self) -> None:
        """One tick. An exception is logged and counted; the heartbeat is only stored by one that succeeds."""
        mono_ns, boot_ns = self._clock.mono_ns(), self._clock.boot_ns()
        try:
            if mono_ns >= self._next_reclaim:
                self._next_reclaim = mono_ns + RECLAIM_NS
                reclaim(self._table, self._fleet, mono_ns, boot_ns)
            suspects = self._ticker.tick(mono_ns, boot_ns)
        except Exception:
            self.failed_ticks += 1
            if mono_ns >= self._next_failure_log:
                self._next_failure_log = mono_ns + FAILURE_LOG_NS
                log.exception("tick failed (%d so far), scores stay as they were", self.failed_ticks)
            return
        if not self._ready:
            self._ready = True
            self._notifier.ready()
        for slot in suspects:
            book = self._fleet.books.get(slot)
            if book is not None:
                self._pollers.poll_now(book.key)
        watchdog_s = self._notifier.watchdog_interval
        if watchdog_s is not None and mono_ns >= self._next_watchdog:
            self._next_watchdog = mono_ns + round(watchdog_s * _NS)
            self._notifier.watchdog()

    async def look_after(self) -> None:
        """Once a second until cancelled: the table, the instances, slots that have become free.

        A task of its own: to end a poller may take time that a tick does not have.
        """
        while True:
            await asyncio.sleep(CHORES_S)
            try:
                if not self._table.is_current():
                    log.error(
                        "table %s was removed or replaced by somebody; making it anew", self._table.location
                    )
                    self.lost.set()
                elif self._source.current() != self._instances:
                    await self._follow_source()
                else:
                    changes = self._membership.retry(self._config, self._clock.mono_ns())
                    await self._pollers.follow(changes, self._config)
            except Exception:
                log.exception("looking after the table failed, it is tried again in a second")


def _rules(config: MonitorConfig) -> Rules:
    return Rules(
        nominal_kv_capacity=config.token_aware.nominal_kv_capacity,
        speed_dead_band=config.token_aware.speed_dead_band,
        avoid_unknown=config.unknown == "avoid",
    )


def _start_values(config: MonitorConfig) -> tuple[float, float]:
    return (config.token_aware.prompt_tokens, config.token_aware.generated_tokens)


def _means(config: MonitorConfig) -> Means:
    return Means(*_start_values(config))
