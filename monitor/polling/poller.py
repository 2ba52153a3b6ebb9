"""The loop of one instance: wait until a poll is due, ask, hand on what came of it."""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from monitor.clock import Clock
from monitor.polling.failure import FailureKind, FetchFailure
from monitor.polling.fetch import Body, Target
from monitor.polling.schedule import Schedule
from monitor.sample import Reading

_NS = 1_000_000_000

#: Answers above this are read in a thread: the largest that are allowed take a second, and the ticks go on meanwhile.
_READ_AT_ONCE = 256 * 1024

#: Failures that cost the instance or this host something each time, so that asking again can wait. So does
#: whatever else takes the whole deadline.
_SLOW = frozenset({FailureKind.TIMEOUT, FailureKind.NO_CONNECTION, FailureKind.TOO_LARGE})

_log = logging.getLogger("loadboard.monitor.polling")


class ProberLike(Protocol):
    """Which path to ask next, and what its answer says; see ``monitor.engines.probe.Prober``."""

    @property
    def engine(self) -> str: ...
    @property
    def reason(self) -> str: ...
    def next_path(self) -> str: ...
    def answered(self, path: str, status: int, body: bytes) -> Reading | None: ...
    def failed(self, path: str) -> None: ...
    def restarted(self) -> None: ...


class Getter(Protocol):
    """What a poller needs of :class:`monitor.polling.fetch.Fetcher`."""

    async def get(self, target: Target, path: str, timeout_s: float) -> Body: ...
    async def forget(self, target: Target) -> None: ...


class Sink(Protocol):
    """Who is told. Called on the event loop, one call per poll; must not block."""

    def sampled(self, key: int, reading: Reading, engine: str, boot_ns: int, mono_ns: int) -> None:
        """A reading, with both clocks at the arrival of its answer."""

    def failed(self, key: int, kind: FailureKind, reason: str, mono_ns: int) -> None:
        """A poll without one; ``reason`` is a sentence for people, without secrets."""


class Poller:
    """Polls one instance until cancelled; never more than one request under way.

    ``limiter`` bounds the polls under way over all instances. ``timeout_s`` > 0 is the deadline of one
    poll, over all paths that it tries. ``key`` is handed through to the sink.

    ``errors`` counts exceptions that nobody expected, of the sink's among others. They are logged and
    back off like a slow instance; they end neither this loop nor any other.
    """

    def __init__(
        self,
        key: int,
        target: Target,
        prober: ProberLike,
        schedule: Schedule,
        fetcher: Getter,
        sink: Sink,
        limiter: asyncio.Semaphore,
        clock: Clock,
        timeout_s: float,
    ) -> None:
        self.errors = 0
        self._key = key
        self._target = target
        self._prober = prober
        self._schedule = schedule
        self._fetcher = fetcher
        self._sink = sink
        self._limiter = limiter
        self._clock = clock
        self._timeout_s = timeout_s
        self._wake = asyncio.Event()
        self._sampling = ""  # the engine whose samples the log told of last; "" in trouble
        self._troubles: set[FailureKind] = set()  # that the log told of since the last sample

    def poll_now(self) -> None:
        """Poll at once, or right after the poll under way. Call it on the event loop."""
        self._schedule.poll_now(self._clock.mono_ns())
        self._wake.set()

    async def run(self) -> None:
        """Poll until cancelled; closes the connections to the instance when it ends."""
        try:
            while True:
                await self._until_due()
                try:
                    async with self._limiter:
                        await self._poll()
                except Exception:
                    self.errors += 1
                    self._schedule.failed(self._clock.mono_ns(), slow=True)
                    _log.exception(
                        "instance %s: a poll ended in an error of loadboard's own; it goes on, please report it",
                        self._target.instance_id,
                    )
        finally:
            await self._fetcher.forget(self._target)

    async def _until_due(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._wake.clear()
            now_ns = self._clock.mono_ns()
            wait_ns = self._schedule.next_due(now_ns) - now_ns
            if wait_ns <= 0:
                return
            # A timer and no wait_for: that would be a task for each wait.
            timer = loop.call_later(wait_ns / _NS, self._wake.set)
            try:
                await self._wake.wait()
            finally:
                timer.cancel()

    async def _poll(self) -> None:
        begun_ns = self._clock.mono_ns()
        self._schedule.started(begun_ns)
        left_s = self._timeout_s
        asked: set[str] = set()
        while True:
            path = self._prober.next_path()
            try:
                body = await self._fetcher.get(self._target, path, left_s)
            except FetchFailure as failure:
                if failure.status is None:
                    self._prober.failed(path)
                else:
                    self._prober.answered(path, failure.status, b"")
                self._failed(failure.kind, failure.reason, begun_ns)
                return
            boot_ns, mono_ns = self._clock.boot_ns(), self._clock.mono_ns()
            reading = await self._read(path, body)
            if reading is not None:
                self._sampled(reading, boot_ns, mono_ns)
                return
            # A path that is absent costs nothing, so the next one is asked in the same poll, each once.
            asked.add(path)
            left_s = self._timeout_s - (mono_ns - begun_ns) / _NS
            if left_s <= 0 or self._prober.next_path() in asked:
                self._failed(
                    FailureKind.UNUSABLE,
                    f"instance {self._target.instance_id}: no load from {self._target.url}: {self._prober.reason}",
                    begun_ns,
                )
                return

    async def _read(self, path: str, body: Body) -> Reading | None:
        if len(body.content) <= _READ_AT_ONCE:
            return self._prober.answered(path, body.status, body.content)
        # This poller alone uses its prober, and waits here.
        return await asyncio.to_thread(self._prober.answered, path, body.status, body.content)

    def _sampled(self, reading: Reading, boot_ns: int, mono_ns: int) -> None:
        self._schedule.succeeded(mono_ns)
        engine = self._prober.engine
        if self._sampling != engine:
            _log.debug("instance %s: answers with its load, engine %s", self._target.instance_id, engine)
            self._sampling = engine
            self._troubles.clear()
        self._sink.sampled(self._key, reading, engine, boot_ns, mono_ns)

    def _failed(self, kind: FailureKind, reason: str, begun_ns: int) -> None:
        now_ns = self._clock.mono_ns()
        slow = kind in _SLOW or now_ns - begun_ns >= self._timeout_s * _NS
        self._schedule.failed(now_ns, slow=slow)
        if kind not in self._troubles:
            # What it means for the instance is told by the sink, which knows its state.
            _log.debug("no sample: %s", reason)
            self._troubles.add(kind)
        self._sampling = ""
        if kind is FailureKind.REFUSED:
            # Whoever listens there next may be another engine, or another version of it.
            self._prober.restarted()
        self._sink.failed(self._key, kind, reason, now_ns)
