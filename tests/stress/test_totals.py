"""Running totals outlive the workers that counted, however a worker ends and however soon its lane is taken."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from proxy_adapter import build_instance_strategy
from score_table.writer import TableWriter
from tests.stress.hosts import wait_for
from tests.tables import make_table
from tests.unit.proxy_adapter.instances import plain


@pytest.fixture
def writer(table_name: str) -> Iterator[TableWriter]:
    made = make_table(table_name, 2, slots=16, lanes=1)
    yield made
    made.close()


def _totals(writer: TableWriter) -> tuple[int, int]:
    read = writer.naturals()
    return int(read.dispatched.sum()), int(read.ended.sum())


def _in_a_child(work: Callable[[], None]) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    assert wait_for(child) == 0


def test_what_a_worker_counted_after_the_last_tick_is_kept_when_it_ends_cleanly(
    table_name: str, writer: TableWriter
) -> None:
    strategy = build_instance_strategy("least_load", table=table_name)
    guards = [strategy.dispatch(plain(2)) for _ in range(10)]
    assert _totals(writer) == (10, 0)
    for guard in guards:
        guard.release()
    strategy.close()
    assert _totals(writer) == (10, 10), "or 10 requests seem to run for ever"


def test_what_a_killed_worker_counted_is_kept_when_its_lane_is_taken_before_the_monitor_looks(
    table_name: str, writer: TableWriter
) -> None:
    def work() -> None:
        strategy = build_instance_strategy("least_load", table=table_name)
        for _ in range(10):
            strategy.dispatch(plain(2)).release()
        assert strategy.status()["lane"] == 0

    for _ in range(3):
        _in_a_child(work)  # the table has one lane
    writer.reclaim()
    assert _totals(writer) == (30, 30)
