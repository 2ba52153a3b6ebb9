"""The guard: exactly once, on every way out."""

from __future__ import annotations

import asyncio
import email.message
import errno
import gc
import http.client
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from urllib.error import HTTPError, URLError

import httpx
import pytest
from starlette.exceptions import HTTPException

from proxy_adapter import build_instance_strategy, process_lane
from score_table.ledger.failures import is_failure, was_refused
from score_table.reader import TableReader
from score_table.writer import TableWriter
from tests.tables import make_table
from tests.unit.proxy_adapter.instances import plain
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("each_core")


class Fixture:
    def __init__(self, name: str) -> None:
        self.writer: TableWriter = make_table(name, 2)
        self.strategy = build_instance_strategy("least_load", table=name)
        self.instances = plain(2)

    def counts(self) -> tuple[int, int]:
        naturals = self.writer.naturals()
        return int(naturals.outstanding.sum()), int(naturals.held.sum())


@pytest.fixture
def on(table_name: str) -> Iterator[Fixture]:
    fixture = Fixture(table_name)
    yield fixture
    fixture.strategy.close()
    fixture.writer.close()


def test_a_block_left_normally_releases(on: Fixture) -> None:
    with on.strategy.dispatch(on.instances) as d:
        assert on.counts() == (1, 0)
        d.first_token()
    d.release()
    assert on.counts() == (0, 0)


@pytest.mark.parametrize("error", [ValueError("bug of the proxy"), KeyboardInterrupt(), GeneratorExit()])
def test_what_is_not_the_instance_s_fault_releases(on: Fixture, error: BaseException) -> None:
    with pytest.raises(type(error)), on.strategy.dispatch(on.instances):
        raise error
    assert on.counts() == (0, 0)


@pytest.mark.parametrize(
    "error", [ConnectionResetError(), TimeoutError(), asyncio.TimeoutError(), httpx.ReadError("gone")]
)
def test_a_transport_error_is_a_failure_and_is_held(on: Fixture, error: BaseException) -> None:
    with pytest.raises(type(error)), on.strategy.dispatch(on.instances):
        raise error
    assert on.counts() == (1, 1)


