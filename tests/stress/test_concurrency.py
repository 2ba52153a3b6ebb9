"""Tasks, threads and processes that dispatch beside each other: each request counted once and ended once."""

from __future__ import annotations

import pytest

from tests.stress.hosts import CORES, run
from tests.stress.keeper import Keeper

PROGRAMS = "hosts_concurrency"


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    "program",
    ["threads_of_one_strategy", "threads_that_end_the_same_requests", "threads_of_four_processes"],
)
def test_every_request_of_every_thread_is_counted_once_and_ended_once(
    keeper: Keeper, program: str, core: str
) -> None:
    sent = run(PROGRAMS, program, keeper.table, core)["dispatched"]
    keeper.settle(dispatched=sent, ended=sent, count_errors=0, what=program)


@pytest.mark.parametrize("core", CORES)
def test_ten_thousand_tasks_cancelled_anywhere_leave_only_the_failures(keeper: Keeper, core: str) -> None:
    did = run(PROGRAMS, "cancelled_tasks", keeper.table, core)
    assert did["open"] == did["held"] == 100
    keeper.settle(dispatched=did["dispatched"], ended=did["ended"], count_errors=0)
