"""The worker's connections to the instances."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator

import httpx

# Shorter than the 5 s after which uvicorn, and so most engines, closes an idle connection: a request must not meet
# a connection that is just being closed.
_KEEPALIVE_S = 2.0

_ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=_KEEPALIVE_S)


class Connections(httpx.AsyncBaseTransport):
    """As many connections per instance as there are requests, the one used last first.

    Each is a transport of a single connection. One transport for all would look through every connection it has at
    every request and again at its end, which at some hundred streams costs more than all the rest of the proxy.
    Raises what ``httpx.AsyncHTTPTransport`` raises. Proxy variables of the environment and cookies play no part.
    """

    def __init__(self) -> None:
        # Both are given to each connection: making one, and reading all authorities, takes long.
        self._no_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._tls: ssl.SSLContext | None = None
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
                    await idle.pop(0)[1].aclose()
                if not idle:
                    del self._idle[origin]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        origin = f"{request.url.scheme}://{request.url.netloc.decode('ascii')}"
        connection = await self._take(origin)
        try:
            response = await connection.handle_async_request(request)
        except BaseException:
            await connection.aclose()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Returned(self, origin, connection, response.stream)
        return response

    async def _take(self, origin: str) -> httpx.AsyncHTTPTransport:
        idle = self._idle.get(origin)
        if idle:
            given_back, connection = idle.pop()
            if given_back >= time.monotonic() - _KEEPALIVE_S:
                return connection
            await connection.aclose()
        return httpx.AsyncHTTPTransport(verify=self._context(origin), trust_env=False, limits=_ONE)

    def _context(self, origin: str) -> ssl.SSLContext:
        if not origin.startswith("https:"):
            return self._no_tls
        if self._tls is None:
            self._tls = httpx.create_ssl_context(trust_env=False)
        return self._tls

    async def give_back(self, origin: str, connection: httpx.AsyncHTTPTransport) -> None:
        """After the body was closed. A connection that cannot be used again has closed itself by then."""
        if self._closed:
            await connection.aclose()
        else:
            self._idle.setdefault(origin, []).append((time.monotonic(), connection))

    async def aclose(self) -> None:
        self._closed = True
        for idle in self._idle.values():
            while idle:
                await idle.pop()[1].aclose()


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
