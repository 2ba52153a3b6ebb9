"""loadboard in front of two real vLLM servers, from the plateau to a killed server and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx

from score_table.reader import InstanceFacts, TableReader
from tests.real.board import POLL_INTERVAL_S, Board
from tests.real.clients import Clients, Crowd, Request
from tests.real.engines import MAX_TOKENS, Engine, scrape, scraper
from tests.waiting import wait_until

STREAMS = 40
_PLATEAU_S = 40.0
_WARM_UP_TOKENS = 64
_FIRST_TOKENS = 320  # of the streams that measure the speed
_LONG_TOKENS = 3000  # of streams that are still open when their engine is killed
# The interval with its jitter, and the time after which a poll that hangs is given up.
_ONE_POLL_S = POLL_INTERVAL_S * 1.1 + 2.0
_PROMPT_ROOM = 16  # tokens of the longest answer that are left to the prompt
_AGREEMENTS = 3  # readings in which everybody counts the same
_SETTLE_S = 30.0  # longer than the 10 s for which a failed request is held against its instance

Figures = list[tuple[str, str]]


@dataclass(frozen=True)
class Reading:
    """One moment, counted by four parties that know nothing of each other."""

    clients: int
    outstanding: int
    sampled: int | None
    engines: int
    by_instance: str

    def agrees(self, number: int) -> bool:
        return self.clients == self.outstanding == self.sampled == self.engines == number


@asynccontextmanager
async def _clients(board: Board) -> AsyncIterator[Clients]:
    clients = Clients(board.url)
    try:
        yield clients
    finally:
        await clients.close()


async def _until(condition: Callable[[], Awaitable[bool]], timeout_s: float, what: str) -> float:
    """Seconds until ``condition`` held; AssertionError after ``timeout_s``."""
    began = time.monotonic()
    while not await condition():
        assert time.monotonic() - began < timeout_s, f"waited {timeout_s} s in vain for {what}"
        await asyncio.sleep(0.05)
    return time.monotonic() - began


async def _read(board: Board, clients: Clients, http: httpx.AsyncClient) -> Reading:
    dumping = asyncio.create_task(board.dump_soon())
    engines = await asyncio.gather(*(scrape(http, engine) for engine in board.engines))
    view = await dumping
    flowing = clients.flowing_by_instance()
    by_instance = "; ".join(
        f"{name}: {flowing[name]} / {view.rows[name].outstanding} / {view.rows[name].inflight} / {own.inside}"
        f" with {own.kv_usage:.0%} of the KV cache"
        for name, own in zip((engine.instance_id for engine in board.engines), engines, strict=True)
    )
    inside = sum(own.inside for own in engines)
    return Reading(clients.flowing(), view.outstanding, view.sampled, inside, by_instance)


async def _all_idle(board: Board) -> float:
    """Wait until nobody counts a request any more; the seconds that it took."""

    async def idle() -> bool:
        view = await board.dump_soon()
        engines = [await scrape(http, engine) for engine in board.engines]
        seen[:] = [view, *engines]
        held = sum(row.held for row in view.rows.values())
        return (
            view.outstanding == view.sampled == held == 0
            and view.degraded is None
            and view.count_errors == 0
            and not any(own.inside for own in engines)
        )

    seen: list[object] = []
    async with scraper() as http:
        try:
            return await _until(idle, _SETTLE_S, "everybody to count 0")
        except AssertionError as error:
            raise AssertionError(f"{error}: {seen}") from None


async def _flow(clients: Clients, number: int, max_tokens: int) -> list[asyncio.Task[Request]]:
    """Open ``number`` streams and wait until text comes in on each."""
    tasks = [asyncio.create_task(clients.complete(max_tokens)) for _ in range(number)]

    async def flowing() -> bool:
        ended = [request.error for request in clients.requests if request.ended is not None]
        assert not any(ended), f"a stream failed: {ended}"
        return clients.flowing() == number

    await _until(flowing, 60.0, f"{number} streams to flow at once")
    return tasks


async def _tokens_for(board: Board, seconds: float) -> int:
    """How long answers must be for ``STREAMS`` of them at once to take about ``seconds``."""
    async with _clients(board) as clients:
        for tokens in (_WARM_UP_TOKENS, _FIRST_TOKENS):  # an engine's first steps are slow
            requests = await asyncio.gather(*(clients.complete(tokens) for _ in range(STREAMS)))
    assert [request.error for request in clients.requests if request.error] == []
    slowest = max(request.ended - request.started for request in requests if request.ended is not None)
    return min(MAX_TOKENS - _PROMPT_ROOM, max(_FIRST_TOKENS, round(_FIRST_TOKENS * seconds / slowest)))


def test_at_a_plateau_clients_table_and_engines_count_the_same_and_afterwards_zero(
    board: Board, figures: Figures
) -> None:
    async def scenario() -> None:
        max_tokens = await _tokens_for(board, _PLATEAU_S)
        await _all_idle(board)
        readings: list[Reading] = []
        async with _clients(board) as clients, scraper() as http:
            began = time.monotonic()
            streams = await _flow(clients, STREAMS, max_tokens)
            while clients.flowing() == STREAMS:
                reading = await _read(board, clients, http)
                if clients.flowing() == STREAMS:  # else the plateau ended under this reading
                    readings.append(reading)
                await asyncio.sleep(0.5)
            lasted = time.monotonic() - began
            requests = await asyncio.gather(*streams)

        told = "\n".join(str(reading) for reading in readings)
        agreeing = [reading for reading in readings if reading.agrees(STREAMS)]
        assert len(agreeing) >= _AGREEMENTS, f"too few of the readings agree on {STREAMS}:\n{told}"
        # The table is not an estimate: what the clients have open, it holds, in every reading.
        assert {reading.outstanding for reading in readings} == {STREAMS}, told
        assert [request.error for request in requests if request.error] == []
        assert {request.tokens for request in requests} == {max_tokens}
        settled = await _all_idle(board)

        last = agreeing[-1]
        figures.append((f"{STREAMS} streams of {max_tokens} tokens", f"open together for {lasted:.0f} s"))
        figures.append(
            (
                "plateau: clients / table / sampled / engines",
                f"{last.clients} / {last.outstanding} / {last.sampled} / {last.engines}",
            )
        )
        figures.append(("  by instance", last.by_instance))
        figures.append(
            ("  readings", f"{len(readings)}, table right in all, all four agree in {len(agreeing)}")
        )
        figures.append(("afterwards", f"0 / 0 / 0 / 0 after {settled:.1f} s"))

    asyncio.run(scenario())


def test_a_client_that_hangs_up_is_taken_out_of_every_count(board: Board, figures: Figures) -> None:
    async def scenario() -> None:
        async with _clients(board) as clients, scraper() as http:
            streams = await _flow(clients, 16, MAX_TOKENS - _PROMPT_ROOM)
            for stream in streams[:10]:
                stream.cancel()
            await asyncio.gather(*streams[:10], return_exceptions=True)

            async def six_left() -> bool:
                return (await _read(board, clients, http)).agrees(6)

            took = await _until(six_left, _SETTLE_S, "everybody to count the 6 streams that are left")
            for stream in streams[10:]:
                stream.cancel()
            await asyncio.gather(*streams[10:], return_exceptions=True)
        await _all_idle(board)
        figures.append(("10 of 16 clients hang up", f"6 / 6 / 6 / 6 after {took:.1f} s"))

    asyncio.run(scenario())


def test_a_killed_engine_is_left_alone_within_one_poll_and_comes_back_by_itself(
    board: Board, figures: Figures
) -> None:
    survivor, victim = board.engines

    async def scenario() -> None:
        def row() -> InstanceFacts:
            # Read directly: a `loadboard dump` of its own takes longer than the monitor to notice.
            return next(row for row in reader.snapshot().instances if row.id == victim.instance_id)

        def served(engine: Engine, more_than: int) -> Callable[[], Awaitable[bool]]:
            async def condition() -> bool:
                return crowd.served_by(engine.instance_id) > more_than

            return condition

        async with _clients(board) as clients:
            streams = await _flow(clients, 12, _LONG_TOKENS)
            doomed = [request for request in clients.requests if request.instance == victim.instance_id]
            assert 0 < len(doomed) < len(streams)
            crowd = Crowd(clients, size=8, max_tokens=64)
            await _until(served(victim, 0), 60.0, "the crowd to reach both engines")

            assert all(request.flowing for request in doomed), "a stream ended too early for this test"
            at_kill = noticed = row()
            began = time.monotonic()
            killing = asyncio.create_task(asyncio.to_thread(victim.kill))
            dead_at: float | None = None
            while noticed.state != "unreachable":
                await asyncio.sleep(0.005)
                noticed = row()
                if killing.done() and dead_at is None:
                    dead_at = time.monotonic()
                late = dead_at is not None and time.monotonic() - dead_at > _ONE_POLL_S
                assert not late, f"not marked within one poll: {noticed}"
            marked = time.monotonic()
            await killing

            # With the engine marked, not one more pick may go there while the other lives.
            seen = crowd.served_by(survivor.instance_id)
            await _until(served(survivor, seen + 100), 120.0, "100 more requests on the engine that is left")
            assert row().dispatched == noticed.dispatched
            while_dead = [(first, second) for first, second in crowd.sent if first.started > marked]
            assert [first.error for first, _ in while_dead if first.error] == []
            assert {first.instance for first, _ in while_dead} == {survivor.instance_id}

            victim.start()
            started_in = await asyncio.to_thread(victim.wait_healthy)
            healthy = time.monotonic()
            seen = crowd.served_by(victim.instance_id)
            await _until(served(victim, seen), 60.0, "the restarted engine to serve again")
            back = time.monotonic() - healthy
            await crowd.stop()
            ended = await asyncio.gather(*streams)

        assert all(request.error for request in doomed), "a stream on the killed engine claims a good end"
        spared = [request for request in ended if request not in doomed]
        assert [request.error for request in spared if request.error] == []
        retried = [second for _, second in crowd.sent if second is not None]
        assert [second.error for second in retried if second.error] == []
        settled = await _all_idle(board)

        picks = noticed.dispatched - at_kill.dispatched
        figures.append(("SIGKILL of one engine", f"marked in the table after {marked - began:.2f} s"))
        figures.append(("  picks of it", f"{picks} until the mark, 0 in {len(while_dead)} requests after it"))
        figures.append(
            ("  long streams", f"{len(doomed)} on it end in an error, {len(spared)} on the other complete")
        )
        figures.append(("  short requests", f"{len(crowd.sent)} sent, {len(retried)} sent twice, 0 lost"))
        figures.append(
            (
                "restart on the same port",
                f"{started_in:.0f} s to /health, {back:.1f} s more to its first answer",
            )
        )
        figures.append(("afterwards", f"0 / 0 / 0 / 0 after {settled:.1f} s"))

    with TableReader.open(board.table) as reader:
        asyncio.run(scenario())


def test_stopping_in_order_leaves_nothing_counted_and_nothing_in_shared_memory(
    board: Board, figures: Figures
) -> None:
    view = board.dump()
    degraded = ", ".join(f"{count} {reason}" for reason, count in view.degraded_picks.items())
    figures.append(("picks in all", f"{view.picks}, degraded: {degraded or 'none'}"))
    assert board.proxy is not None
    assert board.monitor is not None
    assert board.proxy.stop() == 0, board.proxy.tail()
    wait_until(lambda: board.dump().lanes == 0, _SETTLE_S, "the lanes of the proxy to be free")
    assert board.dump().outstanding == 0
    assert board.monitor.stop() == 0, board.monitor.tail()
    removed = board.command("remove", "--table", board.table)
    assert removed.returncode == 0, removed.stderr
    assert board.files() == []
