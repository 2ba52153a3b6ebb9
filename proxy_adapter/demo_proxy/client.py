"""The client's side of one request: its body, and the moment it goes away."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from typing import Any

from starlette.types import Receive, Send

from proxy_adapter.demo_proxy.answers import send_error
from proxy_adapter.demo_proxy.headers import Headers, value_of

# After a refusal the rest of the body is read and dropped for a while: closing with unread bytes resets the
# connection, and most clients would then see the reset instead of the answer.
_DRAIN_S = 5.0


class ClientGoneError(Exception):
    """The client disconnected before its request was complete."""


class BodyTooLargeError(Exception):
    """The body is larger than the proxy buffers; the rest of it has not been read."""


async def read_body(receive: Receive, headers: Headers, limit: int) -> bytes:
    """The whole body, at most ``limit`` bytes. Raises ``BodyTooLargeError`` and ``ClientGoneError``."""
    announced = value_of(headers, b"content-length")
    if announced.isdigit() and int(announced[:20]) > limit:
        raise BodyTooLargeError
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            raise ClientGoneError
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise BodyTooLargeError
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def refuse_body(receive: Receive, send: Send, headers: Headers, limit: int) -> None:
    """Answer 413, let the client finish what it is sending (within bounds), and close the connection."""
    await send_error(
        send,
        413,
        f"the request body is larger than the {limit} bytes that this proxy accepts",
        "body_too_large",
        ((b"connection", b"close"),),
        more_body=True,
    )
    # A client that waits for 100-continue has sent nothing yet; reading would ask it to.
    if value_of(headers, b"expect").lower() != b"100-continue":
        deadline = time.monotonic() + _DRAIN_S
        more = True
        while more and (left := deadline - time.monotonic()) > 0:
            try:
                message = await asyncio.wait_for(receive(), left)
            except asyncio.TimeoutError:
                break
            more = message["type"] == "http.request" and message.get("more_body", False)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def disconnected(receive: Receive) -> None:
    """Return once the client is gone. For use after the body was read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(work)


async def stop(task: asyncio.Task[None]) -> None:
    """Cancel the task and wait until it has cleaned up; what it raised stays in it."""
    if not task.done():
        task.cancel()
        await asyncio.wait((task,))
