"""The whole stack in real processes: simulated engines, monitor, proxy with two workers, streaming clients."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx

from tests.stress.rig import COMMAND, Monitor, look, monitor, outstanding
from tests.waiting import wait_until, wait_until_async


@contextlib.contextmanager
def process(arguments: list[str], announces: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process and the first match of ``announces`` in what it writes; ended at the end."""
    log = cwd / f"{len(list(cwd.iterdir()))}.log"
    with log.open("w") as output:
        running = subprocess.Popen(arguments, stdout=output, stderr=subprocess.STDOUT, text=True, cwd=cwd)
    try:
        deadline = time.monotonic() + 60
        while not (found := re.search(announces, log.read_text())):
            assert running.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(0.05)
        yield running, found.group(1)
    finally:
        running.terminate()
        try:
            running.wait(20)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()


@contextlib.contextmanager
def stack(table: str, directory: Path) -> Iterator[str]:
    """Two simulated engines, monitor and proxy; gives the proxy's URL."""
    engine = [sys.executable, "-m", "loadboard.sim.server", "--slots", "64", "--stream-interval", "16"]
    announced = r"(http://127\.0\.0\.1:\d+)"
    with (
        process(engine, announced, directory) as (_, first),
        process(engine, announced, directory) as (_, second),
        monitor(table, [f"i0={first}", f"i1={second}"], "--interval", "0.3"),
        process(
            [COMMAND, "proxy", "--port", "0", "--workers", "2", "--strategy", "least_load", "--table", table],
            announced,
            directory,
        ) as (_, proxy),
    ):
        workers: set[int] = set()

        def both_know_the_instances() -> bool:
            with contextlib.suppress(httpx.TransportError):
                health = httpx.get(f"{proxy}/health", trust_env=False).json()
                if health["instances"] == ["i0", "i1"]:
                    workers.add(health["pid"])
            return len(workers) == 2

        wait_until(both_know_the_instances, timeout=60, what="two workers that know two instances")
        yield proxy


async def _stream(client: httpx.AsyncClient, tokens: int) -> str:
    """One streamed completion: "done", or "broken"."""
    body = {"model": "simulated", "prompt": "x" * 400, "max_tokens": tokens, "stream": True}
    try:
        async with client.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    return "done"
    except httpx.TransportError:
        pass
    return "broken"


def test_a_killed_proxy_worker_with_50_streams_is_cleared_within_a_second_and_others_stay(
    table_name: str, tmp_path: Path
) -> None:
    async def main(url: str) -> None:
        # A connection per request, so that both workers accept some.
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(base_url=url, timeout=120, limits=limits, trust_env=False) as client:
            streams = [asyncio.create_task(_stream(client, 2000)) for _ in range(120)]
            await wait_until_async(
                lambda: sum(outstanding(table_name)) == 120, timeout=60, what="120 open streams"
            )
            now = look(table_name)
            assert now is not None
            assert [instance.outstanding for instance in now.instances] == [60, 60]
            lanes = {lane.pid: lane.outstanding for lane in now.lanes if lane.outstanding}
            victim = max(lanes, key=lambda pid: lanes[pid])
            assert lanes[victim] >= 50
            os.kill(victim, signal.SIGKILL)
            left = 120 - lanes[victim]
            await wait_until_async(
                lambda: sum(outstanding(table_name)) == left, timeout=1.0, what="the reclaim"
            )
            await wait_until_async(
                lambda: sum(stream.done() for stream in streams) >= lanes[victim],
                timeout=30,
                what="the clients of the dead worker",
            )
            assert sum(outstanding(table_name)) == left
            # The proxy goes on, and replaces its worker.
            assert await _stream(client, 5) == "done"
            outcomes = await asyncio.gather(*streams)
            assert outcomes.count("broken") == lanes[victim]
            assert outcomes.count("done") == left
            await wait_until_async(lambda: outstanding(table_name) == [0, 0], timeout=10, what="all ended")
            await wait_until_async(
                lambda: _inflight(table_name) == [0, 0], timeout=10, what="engines that say they are idle"
            )

    with stack(table_name, tmp_path) as url:
        asyncio.run(main(url))


def test_a_client_that_goes_away_frees_table_and_engine(table_name: str, tmp_path: Path) -> None:
    async def main(url: str) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
            streams = [asyncio.create_task(_stream(client, 4000)) for _ in range(20)]
            await wait_until_async(
                lambda: _inflight(table_name) == [10, 10], timeout=60, what="20 requests in the engines"
            )
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
            await wait_until_async(lambda: outstanding(table_name) == [0, 0], timeout=10, what="the table")
            await wait_until_async(lambda: _inflight(table_name) == [0, 0], timeout=10, what="the engines")

    with stack(table_name, tmp_path) as url:
        asyncio.run(main(url))


def _inflight(table: str) -> list[float | None]:
    now = look(table)
    assert now is not None
    return [instance.inflight for instance in now.instances]


def test_the_proxy_serves_on_while_its_monitor_is_dead_says_so_and_recovers(
    table_name: str, tmp_path: Path
) -> None:
    async def main(url: str, first: Monitor, engines: list[str]) -> None:
        async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as client:

            async def degraded() -> str | None:
                return (await client.get("/health")).json()["table"]["degraded"]  # type: ignore[no-any-return]

            async def until(wanted: str | None, line: str) -> None:
                for _ in range(500):
                    if await degraded() == wanted and log.read_text().count(line) == 1:
                        return
                    await asyncio.sleep(0.02)
                raise AssertionError(f"waited in vain for {wanted}, said once")

            async def served(count: int) -> Counter[str]:
                body = {"model": "simulated", "prompt": "x", "max_tokens": 3}
                answers = [await client.post("/v1/completions", json=body) for _ in range(count)]
                assert {answer.status_code for answer in answers} == {200}
                return Counter(answer.headers["x-loadboard-instance"] for answer in answers)

            assert await degraded() is None
            first.kill()
            assert set(await served(20)) == {"i0", "i1"}, "at once"
            await until("outstanding", "is silent")
            counts = await served(20)
            assert set(counts) == {"i0", "i1"}, counts
            with monitor(table_name, engines, "--interval", "0.3"):
                await until(None, "is back")
                assert set(await served(20)) == {"i0", "i1"}

    log = tmp_path / "2.log"  # the third process started below
    engine = [sys.executable, "-m", "loadboard.sim.server"]
    announced = r"(http://127\.0\.0\.1:\d+)"
    with (
        process(engine, announced, tmp_path) as (_, one),
        process(engine, announced, tmp_path) as (_, two),
    ):
        engines = [f"i0={one}", f"i1={two}"]
        with (
            monitor(table_name, engines, "--interval", "0.3") as first,
            process(
                [COMMAND, "proxy", "--port", "0", "--strategy", "ll", "--table", table_name],
                announced,
                tmp_path,
            ) as (_, proxy),
        ):

            def knows_the_instances() -> bool:
                with contextlib.suppress(httpx.TransportError):
                    return bool(
                        httpx.get(f"{proxy}/health", trust_env=False).json()["instances"] == ["i0", "i1"]
                    )
                return False

            wait_until(knows_the_instances, timeout=60, what="a worker that knows two instances")
            asyncio.run(asyncio.wait_for(main(proxy, first, engines), 90))
