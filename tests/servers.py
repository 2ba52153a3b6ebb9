"""Small HTTP servers on loopback that misbehave in one way each, written by hand so that nothing helps them.

``async with serving(answer(b"...")) as server`` listens on a free port; a behaviour is an async function
``(request, writer)`` called once for each request of a connection. Leaving the block ends every connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Request(NamedTuple):
    path: str
    headers: dict[str, str]  # names in lower case


Behaviour = Callable[[Request, asyncio.StreamWriter], Coroutine[Any, Any, None]]


@dataclass
class Server:
    """What a server under :func:`serving` has seen so far."""

    host: str
    port: int
    scheme: str = "http"
    requests: list[Request] = field(default_factory=list)
    connections: int = 0  #: accepted so far
    under_way: int = 0  #: requests being answered now
    most_under_way: int = 0

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


@contextlib.asynccontextmanager
async def serving(
    behaviour: Behaviour, *, host: str = "127.0.0.1", port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[Server]:
    server = Server(host, port, "https" if tls else "http")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        while not writer.is_closing():
            request = await _request(reader)
            server.requests.append(request)
            server.under_way += 1
            server.most_under_way = max(server.most_under_way, server.under_way)
            task = asyncio.ensure_future(behaviour(request, writer))
            try:
                # A behaviour that never ends of itself ends with the other side.
                while not (task.done() or reader.at_eof() or reader.exception()):
                    await asyncio.wait({task}, timeout=0.01)
                if task.done():
                    await task
                    await writer.drain()
                else:
                    break
            finally:
                server.under_way -= 1
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)

    async with _listening(talk, host, port, tls) as server.port:
        yield server


@contextlib.asynccontextmanager
async def serving_bytes(reply: bytes | None) -> AsyncIterator[Server]:
    """Whatever comes first, ``reply`` goes back and the connection ends; ``None`` never replies.

    ``connections`` counts those from which something has come.
    """
    server = Server("127.0.0.1", 0)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        server.connections += 1
        if reply is None:
            await reader.read()  # until the other side ends
        else:
            writer.write(reply)
            await writer.drain()
            writer.close()
            await writer.wait_closed()

    async with _listening(talk, server.host, 0, None) as server.port:
        yield server


@contextlib.asynccontextmanager
async def _listening(
    talk: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Coroutine[Any, Any, None]],
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
) -> AsyncIterator[int]:
    tasks: set[asyncio.Task[None]] = set()
    closing = False

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # A connection that breaks is no error of the server's.
        with contextlib.suppress(OSError, EOFError):
            await talk(reader, writer)

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if closing:
            writer.transport.abort()
            return
        task = asyncio.ensure_future(connection(reader, writer))
        tasks.add(task)
        # Not in the task: one that is cancelled before its first step would never come to it.
        task.add_done_callback(lambda _: writer.transport.abort())
        task.add_done_callback(tasks.discard)

    listener = await asyncio.start_server(accepted, host, port, ssl=tls)
    try:
        yield listener.sockets[0].getsockname()[1]
    finally:
        closing = True
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


async def _request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:-2])}
    return Request(head[0].split(" ")[1], headers)


def answer(body: bytes = b"", status: int = 200, headers: Mapping[str, str] | None = None) -> Behaviour:
    """A complete answer, at once."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        write_head(writer, status, {"Content-Length": str(len(body)), **(headers or {})})
        writer.write(body)

    return behave


def redirect(location: str, status: int = 307) -> Behaviour:
    return answer(b"elsewhere", status, {"Location": location})


def by_path(behaviours: Mapping[str, Behaviour]) -> Behaviour:
    """Each path its own behaviour, 404 for the others."""
    absent = answer(b"not found", 404)

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        await behaviours.get(request.path, absent)(request, writer)

    return behave


def one_after_another(*behaviours: Behaviour) -> Behaviour:
    """The first behaviour for the first request, and so on; the last one for all the rest."""
    left = list(behaviours)

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(request, writer)

    return behave


async def hang(request: Request, writer: asyncio.StreamWriter) -> None:
    """Reads the request and never answers."""
    await asyncio.Event().wait()


async def hang_in_headers(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/pl")
    await asyncio.Event().wait()


async def trickle(request: Request, writer: asyncio.StreamWriter) -> None:
    """A body that never stalls for long and never ends."""
    write_head(writer, 200, {"Content-Length": "1000000"})
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


def flood(size: int, *, chunked: bool = False) -> Behaviour:
    """A body of ``size`` bytes, as fast as it is taken."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        block = b"x" * 65536
        write_head(
            writer, 200, {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(size)}
        )
        for _ in range(size // len(block)):
            writer.write(b"%x\r\n%s\r\n" % (len(block), block) if chunked else block)
            await writer.drain()
        writer.write(b"0\r\n\r\n" if chunked else b"x" * (size % len(block)))

    return behave


async def break_off_mid_body(request: Request, writer: asyncio.StreamWriter) -> None:
    write_head(writer, 200, {"Content-Length": "1000"})
    writer.write(b"half an ans")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def close_unanswered(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


async def reset(request: Request, writer: asyncio.StreamWriter) -> None:
    """Ends the connection as a killed process with unread bytes does: RST instead of FIN."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    writer.transport.abort()


async def speak_no_http(request: Request, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail.example ESMTP\r\n\r\n")
    await writer.drain()
    writer.close()
    await writer.wait_closed()


def write_head(writer: asyncio.StreamWriter, status: int, headers: Mapping[str, str]) -> None:
    lines = [f"HTTP/1.1 {status} Status", *(f"{name}: {value}" for name, value in headers.items())]
    writer.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


@contextlib.contextmanager
def refused_port() -> Iterator[int]:
    """A port of 127.0.0.1 that refuses connections: bound, so that nobody else gets it, and not listening."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        yield sock.getsockname()[1]


@contextlib.contextmanager
def never_accepting_port() -> Iterator[int]:
    """A port where connecting succeeds, by the kernel alone, and nobody ever accepts."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(16)
        yield sock.getsockname()[1]


@contextlib.contextmanager
def silent_port() -> Iterator[int]:
    """A port where connecting hangs, as behind a firewall: the queue of a listener is full."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


def has_ipv6() -> bool:
    """Whether ::1 can be listened on."""
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


def open_fds() -> int:
    """How many file descriptors this process has open."""
    return len(os.listdir("/proc/self/fd"))
