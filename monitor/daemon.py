"""The monitor process: one event loop that polls, ticks, reclaims and reloads.

``main`` returns an exit code: 0 after a clean stop, else the ``exit_status`` of the table's error.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from typing import Any

import structlog

from monitor.clock import Clock, SystemClock
from monitor.config import ConfigError, MonitorConfig, changes, notes, options
from monitor.logs import Log, open_log
from monitor.sd_notify import Notifier
from monitor.service import Service
from monitor.threads import Threads
from score_table.errors import TableError
from score_table.writer import TableWriter

log = structlog.stdlib.get_logger("loadboard.monitor")

_NS = 1_000_000_000

#: Threads beyond one for each instance, whose name may be under look-up.
SPARE_THREADS = 16


def main(config: MonitorConfig, reload: Callable[[], MonitorConfig]) -> int:
    """Run the monitor until it is told to stop. ``reload`` gives the configuration anew, or ``ConfigError``."""
    with contextlib.closing(open_log(config.log_format, config.log_level)) as written:
        for note in notes(config):
            log.warning("configuration: %s", note)
        return asyncio.run(Daemon(config, reload, written).run())


class Daemon:
    """One monitor. Signals: SIGTERM and SIGINT stop it, SIGHUP reloads the configuration."""

    def __init__(
        self,
        config: MonitorConfig,
        reload: Callable[[], MonitorConfig],
        written: Log,
        *,
        clock: Clock | None = None,
        notifier: Notifier | None = None,
    ) -> None:
        self._config = config
        self._reload_config = reload
        self._log = written
        self._clock = clock or SystemClock()
        self._notifier = notifier or Notifier.from_env(os.environ)
        self._may_grow = True
        self._stop = asyncio.Event()
        self._hup = asyncio.Event()

    async def run(self) -> int:
        """Serve until stopped; a table that somebody removed or replaced, or that is too small, is made anew."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(Threads(self._config.slots + SPARE_THREADS))
        outgrown = 0
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._hup.set)
        try:
            while not self._stop.is_set():
                try:
                    table = open_table(self._config)
                except TableError as error:
                    log.error("the table cannot be used: %s", error, table=error.location)
                    return error.exit_status
                # One that came out no larger has all the lanes it may have; to try again each second would only
                # make every worker move each second.
                self._may_grow = self._may_grow and table.lanes > outgrown
                try:
                    outgrown = await self._serve(table)
                finally:
                    table.close()
            return 0
        finally:
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                loop.remove_signal_handler(number)

    async def _serve(self, table: TableWriter) -> int:
        """Until stopped or until the table is lost; its lanes where they were too few, else 0."""
        service = Service(self._config, table, self._clock, self._notifier, may_grow=self._may_grow)
        await service.start()
        log.info(
            "started", table=table.location, adopted=table.adopted, slots=table.capacity, lanes=table.lanes
        )
        runs = (
            service.beat(),
            service.look_after(),
            self._reloads(service),
            self._stop.wait(),
            service.lost.wait(),
        )
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(run) for run in runs]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # the first three end by a fault only, and that has to be seen
        finally:
            if self._stop.is_set():
                self._notifier.stopping()
                log.info("stopping; the table stays, marked stopped", table=table.location)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await service.aclose()
        return table.lanes if service.outgrown else 0

    async def _reloads(self, service: Service) -> None:
        while True:
            await self._hup.wait()
            self._hup.clear()
            self._notifier.reloading()
            try:
                await self.reload(service)
            except asyncio.CancelledError:
                self._hup.set()  # the table was lost in between; the next one's service has to do it
                raise
            self._notifier.ready()

    async def reload(self, service: Service) -> None:
        """Read the configuration anew and let ``service`` follow it; what goes wrong is logged, and changes
        nothing."""
        try:
            # In a thread: a slow disk must not hold up the ticks.
            wanted = keep_fixed(self._config, await asyncio.to_thread(self._reload_config))
        except ConfigError as error:
            for line in error.lines():
                log.error("reload: %s", line)
            log.error("reload failed, the configuration stays as it was", problems=len(error.problems))
            return
        except Exception:
            log.exception("reload failed, the configuration stays as it was")
            return
        try:
            await service.configure(wanted)
        except Exception:
            log.exception("reload failed, going back to the configuration as it was")
            try:
                await service.configure(self._config)
            except Exception:
                log.exception("the old configuration could not be restored as a whole; restart the monitor")
            return
        before, self._config = self._config, wanted
        self._log.set_level(wanted.log_level)
        changed = changes(before, wanted)
        for line in changed:
            log.info("reload: %s", line)
        for note in set(map(str, notes(wanted))) - set(map(str, notes(before))):
            log.warning("configuration: %s", note)
        log.info("configuration reloaded", instances=len(wanted.instances), changes=len(changed))


def open_table(config: MonitorConfig) -> TableWriter:
    """The table of ``config``. Raises what :meth:`TableWriter.open` raises."""
    return TableWriter.open(
        config.table,
        slots=config.slots,
        lanes=config.lanes,
        mode=config.table_mode_bits,
        group=config.group or None,
        max_heartbeat_age_ns=round(config.max_heartbeat_age * _NS),
    )


def keep_fixed(running: MonitorConfig, wanted: MonitorConfig) -> MonitorConfig:
    """``wanted``, with what only a restart can change as it is in ``running``; each such key is logged."""
    kept = {}
    for option in options():
        before, after = option.read(running), option.read(wanted)
        if not option.reloadable and before != after:
            log.warning(
                "reload: %s stays %r, %r needs a restart of the monitor", option.key_path, before, after
            )
            kept[option.attributes[0]] = before
    return wanted.model_copy(update=kept)
