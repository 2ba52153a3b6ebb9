"""A simulated engine with a few slots and one queue: a request says itself how long it is served.

So two gateways meet the same arrivals and the same services. First come, first served; no batching, no KV
cache; a client that goes away is served to the end. It looks like vLLM as far as a monitor and a gateway see: ``/v1/completions``, ``/health``,
``/metrics``. An answer says how long it waited here and how long it was served.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import uvicorn
from starlette.types import Receive, Scope, Send

from loadboard.sim import exposition
from loadboard.sim.model import Gauges

# For the counters of the page only: an answer has one token for each such time of its service.
_TOKEN_S = 0.01
_KV_CAPACITY = 400_000
# Longer than any gateway keeps an idle connection: a request must not meet one that is just being closed.
_KEEPALIVE_S = 300
_ANSWERED_PATHS = ("/v1/completions", "/v1/chat/completions")

LISTENING = "slot engine on "


class Served(NamedTuple):
    """What became of one request here, in seconds."""

    waited_s: float  #: from its arrival to the begin of its service
    served_s: float  #: from then to the moment at which the answer went out
    late_s: float  #: of that, what it took longer than it should


class SlotEngine:
    """``slots`` servers and one queue. ``clock`` is in seconds and never goes backwards.

    A slot goes on with the next request at the moment at which the last one should have ended, so that timers
    that come late do not add up to a slower engine.
    """

    def __init__(self, slots: int, clock: Callable[[], float] = time.monotonic) -> None:
        if slots < 1:
            raise ValueError(f"an engine needs at least one slot, not {slots}")
        self._free = slots
        self._clock = clock
        self._queue: deque[asyncio.Future[float]] = deque()
        self._began: dict[int, float] = {}  # by a running number: the begin of each service under way
        self._next = 0
        self._finished = 0
        self._finished_s = 0.0  # of service

    async def serve(self, service_s: float) -> Served:
        """Wait for a slot, hold it for ``service_s``. Cancelling it at any time gives the slot back."""
        arrived = self._clock()
        begins = arrived
        if self._free:
            self._free -= 1
        else:
            # Where the one before ended late, this may have come after it should have.
            begins = max(arrived, await self._turn())
        number, self._next = self._next, self._next + 1
        self._began[number] = begins
        ends = begins + service_s
        try:
            await asyncio.sleep(max(0.0, ends - self._clock()))
        except BaseException:
            del self._began[number]
            self._pass_on(self._clock())
            raise
        del self._began[number]
        self._finished += 1
        self._finished_s += service_s
        self._pass_on(ends)
        now = self._clock()
        return Served(begins - arrived, now - begins, now - ends)

    def gauges(self) -> Gauges:
        """As vLLM's: what runs, what waits, and running totals."""
        now = self._clock()
        under_way = sum(max(0.0, now - began) for began in self._began.values())
        return Gauges(
            running=len(self._began),
            waiting=len(self._queue),
            finished=self._finished,
            prompt_tokens=self._finished,
            generated_tokens=int((self._finished_s + under_way) / _TOKEN_S),
        )

    async def _turn(self) -> float:
        turn: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._pass_on(turn.result())
            else:
                self._queue.remove(turn)
            raise

    def _pass_on(self, at: float) -> None:
        """The slot is free since ``at``: to the next one in the queue."""
        if self._queue:
            self._queue.popleft().set_result(at)
        else:
            self._free += 1


class SlotServer:
    """The ASGI application over one engine."""

    def __init__(self, name: str, engine: SlotEngine) -> None:
        self._name = name
        self._engine = engine
        self._started = time.time()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path in _ANSWERED_PATHS and scope["method"] == "POST":
            await self._complete(receive, send)
        elif path.rstrip("/") == "/metrics":
            page = exposition.page(self._engine.gauges(), kv_capacity=_KV_CAPACITY, started=self._started)
            await _answer(send, 200, page.encode(), exposition.CONTENT_TYPE)
        else:
            await _answer(send, 200 if path == "/health" else 404, b"", "text/plain")

    async def _complete(self, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return
            body += message.get("body", b"")
            more = message.get("more_body", False)
        try:
            service_s = float(json.loads(body)["service_s"])
        except (ValueError, LookupError, TypeError):
            await _answer(send, 400, b'{"error": "the body must be JSON with service_s"}', "application/json")
            return
        served = await self._engine.serve(service_s)
        said = {"engine": self._name, **served._asdict()}
        await _answer(send, 200, json.dumps(said).encode(), "application/json")


async def _answer(send: Send, status: int, body: bytes, kind: str) -> None:
    headers = [(b"content-type", kind.encode()), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def main(argv: Sequence[str] | None = None) -> int:
    """Serve one engine on a free port of 127.0.0.1 until SIGTERM; says on standard output where."""
    parser = argparse.ArgumentParser(prog="bench.peers.slot_engine", description=__doc__)
    parser.add_argument("--name", required=True, help="what it calls itself in its answers")
    parser.add_argument("--slots", type=int, default=4, help="requests served at once (default %(default)s)")
    args = parser.parse_args(argv)
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
        # Connections inherit it. asyncio sets it by itself only where it made the listening socket; without it
        # every answer in two pieces may wait 40 ms for the client's acknowledgement of the first.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        print(f"{LISTENING}http://127.0.0.1:{listener.getsockname()[1]}", flush=True)
        config = uvicorn.Config(
            SlotServer(args.name, SlotEngine(args.slots)),
            lifespan="off",
            log_level="warning",
            access_log=False,
            timeout_keep_alive=_KEEPALIVE_S,
            timeout_graceful_shutdown=1,
        )
        uvicorn.Server(config).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
