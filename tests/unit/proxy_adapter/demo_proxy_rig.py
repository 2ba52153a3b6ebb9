"""A real proxy on loopback in front of scripted servers, with a strategy that writes down what it is told."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, cast

import httpx
import uvicorn
from starlette.applications import Starlette

from proxy_adapter import Strategy
from proxy_adapter.demo_proxy.app import create_app
from proxy_adapter.demo_proxy.instances import Instance
from proxy_adapter.demo_proxy.serve import SERVER_OPTIONS
from proxy_adapter.demo_proxy.settings import ProxySettings
from tests.waiting import wait_until_async


class RecordingGuard:
    def __init__(self, instance: Instance, hint: Any, prompt_tokens: int | None) -> None:
        self.instance = instance
        self.hint = hint
        self.prompt_tokens = prompt_tokens
        self.first_tokens = 0
        self.failures: list[BaseException | None] = []
        self.releases = 0

    def first_token(self) -> None:
        self.first_tokens += 1

    def fail(self, error: BaseException | None = None) -> None:
        self.failures.append(error)

    def __enter__(self) -> RecordingGuard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.releases += 1


class RecordingStrategy:
    """Takes the first candidate; every guard it gave is in ``guards``."""

    name = "recording"

    def __init__(self) -> None:
        self.guards: list[RecordingGuard] = []
        self.candidates: list[list[str]] = []
        self.closed = 0

    def dispatch(
        self, instances: Sequence[Instance], hint: Any = None, *, prompt_tokens: int | None = None
    ) -> RecordingGuard:
        self.candidates.append([instance.instance_id for instance in instances])
        guard = RecordingGuard(instances[0], hint, prompt_tokens)
        self.guards.append(guard)
        return guard

    def status(self) -> dict[str, Any]:
        return {"table": None, "picks": len(self.guards)}

    def close(self) -> None:
        self.closed += 1

    async def all_released(self) -> None:
        """Wait until nothing is outstanding, and check that nothing was released twice."""
        await wait_until_async(lambda: all(guard.releases for guard in self.guards), what="the release")
        assert [guard.releases for guard in self.guards] == [1] * len(self.guards)


@dataclass
class Received:
    """One request as a scripted server saw it."""

    line: bytes
    headers: list[tuple[bytes, bytes]]
    body: bytes
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def values(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key == name]

    async def answer(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def chunk(self, data: bytes) -> None:
        await self.answer(b"%x\r\n%b\r\n" % (len(data), data))


Script = Callable[[Received], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
SSE_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
)


async def answer_ok(request: Received) -> None:
    await request.answer(OK)


@dataclass
class Server:
    """A scripted HTTP server; ``gone`` counts the connections that the proxy closed."""

    host: str
    port: int
    path: str = ""
    requests: list[Received] = field(default_factory=list)
    gone: int = 0

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{self.path}"


async def _read_request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Received | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    line, *fields = head[:-4].split(b"\r\n")
    headers = [(name.lower(), value.strip()) for name, _, value in (part.partition(b":") for part in fields)]
    length = next((int(value) for name, value in headers if name == b"content-length"), 0)
    return Received(line, headers, await reader.readexactly(length), reader, writer)


@contextlib.asynccontextmanager
async def serving(script: Script, host: str = "127.0.0.1") -> AsyncIterator[Server]:
    """Run ``script`` for each request. A script that waits is ended together with the server."""
    tasks: set[asyncio.Task[Any]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while (request := await _read_request(reader, writer)) is not None:
                server.requests.append(request)
                await script(request)
                if writer.is_closing():
                    return
        except ConnectionError:
            pass
        except asyncio.CancelledError:
            return
        finally:
            server.gone += 1
            tasks.discard(task)
            writer.close()

    listener = await asyncio.start_server(connection, host, 0)
    server = Server(host, listener.sockets[0].getsockname()[1])
    try:
        yield server
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def until_closed(request: Received) -> None:
    """Wait until the proxy closed the connection of this request."""
    await request.reader.read()


@contextlib.asynccontextmanager
async def refusing(host: str = "127.0.0.1") -> AsyncIterator[Server]:
    """A port where nobody listens."""
    listener = await asyncio.start_server(lambda reader, writer: None, host, 0)
    port = listener.sockets[0].getsockname()[1]
    listener.close()
    await listener.wait_closed()
    yield Server(host, port)


@dataclass
class Proxy:
    host: str
    port: int
    strategy: RecordingStrategy
    server: uvicorn.Server
    client: httpx.AsyncClient

    async def connect(self, request: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Send raw bytes on a connection of its own."""
        reader, writer = await asyncio.open_connection(self.host, self.port)
        writer.write(request)
        await writer.drain()
        return reader, writer


@contextlib.asynccontextmanager
async def running(app: Starlette) -> AsyncIterator[uvicorn.Server]:
    config = uvicorn.Config(
        app,
        host="127.0.0.1",
        port=0,
        log_config=None,
        lifespan="on",
        timeout_graceful_shutdown=5,
        **SERVER_OPTIONS,
    )
    server = uvicorn.Server(config)
    task = asyncio.ensure_future(server.serve())
    try:
        await wait_until_async(lambda: server.started or task.done(), what="the start of the proxy")
        yield server
    finally:
        server.should_exit = True
        await task


@contextlib.asynccontextmanager
async def proxying(*servers: Server, **settings: Any) -> AsyncIterator[Proxy]:
    """The proxy in front of these servers, named ``s0``, ``s1``, ... in this order."""
    strategy = RecordingStrategy()
    named = tuple((f"s{index}", server.url) for index, server in enumerate(servers))
    app = create_app(ProxySettings("recording", None, named, **settings), cast(Strategy, strategy))
    async with running(app) as server:
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        async with httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, timeout=10) as client:
            yield Proxy(host, port, strategy, server, client)
    assert strategy.closed == 1
