"""The clients: an open loop that sends a schedule on time, whatever the answers do, and writes down what came.

Requests go over connections that stay open, each over one of the idle ones at random, as from many clients.
Which worker of a gateway accepts a connection is up to the kernel, which prefers some; so as many are opened
as it takes to have equally many to each, and the others are closed again. Times are of this process's
monotonic clock.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

import h11

from bench.peers.arrivals import Planned

#: Header in which a gateway may tell which of its processes passed the answer on.
WORKER_HEADER = "x-worker"

_READ_BYTES = 65536
_ANSWER_TIMEOUT_S = 120.0
_LEAD_S = 0.1
# Connections are opened so many at once: while one worker is busy with some, others accept too.
_AT_ONCE = 16
_OPENING_S = 60.0


class UnevenError(Exception):
    """Some worker accepted too few connections."""


class Record(NamedTuple):
    """What became of one planned request. Times in seconds after the schedule's start."""

    sent_s: float
    first_s: float  #: first byte of the body
    end_s: float
    status: int  #: 0: there was no whole answer
    worker: str  #: process id of the gateway's worker; empty where it has no others
    body: bytes  #: empty for streams


class Connection:
    """One connection, for one request at a time."""

    def __init__(self, host: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._host = host
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self.usable = True  #: for another request
        self.worker = ""  #: who accepted it

    @classmethod
    async def open(cls, url: str) -> Connection:
        """To ``http://host:port``; ``OSError`` where that fails."""
        parts = urlsplit(url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        return cls(parts.netloc, reader, writer)

    async def meet(self) -> None:
        """Learn who accepted it: a header says so, or the demo proxy's ``/health``. Errors as of :meth:`ask`."""
        answer = await self.ask("/health", b"", 0.0, method="GET")
        if not self.worker and answer.body:
            self.worker = str(json.loads(answer.body)["pid"])

    async def ask(self, path: str, body: bytes, started: float, *, method: str = "POST") -> Record:
        """Send one request and read its answer to the end. ``OSError``, ``EOFError`` or ``h11.ProtocolError``
        where there is none; then the connection is not usable any more."""
        self.usable = False
        headers = [
            ("host", self._host),
            ("content-type", "application/json"),
            ("content-length", str(len(body))),
        ]
        request = h11.Request(method=method, target=path, headers=headers)
        wire = b"".join(
            self._http.send(event) or b"" for event in (request, h11.Data(body), h11.EndOfMessage())
        )
        sent = time.monotonic()
        self._writer.write(wire)
        first, status, content = 0.0, 0, b""
        keeps = True
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                data = await self._reader.read(_READ_BYTES)
                if not data:
                    raise EOFError("the connection was closed before the answer was complete")
                self._http.receive_data(data)
            elif isinstance(event, h11.Response):
                found = {name.lower(): value for name, value in event.headers}
                status = event.status_code
                self.worker = found.get(WORKER_HEADER.encode(), self.worker.encode()).decode()
                keeps = found.get(b"content-type", b"").startswith(b"application/json")
            elif isinstance(event, h11.Data):
                first = first or time.monotonic()
                content += event.data if keeps else b""
            elif isinstance(event, h11.EndOfMessage):
                break
        end = time.monotonic()
        if self._http.our_state is self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self.usable = True
        return Record(sent - started, (first or end) - started, end - started, status, self.worker, content)

    @property
    def is_closed(self) -> bool:
        """Whether the other side has closed it."""
        return self._reader.at_eof() or self._writer.is_closing()

    def close(self) -> None:
        """Without waiting for the other side."""
        self._writer.close()


class Connections:
    """Those to one address that are idle; more are opened when none is."""

    def __init__(self, url: str, rng: random.Random) -> None:
        self._url = url
        self._rng = rng
        self._idle: list[Connection] = []

    async def open(self, workers: int, each: int) -> None:
        """``each`` to every one of ``workers``. ``UnevenError`` where that does not come about in a minute."""
        deadline = time.monotonic() + _OPENING_S
        have: Counter[str] = Counter()
        while len(have) < workers or min(have.values()) < each:
            if time.monotonic() > deadline:
                raise UnevenError(
                    f"{workers} workers at {self._url} accepted {dict(have)}, wanted {each} each"
                )
            opened = await asyncio.gather(*(Connection.open(self._url) for _ in range(_AT_ONCE)))
            await asyncio.gather(*(connection.meet() for connection in opened))
            for connection in opened:
                if have[connection.worker] < each:
                    have[connection.worker] += 1
                    self._idle.append(connection)
                else:
                    connection.close()

    async def ask(self, path: str, body: bytes, started: float) -> Record:
        """As :meth:`Connection.ask`."""
        connection = self._any_idle() or await Connection.open(self._url)
        try:
            return await connection.ask(path, body, started)
        finally:
            if connection.usable:
                self._idle.append(connection)
            else:
                connection.close()

    def _any_idle(self) -> Connection | None:
        """One at random. Those that the other side has closed meanwhile, as servers do after a time, are left out."""
        while self._idle:
            # The order of the others does not matter.
            at = self._rng.randrange(len(self._idle))
            self._idle[at], self._idle[-1] = self._idle[-1], self._idle[at]
            connection = self._idle.pop()
            if not connection.is_closed:
                return connection
            connection.close()
        return None

    def close(self) -> None:
        """All that are idle."""
        for connection in self._idle:
            connection.close()


class Door(NamedTuple):
    """Where to send, and how many worker processes accept there."""

    url: str
    workers: int = 1


async def send_all(
    plan: Sequence[Planned], doors: Mapping[str, Door], *, connections: int, seed: str
) -> list[Record]:
    """Send every request of ``plan`` when it is due to the door of its target; a record for each, in that order.

    ``connections`` are opened to every worker of each door before the first request; more when none is idle.
    A request without a whole answer within two minutes has status 0.
    """
    rng = random.Random(seed)
    pools = {target: Connections(door.url, rng) for target, door in doors.items()}
    for target, pool in pools.items():
        await pool.open(doors[target].workers, connections)
    loop = asyncio.get_running_loop()
    # A collection stops everything for some milliseconds; a schedule leaves little to collect.
    gc.collect()
    gc.disable()
    try:
        started = time.monotonic() + _LEAD_S
        tasks = []
        for request in plan:
            wait_s = started + request.due_s - time.monotonic()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            tasks.append(loop.create_task(_one(request, pools[request.target], started)))
        return list(await asyncio.gather(*tasks))
    finally:
        gc.enable()
        for pool in pools.values():
            pool.close()


async def ask_in_turn(
    request: Planned, doors: Mapping[str, Door], *, rounds: int, gap_s: float, seed: str
) -> dict[str, list[Record]]:
    """One request at a time: in each of ``rounds`` one to each door, in a new random order, ``gap_s`` apart."""
    rng = random.Random(seed)
    pools = {name: Connections(door.url, rng) for name, door in doors.items()}
    found: dict[str, list[Record]] = {name: [] for name in doors}
    for name, pool in pools.items():
        await pool.open(doors[name].workers, 1)
    started = time.monotonic()
    try:
        for _ in range(rounds):
            for name in rng.sample(list(pools), len(pools)):
                await asyncio.sleep(gap_s)
                found[name].append(await _one(request, pools[name], started))
    finally:
        for pool in pools.values():
            pool.close()
    return found


async def _one(request: Planned, pool: Connections, started: float) -> Record:
    began = time.monotonic() - started
    try:
        asked = pool.ask(request.path, request.body, started)
        return await asyncio.wait_for(asked, _ANSWER_TIMEOUT_S)
    except (OSError, EOFError, h11.ProtocolError, asyncio.TimeoutError):
        return Record(began, began, time.monotonic() - started, 0, "", b"")
