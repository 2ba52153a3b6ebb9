"""A proxy of a few lines without a network behind it, as WSGI and as ASGI application for real servers.

``LOADBOARD_TABLE`` names the table. For every dispatch one byte is appended to the file that ``DISPATCHES`` names,
so that the truth outlives each worker. ``WARM=1`` uses the strategy when the module is loaded, in a master that
forks its workers afterwards.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from proxy_adapter import Dispatch, build_instance_strategy
from tests.stress.hosts import CHUNK, CHUNKS
from tests.unit.proxy_adapter.instances import Plain, plain

strategy = build_instance_strategy("least_load")
instances = plain(4)
_said = os.open(os.environ["DISPATCHES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _dispatch() -> Dispatch[Plain]:
    guard = strategy.dispatch(instances, {"stream": True}, prompt_tokens=100)
    os.write(_said, b".")
    return guard


if os.environ.get("WARM"):
    kept = [_dispatch()]
else:
    # Takes a lane now: while one thread does so at its first request, those of other threads go uncounted.
    strategy.status()


def wsgi(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    """``/health`` says that it is there, anything else streams."""
    headers = [("Content-Type", "text/plain"), ("Content-Length", str(len(CHUNK) * CHUNKS))]
    if environ["PATH_INFO"] == "/health":
        start_response("204 No Content", [])
        return [b""]
    start_response("200 OK", headers)
    return _stream()


def _stream() -> Iterator[bytes]:
    with _dispatch() as guard:
        for _ in range(CHUNKS):
            yield CHUNK
            guard.first_token()


async def asgi(
    scope: dict[str, Any],
    receive: Callable[[], Awaitable[dict[str, Any]]],
    send: Callable[[dict[str, Any]], Awaitable[None]],
) -> None:
    """As :func:`wsgi`."""
    if scope["type"] == "lifespan":
        while (await receive())["type"] != "lifespan.shutdown":
            await send({"type": "lifespan.startup.complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    await receive()
    if scope["path"] == "/health":
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})
        return
    headers = [(b"content-length", str(len(CHUNK) * CHUNKS).encode())]
    async with _dispatch() as guard:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for _ in range(CHUNKS):
            await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
            guard.first_token()
            await asyncio.sleep(0.001)
        await send({"type": "http.response.body"})
