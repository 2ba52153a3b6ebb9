"""What comes in between a count: collections, signal handlers, a stack that is used up."""

from __future__ import annotations

import pytest

from tests.stress.hosts import CORES, run
from tests.stress.keeper import Keeper

PROGRAMS = "hosts_interrupts"


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    "program",
    [
        "collections_inside_dispatch",
        "handler_that_dispatches",
    ],
)
def test_every_request_is_counted_once_and_ended_once(keeper: Keeper, program: str, core: str) -> None:
    sent = run(PROGRAMS, program, keeper.table, core)["dispatched"]
    keeper.settle(dispatched=sent, ended=sent, count_errors=0, what=program)


@pytest.mark.parametrize("core", CORES)
def test_exceptions_out_of_a_signal_handler_leave_nothing_outstanding(keeper: Keeper, core: str) -> None:
    # The twin in Python says so where an audit had to put something right.
    run(PROGRAMS, "handler_that_raises", keeper.table, core, quiet=False)
    keeper.settle()


@pytest.mark.parametrize("core", CORES)
def test_a_stack_that_is_used_up_in_a_dispatch_leaves_nothing_outstanding(keeper: Keeper, core: str) -> None:
    did = run(PROGRAMS, "recursion_that_ends_in_a_dispatch", keeper.table, core, quiet=False)
    assert did["raised"] > 0
    keeper.settle()


@pytest.mark.parametrize("core", CORES)
def test_an_interpreter_that_ends_with_guards_about_ends_quietly(keeper: Keeper, core: str) -> None:
    for _ in range(3):
        run(PROGRAMS, "guards_left_to_the_end_of_the_interpreter", keeper.table, core)
        keeper.settle()
