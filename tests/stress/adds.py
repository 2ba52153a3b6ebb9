"""Lost counts: four threads of one process in one lane, then four processes in four lanes, all at full speed.

Every worker dispatches and releases through the strategy and keeps each thousandth request open. At the end the
table has to say exactly what was dispatched, what ended and what is kept, and zero once that is released.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Sequence

from proxy_adapter import Dispatch, LeastLoadStrategy
from score_table.identity import Identity
from score_table.lane import Lane
from score_table.layout import LANE_BLOCK
from score_table.location import Location
from score_table.pick import core_class
from score_table.removal import remove_table
from score_table.segment import Segment
from score_table.writer import TableWriter
from tests.stress.rig import Worker
from tests.tables import PRICES, instance_id, publish
from tests.unit.proxy_adapter.instances import Plain, plain

INSTANCES = 4
WORKERS = 4
_KEPT_EACH = 1000
#: A worker lets go of what it keeps at this many, so that no cell comes to its stop.
_KEPT_MOST = 10_000


class LostCountError(AssertionError):
    """The table does not say what was done."""


def by_threads(table: str, adds: int) -> None:
    """``adds`` requests, a quarter by each thread of this process. ``LostCountError`` if one is lost."""
    writer = _table(table)
    lane = Lane(table)
    lane.attach()
    strategies = [LeastLoadStrategy(lane=lane) for _ in range(WORKERS)]
    kept: list[list[Dispatch[Plain]]] = [[] for _ in range(WORKERS)]

    def work(index: int) -> None:
        kept[index] = _work(strategies[index], plain(INSTANCES), adds // WORKERS)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    _compare(writer, adds // WORKERS * WORKERS, sum(map(len, kept)))
    kept.clear()
    lane.outstanding()  # the ledger in Python works off here what finalizers have queued
    _compare(writer, adds // WORKERS * WORKERS, 0)
    lane.close()
    writer.close()
    remove_table(table, force=True)


def by_processes(table: str, adds: int) -> None:
    """The same by four processes, each with a lane of its own."""
    writer = _table(table)

    def work() -> int:
        lane = Lane(table)
        lane.attach()
        _left.append(_work(LeastLoadStrategy(lane=lane), plain(INSTANCES), adds // WORKERS))
        return len(_left[-1])

    workers = [Worker(work) for _ in range(WORKERS)]
    try:
        kept = sum(worker.report() for worker in workers)
        _compare(writer, adds // WORKERS * WORKERS, kept)
    finally:
        for worker in workers:
            worker.kill()
    writer.reclaim()
    outstanding = int(writer.naturals().outstanding.sum())
    if outstanding:
        raise LostCountError(f"{outstanding} requests are outstanding after their workers are gone")
    writer.close()
    remove_table(table, force=True)


_left: list[list[Dispatch[Plain]]] = []


def _table(name: str) -> TableWriter:
    # Nobody ticks meanwhile: the heartbeat counts as fresh for a day.
    writer = TableWriter.open(name, slots=16, lanes=WORKERS, max_heartbeat_age_ns=24 * 3600 * 10**9)
    for slot in range(INSTANCES):
        writer.assign(slot, Identity(instance_id(slot), f"http://127.0.0.1:{9000 + slot}", 1, PRICES))
    publish(writer)
    return writer


def _work(strategy: LeastLoadStrategy, instances: Sequence[Plain], adds: int) -> list[Dispatch[Plain]]:
    kept: list[Dispatch[Plain]] = []
    for start in range(0, adds, _KEPT_EACH):
        for _ in range(min(_KEPT_EACH, adds - start) - 1):
            strategy.dispatch(instances, prompt_tokens=7).release()
        kept.append(strategy.dispatch(instances, prompt_tokens=7))
        if len(kept) >= _KEPT_MOST:
            kept.clear()
    return kept


def _compare(writer: TableWriter, dispatched: int, kept: int) -> None:
    naturals = writer.naturals()
    price = round(PRICES.request) + round(PRICES.prompt_token * 7) + round(PRICES.kv_token * 7)
    expected = {
        "dispatched": dispatched,
        "ended": dispatched - kept,
        "outstanding": kept,
        "kv_tokens": 7 * kept,
        "units in the cells": price * kept,
        "count errors": 0,
    }
    found = {
        "dispatched": int(naturals.dispatched.sum()),
        "ended": int(naturals.ended.sum()),
        "outstanding": int(naturals.outstanding.sum()),
        "kv_tokens": int(naturals.kv_tokens.sum()),
        "units in the cells": int(naturals.cells.sum()),
        "count errors": _count_errors(writer.location),
    }
    if found != expected:
        raise LostCountError(f"the table says {found}, true is {expected}")


def _count_errors(table: str) -> int:
    segment = Segment.open(Location.parse(table), writable=False)
    word = LANE_BLOCK["count_errors"].offset // 8
    return sum(segment.lane_block(lane)[word] for lane in range(segment.lanes_hi))


def main() -> int:
    """Both, for the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--adds", type=float, default=1e8, help="requests by the threads, and by the processes"
    )
    args = parser.parse_args()
    adds = int(args.adds)
    for name, storm in (("4 threads in one lane", by_threads), ("4 processes in 4 lanes", by_processes)):
        started = time.monotonic()
        try:
            storm(f"/loadboard-adds-{os.getpid()}", adds)
        except LostCountError as error:
            print(f"{name}: {error}")
            return 1
        seconds = time.monotonic() - started
        print(f"{name} ({core_class().name}): {adds:,} adds, none lost; {seconds:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
