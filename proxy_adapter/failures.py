"""Whose fault an exception is: the instance's, or somebody else's."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator


def is_failure(error: BaseException) -> bool:
    """Whether ``error`` says that the instance failed: a transport error, a time-out, or an answer of 5xx.

    A cancellation, a closed generator and an answer of 4xx are the client's doing and never count. HTTP
    clients are looked at only where the program has already imported them.
    """
    if not isinstance(error, Exception):
        return False
    if isinstance(error, (OSError, TimeoutError, asyncio.TimeoutError)):
        return True
    httpx = sys.modules.get("httpx")
    if httpx is not None:
        if isinstance(error, httpx.TransportError):
            return True
        if isinstance(error, httpx.HTTPStatusError):
            return bool(error.response.status_code >= 500)
    aiohttp = sys.modules.get("aiohttp")
    if aiohttp is not None:
        if isinstance(error, aiohttp.ClientResponseError):
            return bool(error.status >= 500)
        return isinstance(error, aiohttp.ClientConnectionError | aiohttp.ClientPayloadError)
    return False


def was_refused(error: BaseException | None) -> bool:
    """Whether the connection was refused, anywhere in the chain of causes: nothing was sent then."""
    return any(isinstance(link, ConnectionRefusedError) for link in _chain(error)) or any(
        # httpx keeps the cause only as text in some of its transports.
        type(link).__name__ == "ConnectError" and type(link).__module__.split(".")[0] in ("httpx", "httpcore")
        for link in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
