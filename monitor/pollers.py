"""The running pollers by key: made from the configuration, started, stopped, woken."""

from __future__ import annotations

import asyncio
import logging
import random

from monitor.clock import Clock
from monitor.config import InstanceConfig, MonitorConfig
from monitor.engines.probe import Prober
from monitor.membership import Changes
from monitor.polling.fetch import Fetcher, Target
from monitor.polling.poller import Poller, Sink
from monitor.polling.schedule import Schedule

log = logging.getLogger("loadboard.monitor")

#: Pause before a poller that ended by an error of its own is started again.
RESTART_S = 1.0


class Pollers:
    """One task per poller, on the running loop."""

    def __init__(self, config: MonitorConfig, sink: Sink, clock: Clock, rng: random.Random) -> None:
        self._config = config
        self._sink = sink
        self._clock = clock
        self._rng = rng
        self._fetcher = Fetcher(config.max_body_bytes)
        self._limiter = asyncio.Semaphore(config.concurrency)
        self._running: dict[int, tuple[Poller, asyncio.Task[None]]] = {}

    async def follow(self, changes: Changes, config: MonitorConfig) -> None:
        """Stop and start pollers; new ones are made from ``config``."""
        if config.max_body_bytes != self._config.max_body_bytes:
            self._fetcher = Fetcher(config.max_body_bytes)
        if config.concurrency != self._config.concurrency:
            self._limiter = asyncio.Semaphore(config.concurrency)
        self._config = config
        await self._stop(changes.stopped)
        for key, instance in changes.started:
            poller = self._made(key, instance)
            self._running[key] = (poller, asyncio.create_task(self._kept_up(poller, instance.id)))

    def poll_now(self, key: int) -> None:
        """Wake the poller of ``key``; harmless if it is gone."""
        running = self._running.get(key)
        if running is not None:
            running[0].poll_now()

    async def aclose(self) -> None:
        """Stop all and close their connections."""
        await self._stop(list(self._running))
        await self._fetcher.aclose()

    async def _stop(self, keys: list[int]) -> None:
        tasks = [self._running.pop(key)[1] for key in keys if key in self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _made(self, key: int, instance: InstanceConfig) -> Poller:
        config = self._config
        token = instance.bearer_token
        target = Target(
            instance_id=instance.id,
            url=instance.metrics_base,
            headers={"authorization": f"Bearer {token.get_secret_value()}"} if token else {},
            verify=instance.ca_file or instance.verify_tls,
        )
        return Poller(
            key,
            target,
            Prober(instance.engine),
            Schedule(config.interval_of(instance), config.jitter, self._rng),
            self._fetcher,
            self._sink,
            self._limiter,
            self._clock,
            config.timeout_of(instance),
        )

    async def _kept_up(self, poller: Poller, instance_id: str) -> None:
        while True:
            try:
                await poller.run()
            except Exception:
                log.exception("%s: its poller ended by an error of its own and is started again", instance_id)
            await asyncio.sleep(RESTART_S)
