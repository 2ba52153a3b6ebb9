"""The worker's connections to the instances."""

from __future__ import annotations

import asyncio
import logging
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx

logger = logging.getLogger("loadboard.proxy_adapter")

# Shorter than the 5 s after which uvicorn, and so most engines, closes an idle connection: a request must not meet
# a connection that is just being closed.
_KEEPALIVE_S = 2.0

#: An instance that closes an idle connection does so at once; one that takes longer may have begun to work.
_CLOSING_S = 1.0

_ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_KEEPALIVE_S)


class Connections(httpx.AsyncBaseTransport):
    """As many connections per instance as there are requests, the one used last first.

    Each is a transport of a single connection. One transport for all would look through every connection it has at
    every request and again at its end, which at some hundred streams costs more than all the rest of the proxy.

    A connection used before may be closed by the instance just as a request goes out on it. Such a request is sent
    once more, on a fresh connection to the same instance; the stream of a request must be repeatable.
    Raises what ``httpx.AsyncHTTPTransport`` raises. Proxy variables of the environment and cookies play no part.
    """

    def __init__(self) -> None:
        # Both are given to each connection: making one, and reading all authorities, takes long.
        self._no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls: asyncio.Task[ssl.SSLContext] | None = None
        #: Per origin (when it was given back, connection), the oldest first.
        self._idle: dict[str, list[tuple[float, httpx.AsyncHTTPTransport]]] = {}
        self._closed = False

    async def run(self) -> None:
        """Close what nobody uses any more, until cancelled: an instance that has gone must leave no sockets."""
        while True:
            await asyncio.sleep(_KEEPALIVE_S)
            oldest_use = time.monotonic() - _KEEPALIVE_S
            for origin in list(self._idle):
                idle = self._idle[origin]
                while idle and idle[0][0] < oldest_use:
                    await _close(idle.pop(0)[1])
                if not idle:
                    del self._idle[origin]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        used = await self._used(origin)
        if used is None:
            return await self._send(request, origin, await self._fresh(origin))
        plain = request.extensions
        watch = _Watch()
        request.extensions = {**plain, "trace": watch}
        try:
            return await self._send(request, origin, used)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
            if not watch.was_closing(error):
                raise
            closing = error
        request.extensions = plain
        try:
            return await self._send(request, origin, await self._fresh(origin))
        except (httpx.ConnectError, httpx.ConnectTimeout):
            # Not idle but dead: then it was that which closed the first connection, perhaps over this request.
            raise closing from None

    async def _send(
        self, request: httpx.Request, origin: str, connection: httpx.AsyncHTTPTransport
    ) -> httpx.Response:
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await connection.aclose()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Returned(self, origin, connection, response.stream)
        return response

    async def _used(self, origin: str) -> httpx.AsyncHTTPTransport | None:
        idle = self._idle.get(origin)
        if idle:
            given_back, connection = idle.pop()
            if given_back >= time.monotonic() - _KEEPALIVE_S:
                return connection
            await _close(connection)
        return None

    async def _fresh(self, origin: str) -> httpx.AsyncHTTPTransport:
        context = await self._trust() if origin.startswith("https:") else self._no_tls
        return httpx.AsyncHTTPTransport(verify=context, trust_env=False, limits=_ONE)

    async def _trust(self) -> ssl.SSLContext:
        """All authorities. A caller that is cancelled leaves the reading to the others; a failure is tried anew."""
        if self._tls is None or (self._tls.done() and (self._tls.cancelled() or self._tls.exception())):
            # In a thread: it takes 100 ms and more, in which no stream would go on.
            self._tls = asyncio.ensure_future(asyncio.to_thread(httpx.create_ssl_context, trust_env=False))
        return await asyncio.shield(self._tls)

    async def give_back(self, origin: str, connection: httpx.AsyncHTTPTransport) -> None:
        """After the body was closed. A connection that cannot be used again has closed itself by then."""
        if self._closed:
            await connection.aclose()
        else:
            self._idle.setdefault(origin, []).append((time.monotonic(), connection))

    async def aclose(self) -> None:
        self._closed = True
        if self._tls is not None:
            self._tls.cancel()
        for idle in self._idle.values():
            while idle:
                await _close(idle.pop()[1])


class _Watch:
    """What is to be known of an attempt on a connection used before. Called by httpx with each step of it."""

    def __init__(self) -> None:
        self._begun = time.monotonic()
        self._connected = False

    async def __call__(self, step: str, info: Mapping[str, Any]) -> None:
        if step.startswith("connection.connect"):
            self._connected = True

    def was_closing(self, error: httpx.TransportError) -> bool:
        """Whether the attempt met a connection that was being closed: nothing came back on it, and at once."""
        if self._connected or time.monotonic() - self._begun > _CLOSING_S:
            return False
        # Every other protocol error is about something that was received.
        return not isinstance(error, httpx.RemoteProtocolError) or "without sending a response" in str(error)


async def _close(connection: httpx.AsyncHTTPTransport) -> None:
    """Close what nobody uses. That this fails is nobody's trouble: no request's, and not that of the next one to be
    closed."""
    try:
        await connection.aclose()
    except Exception:
        logger.warning("an idle connection could not be closed", exc_info=True)


class _Returned(httpx.AsyncByteStream):
    """A body whose connection goes back when it is closed."""

    def __init__(
        self,
        connections: Connections,
        origin: str,
        connection: httpx.AsyncHTTPTransport,
        stream: httpx.AsyncByteStream,
    ) -> None:
        self._connections = connections
        self._origin = origin
        self._connection: httpx.AsyncHTTPTransport | None = connection
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await self._stream.aclose()
        except BaseException:
            await connection.aclose()
            raise
        await self._connections.give_back(self._origin, connection)
