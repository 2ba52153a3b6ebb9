"""One GET from one instance: the only module, with ``trust``, that knows the HTTP library.

Every exception of that library ends here, as a :class:`FetchFailure` with a sentence that names the instance
and the URL, says what is wrong and what to do, and holds no secret (no header, no query, no user info).
"""

from __future__ import annotations

import asyncio
import functools
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import httpx

from monitor.polling.causes import Stage, broken, late, words_of
from monitor.polling.failure import FailureKind, FetchFailure
from monitor.polling.trust import Trust

__all__ = ["Body", "FailureKind", "FetchFailure", "Fetcher", "Target"]

DEFAULT_MAX_BODY_BYTES = 4 * 1024 * 1024

_REDIRECTS = frozenset({301, 302, 303, 307, 308})

#: OpenMetrics is never asked for: vLLM and SGLang rename their samples then. Nor is compression: it costs
#: the engine's API loop more than the bytes cost the network.
_HEADERS = {
    "accept": "text/plain;version=0.0.4, application/json;q=0.9, */*;q=0.1",
    "accept-encoding": "identity",
    "user-agent": "loadboard",
}

#: Two, for an instance that redirects from http to https. An idle connection is kept until the instance
#: closes it; whether it did is looked at before each use.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=2, keepalive_expiry=None)

#: How a connection ends that the instance closed while it was idle, or at any other time.
_BROKEN = (httpx.ReadError, httpx.WriteError, httpx.RemoteProtocolError)


class Body(NamedTuple):
    """A complete answer; any status below 500, or 501."""

    status: int
    content: bytes


@dataclass(frozen=True)
class Target:
    """Where and how one instance is asked. ``url`` is the base that paths are appended to.

    ``headers`` (a bearer token, say) go to the host of ``url`` only. ``verify``: ``True`` for the trusted
    authorities that come with the HTTP library, ``False`` for no check, a path for a CA file or folder.
    """

    instance_id: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    verify: bool | str = True


class Fetcher:
    """Keep-alive connections to many instances, with a total deadline and a cap on the body.

    Each target has a connection pool of its own: a pool looks at all its connections on every request, so
    one pool for all would make every poll slower with every further instance. TLS settings are shared.

    The proxy environment (``HTTP_PROXY`` and the like) is ignored. Belongs to one event loop.
    ``max_body_bytes`` > 0.
    """

    def __init__(self, max_body_bytes: int = DEFAULT_MAX_BODY_BYTES) -> None:
        self._max_body_bytes = max_body_bytes
        self._trust = Trust()
        # By identity; the target is kept with them so that its id is not reused meanwhile. One per scheme.
        self._pools: dict[int, tuple[Target, dict[str, httpx.AsyncHTTPTransport]]] = {}

    async def get(self, target: Target, path: str, timeout_s: float) -> Body:
        """The answer to ``GET url + path``, complete within ``timeout_s`` seconds, redirect included.

        One redirect is followed, to the same host and port or to https on the same host. Never more than
        one request is under way for one call. Raises :class:`FetchFailure`.
        """
        url = _joined(target, path)
        exchange = _Exchange(target, functools.partial(self._pool, target), self._max_body_bytes)
        task = asyncio.ensure_future(exchange.run(url))
        try:
            # Not wait_for: up to Python 3.11 it swallows a cancellation that meets the end of the task.
            await asyncio.wait({task}, timeout=timeout_s)
            if not task.done():
                raise exchange.timed_out(timeout_s)
            return task.result()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def forget(self, target: Target) -> None:
        """Close the connections to a target that is not asked any more. Harmless if there are none."""
        held = self._pools.pop(id(target), None)
        for pool in held[1].values() if held else ():
            await pool.aclose()

    async def aclose(self) -> None:
        """Close every connection. The fetcher can be used again afterwards."""
        for target, _ in list(self._pools.values()):
            await self.forget(target)
        await self._trust.aclose()

    async def _pool(self, target: Target, scheme: str) -> httpx.AsyncHTTPTransport:
        """Raises ``OSError`` where the authorities that ``target`` names cannot be read."""
        trust = await self._trust.context(target.verify) if scheme == "https" else self._trust.nobody
        pools = self._pools.setdefault(id(target), (target, {}))[1]
        if scheme not in pools:
            pools[scheme] = httpx.AsyncHTTPTransport(verify=trust, trust_env=False, limits=_LIMITS)
        return pools[scheme]


class _Answer(NamedTuple):
    status: int
    location: str | None  # of a redirect
    content: bytes


