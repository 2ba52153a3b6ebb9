"""Whose fault an exception is: the instance's, or somebody else's."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import ssl
import sys
from collections.abc import Iterator

#: Of all 4xx the one that speaks of the instance: it sheds load. Answered fast, it would attract the traffic.
_OVERLOADED = 429
_UNREACHABLE = frozenset(
    {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN, errno.ETIMEDOUT}
)
_TRANSPORT = (
    ConnectionError,
    TimeoutError,
    asyncio.TimeoutError,
    socket.gaierror,
    ssl.SSLError,
    http.client.HTTPException,
)
#: Module and class of what HTTP clients raise where the transport failed. They are looked up only where the
#: program has imported them already.
_OF_CLIENTS = (
    ("httpx", "TransportError"),
    ("aiohttp", "ClientConnectionError"),
    ("aiohttp", "ClientPayloadError"),
    ("requests", "ConnectionError"),
    ("requests", "Timeout"),
    ("urllib3.exceptions", "HTTPError"),
)
_OF_THE_CLIENT_ITSELF = (("httpx", "PoolTimeout"), ("httpx", "LocalProtocolError"))


def is_failure(error: BaseException) -> bool:
    """Whether ``error`` says that the instance failed: a transport error, a time-out, an answer of 429 or
    of 5xx; itself, as the cause of an error that says nothing of an answer, or in a group of errors.

    A cancellation, a closed generator, any other answer of 4xx, a broken pipe (most often the client's), a pool of the
    client that is used up, a request that it refuses to send, and errors of local files never count.
    """
    if isinstance(error, BrokenPipeError) or not isinstance(error, Exception):
        return False
    parts = getattr(error, "exceptions", None)
    if isinstance(parts, tuple):
        return any(is_failure(part) for part in parts if isinstance(part, Exception))
    status = _status_of(error)
    if status is not None:
        return status == _OVERLOADED or status >= 500
    if _is_one_of(error, _OF_THE_CLIENT_ITSELF):
        return False
    if isinstance(error, _TRANSPORT) or (isinstance(error, OSError) and error.errno in _UNREACHABLE):
        return True
    if _is_one_of(error, _OF_CLIENTS):
        return True
    reason = getattr(error, "reason", None)  # urllib.error.URLError
    if isinstance(error, OSError) and isinstance(reason, Exception) and is_failure(reason):
        return True
    return error.__cause__ is not None and is_failure(error.__cause__)


def _is_one_of(error: Exception, kinds: tuple[tuple[str, str], ...]) -> bool:
    for module_name, class_name in kinds:
        kind = getattr(sys.modules.get(module_name), class_name, None)
        if isinstance(kind, type) and isinstance(error, kind):
            return True
    return False


def _status_of(error: Exception) -> int | None:
    """The status of the answer that ``error`` is about, as HTTP clients keep it; ``None`` if there was none."""
    for holder, name in (
        (getattr(error, "response", None), "status_code"),
        (error, "status_code"),
        (error, "status"),
        (error, "code"),
    ):
        status = getattr(holder, name, None)
        if isinstance(status, int) and 100 <= status < 600:
            return status
    return None


def was_refused(error: BaseException | None) -> bool:
    """Whether no connection came about, anywhere in the chain of causes: nothing was sent then."""
    return any(
        isinstance(link, ConnectionRefusedError)
        # httpx keeps the cause only as text in some of its transports.
        or (
            type(link).__name__ == "ConnectError"
            and type(link).__module__.split(".")[0] in ("httpx", "httpcore")
        )
        for link in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """``error``, what it came from, and the members of groups among them."""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        link = waiting.pop()
        if link is None or id(link) in seen:
            continue
        seen.add(id(link))
        yield link
        parts = getattr(link, "exceptions", None)
        waiting += (
            [part for part in parts if isinstance(part, BaseException)] if isinstance(parts, tuple) else []
        )
        waiting.append(link.__cause__ or link.__context__)
