"""The engine model on real time: one asyncio task turns the model's steps into sleeps."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from loadboard.sim.model import EngineModel, Gauges, Request

# A process that was kept from running catches up step by step, but not more than this: a long stall should
# look like a stalled engine, not like a burst of work done in no time.
_CATCH_UP_S = 0.25


class Ticket:
    """One request in a :class:`LiveEngine`, as its handler sees it."""

    def __init__(self, output_tokens: int, interval: int) -> None:
        self._left = output_tokens
        self._interval = interval
        self._new = 0
        self._began = False
        self._abandoned = False
        self._wake = asyncio.Event()

    def abandon(self) -> None:
        """Nobody waits for the answer any more: :meth:`take` returns 0 from now on."""
        self._abandoned = True
        self._wake.set()

    async def take(self) -> int:
        """How many tokens came since the last call, the first one alone, then ``interval`` at a time.

        0 when no more will come: all were taken, or the request was abandoned.
        """
        if not self._abandoned and (self._left or self._new):
            await self._wake.wait()
            self._wake.clear()
        if self._abandoned:
            return 0
        new, self._new = self._new, 0
        return new

    def _token(self) -> None:
        self._new += 1
        self._left -= 1
        if not self._began or self._left == 0 or self._new >= self._interval:
            self._began = True
            self._wake.set()


class LiveEngine:
    """Drives ``model`` from :meth:`run`; ``clock`` is in seconds and never goes backwards."""

    def __init__(self, model: EngineModel, clock: Callable[[], float] = time.monotonic) -> None:
        self.model = model
        self._clock = clock
        self._ids = itertools.count()
        self._tickets: dict[int, Ticket] = {}
        self._submitted = asyncio.Event()

    def gauges(self) -> Gauges:
        return self.model.gauges(self._clock())

    @contextmanager
    def request(self, prompt_tokens: int, output_tokens: int, interval: int) -> Iterator[Ticket]:
        """Submit a request; leaving the block takes it out of the engine if it has not finished.

        ``ValueError`` for a request that can never finish here.
        """
        request_id = next(self._ids)
        self.model.submit(self._clock(), Request(request_id, prompt_tokens, output_tokens))
        ticket = self._tickets[request_id] = Ticket(output_tokens, interval)
        self._submitted.set()
        try:
            yield ticket
        finally:
            del self._tickets[request_id]
            self.model.cancel(request_id)

    async def run(self) -> None:
        """Work until cancelled."""
        now = self._clock()
        while True:
            step = self.model.step(now)
            if step is None:
                self._submitted.clear()
                await self._submitted.wait()
                now = max(now, self._clock())
                continue
            await asyncio.sleep(max(0.0, step.ends - self._clock()))
            for request_id in step.tokens:
                ticket = self._tickets.get(request_id)
                if ticket is not None:  # else cancelled during the step
                    ticket._token()
            late = self._clock() - step.ends
            now = step.ends if late < _CATCH_UP_S else step.ends + late