class _Exchange:
    """One call of :meth:`Fetcher.get`: at most two requests, and how far the present one has come."""

    def __init__(
        self,
        target: Target,
        pool_of: Callable[[str], Awaitable[httpx.AsyncHTTPTransport]],
        max_body_bytes: int,
    ) -> None:
        self._target = target
        self._pool_of = pool_of
        self._max_body_bytes = max_body_bytes
        self._where = ""
        self._stage = Stage.CONNECT
        self._fresh = False  # the request has opened a connection
        self._received = 0
        self._half_open: Any = None  # a connection without its handshake yet, which no pool knows

    async def run(self, url: httpx.URL) -> Body:
        answer = await self._ask(url)
        if answer.location is not None:
            answer = await self._ask(self._redirected(url, answer.location))
            if answer.location is not None:
                raise self._failure(
                    FailureKind.REDIRECT,
                    f"{self._where} redirects once more; set metrics_url to where it ends",
                )
        if answer.status >= 500 and answer.status != 501:
            raise self._failure(
                FailureKind.STATUS,
                f"{self._where} answers {answer.status}; the engine is starting, overloaded or broken, "
                "see its log",
                answer.status,
            )
        return Body(answer.status, answer.content)

    async def _ask(self, url: httpx.URL) -> _Answer:
        self._where = _shown(url)
        pool = await self._pool(url)
        try:
            try:
                return await self._send(url, pool)
            except _BROKEN:
                if self._fresh or self._stage is not Stage.HEADERS:
                    raise
            # The instance closed the idle connection in the moment in which it was used again.
            return await self._send(url, pool)
        except httpx.LocalProtocolError:
            # "from None": the error quotes the header that it does not like.
            raise self._failure(
                FailureKind.LOCAL, f"a header for {self._where} cannot be sent; correct its bearer token"
            ) from None
        except (httpx.TransportError, socket.gaierror) as error:
            kind, text = broken(error, self._stage, self._where, self._received)
            raise self._failure(kind, text) from error

    async def _pool(self, url: httpx.URL) -> httpx.AsyncHTTPTransport:
        self._stage = Stage.TRUST
        try:
            return await self._pool_of(url.scheme)
        except OSError as error:
            raise self._failure(
                FailureKind.LOCAL,
                f"the CA file {self._target.verify} for {self._where} cannot be used ({words_of(error)}); "
                "correct ca_file",
            ) from error

    async def _send(self, url: httpx.URL, pool: httpx.AsyncHTTPTransport) -> _Answer:
        self._stage, self._fresh, self._received = Stage.CONNECT, False, 0
        response: httpx.Response | None = None
        try:
            response = await pool.handle_async_request(self._request(url))
            self._stage = Stage.BODY
            content = await self._content(response)
            redirect = response.status_code in _REDIRECTS
            location = response.headers.get("location") if redirect else None
            return _Answer(response.status_code, location, content)
        finally:
            if response is not None:
                await response.aclose()
            if self._half_open is not None:
                await self._half_open.aclose()
                self._half_open = None

    def _request(self, url: httpx.URL) -> httpx.Request:
        try:
            headers = httpx.Headers({**_HEADERS, **self._target.headers})
            return httpx.Request("GET", url, headers=headers, extensions={"trace": self._trace})
        except UnicodeEncodeError:
            raise self._failure(
                FailureKind.LOCAL, f"a header for {self._where} is not ASCII; correct its bearer token"
            ) from None

    async def _trace(self, event: str, info: Mapping[str, Any]) -> None:
        if event == "connection.connect_tcp.started":
            self._fresh = True
            await self._look_up(info["host"], info["port"])
        elif event == "connection.connect_tcp.complete":
            self._stage, self._half_open = Stage.HANDSHAKE, info["return_value"]
        elif event == "http11.send_request_headers.started":
            self._stage, self._half_open = Stage.HEADERS, None

    async def _look_up(self, host: str, port: int) -> None:
        """The library looks the name up as a part of connecting. It is done before as well, because a name
        server that hangs must not count as an instance that cannot be connected to."""
        if not _is_address(host):
            self._stage = Stage.LOOKUP
            loop = asyncio.get_running_loop()
            await loop.getaddrinfo(host.encode("ascii"), port, type=socket.SOCK_STREAM)
            self._stage = Stage.CONNECT

    async def _content(self, response: httpx.Response) -> bytes:
        if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            # Not unpacked: a few kilobytes could become gigabytes, and nothing of the kind was asked for.
            raise self._failure(
                FailureKind.PROTOCOL,
                f"{self._where} sends a compressed body unasked; switch that off for what stands before it",
            )
        content = bytearray()
        async for chunk in response.aiter_raw():
            content += chunk
            self._received = len(content)
            if self._received > self._max_body_bytes:
                raise self._failure(
                    FailureKind.TOO_LARGE,
                    f"{self._where} sends more than {self._max_body_bytes} bytes; check that it is the "
                    "engine's, or raise max_body_bytes",
                )
        return bytes(content)

    def _redirected(self, url: httpx.URL, location: str) -> httpx.URL:
        try:
            to = url.join(location).copy_with(userinfo=b"", fragment=None)
        except (httpx.InvalidURL, ValueError):
            raise self._failure(
                FailureKind.REDIRECT, f"{self._where} redirects to no valid URL; set metrics_url"
            ) from None
        upgraded = (url.scheme, to.scheme) == ("http", "https")
        if to.host == url.host and (upgraded or (to.scheme == url.scheme and _port(to) == _port(url))):
            return to
        raise self._failure(
            FailureKind.REDIRECT,
            f"{self._where} redirects away from {_server(url)} to {_server(to)}; if that is right, "
            "set metrics_url to it",
        )

    def timed_out(self, timeout_s: float) -> FetchFailure:
        kind, text = late(self._stage, self._where, self._received, timeout_s)
        return self._failure(kind, text)

    def _failure(self, kind: FailureKind, text: str, status: int | None = None) -> FetchFailure:
        return _failure(kind, self._target, text, status)


def _failure(kind: FailureKind, target: Target, text: str, status: int | None = None) -> FetchFailure:
    return FetchFailure(kind, f"instance {target.instance_id}: {text}", status)


def _joined(target: Target, path: str) -> httpx.URL:
    try:
        base = httpx.URL(target.url)
        if base.scheme not in ("http", "https") or not base.host:
            raise httpx.InvalidURL("no http or https URL with a host")
        raw_path = base.raw_path.partition(b"?")[0].rstrip(b"/") + path.encode("ascii")
        return base.copy_with(userinfo=b"", raw_path=raw_path, fragment=None)
    except (httpx.InvalidURL, ValueError):
        raise _failure(FailureKind.LOCAL, target, "its url is not valid; correct it") from None


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _shown(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii')}{url.path}"


def _server(url: httpx.URL) -> str:
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{host}:{_port(url)}"


def _port(url: httpx.URL) -> int | None:
    return url.port or {"http": 80, "https": 443}.get(url.scheme)
