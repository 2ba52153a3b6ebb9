"""Threads of one process that count at the same time lose nothing, and nothing turns the GIL on.

``python -I counting_threads.py THREADS REQUESTS TABLE``, with a free-threaded interpreter that has loadboard.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import NamedTuple

import numpy as np

import score_table
from proxy_adapter import build_instance_strategy
from score_table.identity import Identity, Prices
from score_table.removal import remove_table
from score_table.writer import TableWriter

INSTANCES = 4


class Instance(NamedTuple):
    instance_id: str
    host: str
    port: int


def require_no_gil(after: str) -> None:
    """``AssertionError`` naming the step that turned it on."""
    assert not sys._is_gil_enabled(), f"the GIL is on after {after}"  # type: ignore[attr-defined,unused-ignore]


def main() -> None:
    threads, requests, table = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    require_no_gil("importing score_table, proxy_adapter and numpy")
    assert score_table.implementation == "native"
    require_no_gil("importing the native core")
    writer = TableWriter.open(table, slots=64, lanes=8)
    try:
        require_no_gil(f"creating the table {table}")
        for slot in range(INSTANCES):
            prices = Prices(1024.0, 3.072, 0.0512)
            writer.assign(slot, Identity(f"i{slot}", f"http://127.0.0.1:{9000 + slot}", 1, prices))
        level = np.zeros(INSTANCES, dtype=np.int32)
        writer.publish(level, level, time.monotonic_ns())
        strategy = build_instance_strategy("least_load", table=table)
        instances = [Instance(f"i{slot}", "127.0.0.1", 9000 + slot) for slot in range(INSTANCES)]
        with strategy.dispatch(instances):
            pass  # claims the lane: threads that come meanwhile would go on without the table
        begin = threading.Barrier(threads)
        kept: list[object] = []

        def work() -> None:
            begin.wait()
            kept.append(strategy.dispatch(instances))  # stays open
            for _ in range(requests):
                with strategy.dispatch(instances, prompt_tokens=100) as guard:
                    guard.first_token()

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        require_no_gil("counting")
        naturals = writer.naturals()
        found = {
            kind: int(getattr(naturals, kind).sum())
            for kind in ("outstanding", "dispatched", "ended", "held")
        }
        ended = threads * requests + 1
        assert found == {"outstanding": threads, "dispatched": ended + threads, "ended": ended, "held": 0}, (
            found
        )
        for guard in kept:
            guard.release()  # type: ignore[attr-defined]
        naturals = writer.naturals()
        left = int(naturals.outstanding.sum()), int(naturals.cells.sum()), int(naturals.prompt_tokens.sum())
        assert left == (0, 0, 0), left
        strategy.close()
    finally:
        writer.close()
        remove_table(table, force=True)
    print(f"{threads} threads, {requests} requests each on {table}: none lost, the GIL off")


if __name__ == "__main__":
    main()