def test_a_cancelled_task_releases(on: Fixture) -> None:
    async def main() -> None:
        started = asyncio.Event()

        async def request() -> None:
            async with on.strategy.dispatch(on.instances):
                started.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(request())
        await started.wait()
        assert on.counts() == (1, 0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert on.counts() == (0, 0)


def test_a_stream_closed_early_releases(on: Fixture) -> None:
    async def stream() -> AsyncIterator[int]:
        async with on.strategy.dispatch(on.instances):
            for chunk in range(10):
                yield chunk

    async def main() -> None:
        chunks = stream()
        assert await anext(chunks) == 0
        await chunks.aclose()  # type: ignore[attr-defined]

    asyncio.run(main())
    assert on.counts() == (0, 0)


def test_a_guard_that_is_dropped_releases_by_itself(on: Fixture) -> None:
    guard = on.strategy.dispatch(on.instances)
    assert on.counts() == (1, 0)
    del guard
    gc.collect()
    wait_until(lambda: on.counts() == (0, 0), what="housekeeping")


def test_the_first_of_release_and_fail_decides(on: Fixture) -> None:
    d = on.strategy.dispatch(on.instances)
    d.release()
    d.fail(ConnectionRefusedError())
    assert on.counts() == (0, 0)
    d = on.strategy.dispatch(on.instances)
    d.fail()
    d.release()
    assert on.counts() == (1, 1)


def test_a_guard_is_void_in_a_forked_child(on: Fixture) -> None:
    d = on.strategy.dispatch(on.instances)
    child = os.fork()
    if child == 0:
        try:
            d.release()
            with on.strategy.dispatch(on.instances):
                pass
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    on.writer.reclaim()
    assert on.counts() == (1, 0)
    d.release()
    assert on.counts() == (0, 0)


def test_a_strategy_made_before_a_fork_counts_in_each_child_on_its_own_lane(on: Fixture) -> None:
    children = []
    for _ in range(3):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                d = on.strategy.dispatch(on.instances)
                os.write(write_end, str(on.strategy.status()["lane"]).encode())
                signal.pause()
                d.release()
            finally:
                os._exit(0)
        lane = int(os.read(read_end, 10))
        os.close(read_end)
        os.close(write_end)
        children.append((child, lane))
    assert len({lane for _, lane in children}) == 3
    assert on.counts() == (3, 0)
    for child, _ in children:
        os.kill(child, 9)
        os.waitpid(child, 0)
    wait_until(lambda: (on.writer.reclaim(), on.counts() == (0, 0))[1], what="reclaim")


def test_strategies_of_one_process_share_one_lane_and_the_last_close_gives_it_back(
    table_name: str, on: Fixture
) -> None:
    other = build_instance_strategy("rr", table=table_name)
    other.dispatch(on.instances).release()
    on.strategy.dispatch(on.instances).release()
    assert other.status()["lane"] == on.strategy.status()["lane"] == 0
    other.close()
    with on.strategy.dispatch(on.instances):
        assert on.counts() == (1, 0)
    on.strategy.close()
    with TableReader.open(table_name) as reader:
        assert reader.snapshot().lanes == ()
    assert table_name not in process_lane._lanes
    assert on.strategy.select(on.instances) in on.instances, "a closed strategy goes on without a table"


class _Group(Exception):
    """As ExceptionGroup of Python 3.11 keeps its members."""

    def __init__(self, *exceptions: BaseException) -> None:
        super().__init__("a group")
        self.exceptions = exceptions


def _raised_from(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def _answer(status: int) -> Exception:
    request = httpx.Request("GET", "http://i/")
    return httpx.HTTPStatusError("x", request=request, response=httpx.Response(status))


@pytest.mark.parametrize(
    "error",
    [
        _answer(503),
        _answer(429),
        HTTPError("http://i/", 500, "x", email.message.Message(), None),
        httpx.ConnectError("refused"),
        URLError(ConnectionRefusedError()),
        socket.gaierror(-2, "unknown"),
        OSError(errno.EHOSTUNREACH, "no route"),
        http.client.RemoteDisconnected(),
        HTTPException(502),
        _raised_from(RuntimeError("the upstream failed"), httpx.ReadTimeout("late")),
        _Group(ValueError(), ConnectionRefusedError()),
    ],
)
def test_these_are_the_instance_s_fault(error: Exception) -> None:
    assert is_failure(error)


@pytest.mark.parametrize(
    "error",
    [
        _answer(404),
        HTTPError("http://i/", 404, "x", email.message.Message(), None),
        FileNotFoundError("a template of the proxy"),
        PermissionError("a log file of the proxy"),
        BrokenPipeError("the client went away"),
        asyncio.CancelledError(),
        GeneratorExit(),
        ValueError("a bug of the proxy"),
        HTTPException(404),
        _raised_from(HTTPException(404), httpx.ReadTimeout("late")),
        httpx.PoolTimeout("the proxy opens too few connections"),
        httpx.LocalProtocolError("a header of the proxy"),
        _Group(ValueError(), asyncio.CancelledError()),
    ],
)
def test_these_are_not_the_instance_s_fault(error: BaseException) -> None:
    assert not is_failure(error)


def test_a_signal_handler_that_picks_while_housekeeping_starts_does_not_wait(table_name: str) -> None:
    make_table(table_name, 2).close()
    strategy = build_instance_strategy("least_load", table=table_name)
    held = process_lane.acquire(table_name)
    try:
        with held._start:  # as in the interrupted code
            assert strategy.select(plain(2)).instance_id in ("i0", "i1")
        strategy.dispatch(plain(2)).release()
        assert strategy.status()["lane"] == 0
    finally:
        process_lane.release(held)
        strategy.close()


def test_a_refusal_is_found_in_the_chain_of_causes() -> None:
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = ConnectionRefusedError()
    assert was_refused(wrapped)
    assert not was_refused(ConnectionResetError())
    assert not was_refused(None)
