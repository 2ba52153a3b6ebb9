"""Everything that works on one open table: polls, ticks, reclaims, and follows the configuration."""

from __future__ import annotations

import asyncio
import logging
import random

from monitor.board import Board
from monitor.clock import Clock
from monitor.config import MonitorConfig
from monitor.discovery import Source
from monitor.discovery.static import StaticSource
from monitor.pollers import Pollers
from monitor.pools import pools_of
from monitor.sd_notify import Notifier
from score_table.writer import TableWriter

log = logging.getLogger("loadboard.monitor")

_NS = 1_000_000_000

CHORES_S = 1.0
#: A tick that keeps failing is logged at its first failure and then this often.
FAILURE_LOG_NS = 5 * _NS


class Service:
    """One open table being served, on the running loop."""

    def __init__(
        self,
        config: MonitorConfig,
        table: TableWriter,
        clock: Clock,
        notifier: Notifier,
        *,
        may_grow: bool = True,
    ) -> None:
        """``may_grow``: whether to give the table up for one with more lanes when workers find none."""
        self._config = config
        self._table = table
        self._clock = clock
        self._notifier = notifier
        self._may_grow = may_grow
        #: Set when the table's name leads elsewhere, or has to lead to a larger table.
        self.lost = asyncio.Event()
        #: More workers want a lane than the table has.
        self.outgrown = False
        #: Ticks so far that ended in an exception.
        self.failed_ticks = 0
        self._ready = False
        self._board = Board(table, config)
        self._source: Source = StaticSource(config.instances)
        self._instances = self._source.current()
        self._pollers = Pollers(config, self._board.fleet, clock, random.Random())
        self._lanes_wanted = table.lanes
        self._status = ""
        self._next_watchdog = self._next_failure_log = 0

    async def start(self) -> None:
        """Take over the table, publish once, then begin to poll."""
        changes = self._board.start(self._instances, self._clock.mono_ns())
        self.tick()
        await self._pollers.follow(changes, self._config)

    async def configure(self, config: MonitorConfig) -> None:
        """Follow a new configuration. What can be wrong with it shows before anything has changed."""
        source = StaticSource(config.instances)
        # In a thread: a score mode of another package may take long to make, and ticks must go on.
        self._board.configure(config, await asyncio.to_thread(pools_of, config))
        self._config = config
        self._source = source
        await self._follow_source()

    async def _follow_source(self) -> None:
        self._instances = self._source.current()
        changes = self._board.follow(self._instances, self._clock.mono_ns())
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
            suspects = self._board.tick(mono_ns, boot_ns)
        except Exception:
            self.failed_ticks += 1
            if mono_ns >= self._next_failure_log:
                self._next_failure_log = mono_ns + FAILURE_LOG_NS
                log.exception("tick failed (%d so far), scores stay as they were", self.failed_ticks)
            return
        if not self._ready:
            self._ready = True
            self._notifier.ready()
        for key in suspects:
            self._pollers.poll_now(key)
        watchdog_s = self._notifier.watchdog_interval
        if watchdog_s is not None and mono_ns >= self._next_watchdog:
            self._next_watchdog = mono_ns + round(watchdog_s * _NS)
            self._notifier.watchdog()

    async def look_after(self) -> None:
        """Once a second until cancelled: the table, the instances, slots that have become free, the status.

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
                elif self._is_outgrown():
                    self.lost.set()
                elif self._source.current() != self._instances:
                    await self._follow_source()
                else:
                    changes = self._board.retry(self._clock.mono_ns())
                    await self._pollers.follow(changes, self._config)
                self._tell_status()
            except Exception:
                log.exception("looking after the table failed, it is tried again in a second")

    def _is_outgrown(self) -> bool:
        """Whether a larger table is due: workers found no lane in this one."""
        table, wanted = self._table, self._table.lanes_wanted
        if wanted > self._lanes_wanted:
            self._lanes_wanted = wanted
            log.warning(
                "table %s has %d lanes and its workers want %d: those without one count locally and other "
                "workers do not see their requests; raise `lanes` to at least %d and restart the monitor%s",
                table.location,
                table.lanes,
                wanted,
                wanted,
                ". Until then it makes a larger table if it can" if self._may_grow else "",
            )
            self.outgrown = self._may_grow
        return self.outgrown

    def _tell_status(self) -> None:
        """A line for ``systemctl status``, when it is another one."""
        states, waiting = self._board.fleet.states(), len(self._board.waiting)
        total = sum(states.values()) + waiting
        parts = [f"{count} {health.value}" for health, count in states.items()]
        parts += [f"{waiting} not admitted"] if waiting else []
        status = f"{total} instance{'' if total == 1 else 's'}: {', '.join(parts)}"
        if status != self._status:
            self._status = status
            self._notifier.status(status)
