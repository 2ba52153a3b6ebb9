"""Programs whose requests run beside each other: tasks that are cancelled, threads, processes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import random
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any

from score_table.reader import TableReader
from tests.stress.hosts import INSTANCES, attached, main, open_in, until, until_read, wait_for
from tests.unit.proxy_adapter.instances import plain


def cancelled_tasks(table: str, tasks: str = "10000", failures: str = "100") -> dict[str, Any]:
    """Tasks cancelled at random points, streams closed early or left to the collector, exceptions of all kinds."""
    strategy, instances = attached(table), plain(INSTANCES)
    rng = random.Random(5)
    sent = [0]

    async def stream(length: int) -> AsyncIterator[int]:
        async with strategy.dispatch(instances, {"stream": True}, prompt_tokens=100) as guard:
            sent[0] += 1
            for chunk in range(length):
                await asyncio.sleep(0)
                guard.first_token()
                yield chunk

    async def request(error: BaseException | None) -> None:
        async with strategy.dispatch(instances, prompt_tokens=rng.randrange(1000)) as guard:
            sent[0] += 1
            for _ in range(rng.randrange(5)):
                await asyncio.sleep(0)
            guard.first_token()
            if error is not None:
                raise error

    async def consume() -> None:
        chunks = stream(6)
        async for chunk in chunks:
            if chunk == 2:
                if rng.random() < 0.5:
                    await chunks.aclose()  # type: ignore[attr-defined]
                return  # or leave it to the loop's hooks

    def one() -> asyncio.Task[None]:
        kind = rng.random()
        if kind < 0.4:
            return asyncio.create_task(consume())
        error = rng.choice((None, None, ValueError("bug"), GeneratorExit(), asyncio.CancelledError()))
        return asyncio.create_task(request(error))

    async def all_of_them() -> None:
        for _ in range(int(tasks) // 100):
            batch = [one() for _ in range(100)]
            while any(not task.done() for task in batch):
                for task in rng.sample(batch, 20):
                    task.cancel()
                await asyncio.sleep(0)
            for task in batch:
                with contextlib.suppress(asyncio.CancelledError, ValueError, GeneratorExit):
                    task.result()
        await asyncio.get_running_loop().shutdown_asyncgens()

    async def failing() -> None:
        batch = [asyncio.create_task(request(ConnectionResetError())) for _ in range(int(failures))]
        await asyncio.wait(batch)
        assert all(isinstance(task.exception(), ConnectionResetError) for task in batch)

    asyncio.run(all_of_them())
    gc.collect()
    until(lambda: open_in(table) == 0, "no request after all tasks", timeout=2.0)
    until_read(table)
    before = sent[0]
    asyncio.run(failing())
    with TableReader.open(table) as reader:
        held = sum(instance.held for instance in reader.snapshot().instances)
    until_read(table)
    return {"dispatched": sent[0], "ended": before, "open": open_in(table), "held": held}


def threads_of_one_strategy(table: str, rounds: str = "2000") -> dict[str, Any]:
    """Four threads dispatch through one strategy as fast as they can."""
    strategy, instances = attached(table), plain(INSTANCES)
    threads = 4
    start = threading.Barrier(threads)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work(seed: int) -> None:
        rng, guards = random.Random(seed), []
        start.wait()
        for _ in range(int(rounds)):
            guards.append(strategy.dispatch(instances, prompt_tokens=rng.randrange(2000)))
            if len(guards) > 10:
                guards.pop(rng.randrange(10)).release()
        for guard in guards:
            guard.first_token()
            guard.release()

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.setswitchinterval(switch)
    until_read(table)
    return {"dispatched": threads * int(rounds)}


def threads_that_end_the_same_requests(table: str, rounds: str = "2000") -> dict[str, Any]:
    """Every request is ended by four threads at once, each in its own way."""
    strategy, instances = attached(table), plain(INSTANCES)
    guards = [strategy.dispatch(instances, prompt_tokens=100) for _ in range(int(rounds))]
    start = threading.Barrier(4)
    switch = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def work(index: int) -> None:
        start.wait()
        for guard in guards:
            if index < 2:
                guard.first_token()
            if index % 2:
                guard.release()
            else:
                guard.__exit__(None, None, None)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    sys.setswitchinterval(switch)
    until_read(table)
    return {"dispatched": int(rounds)}


def threads_of_four_processes(table: str, rounds: str = "1000") -> dict[str, Any]:
    """Four processes of four threads each."""
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            threads_of_one_strategy(table, rounds)
            os._exit(0)
        children.append(child)
    for child in children:
        assert wait_for(child, 60) == 0
    return {"dispatched": 16 * int(rounds)}


if __name__ == "__main__":
    main(
        {
            program.__name__: program
            for program in (
                cancelled_tasks,
                threads_of_one_strategy,
                threads_that_end_the_same_requests,
                threads_of_four_processes,
            )
        }
    )
