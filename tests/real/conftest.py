"""The two servers, the monitor and the proxy that all tests here share, and the summary of their figures."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.real.board import Board
from tests.real.engines import Engine
from tests.real.environment import prepare
from tests.real.processes import clear_logs

_FIGURES = pytest.StashKey[list[tuple[str, str]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_FIGURES] = []


@pytest.fixture(scope="session")
def figures(pytestconfig: pytest.Config) -> list[tuple[str, str]]:
    """Append (what, figures) to have it printed at the end of the run."""
    return pytestconfig.stash[_FIGURES]


@pytest.fixture(scope="session")
def board(figures: list[tuple[str, str]]) -> Iterator[Board]:
    """Everything started and answering; all of it stopped at the end, and on Ctrl-C."""
    real = prepare()
    clear_logs()
    # One core is left to everybody else, so with two cores the engines share the other.
    cores = sorted(os.sched_getaffinity(0))[1:] or sorted(os.sched_getaffinity(0))
    with ExitStack() as stack:
        temporary = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="loadboard-")))
        engines = [Engine("a", real, cores[0], temporary), Engine("b", real, cores[-1], temporary)]
        for engine in engines:
            stack.callback(engine.close)
            engine.start()
        took = max(engine.wait_healthy() for engine in engines)
        figures.append(("start of two vLLM servers", f"{took:.0f} s"))
        board = Board(engines)
        stack.callback(board.close)
        board.start()
        yield board


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash[_FIGURES]
    if not rows:
        return
    terminalreporter.section("figures")
    width = max(len(what) for what, _ in rows)
    for what, value in rows:
        terminalreporter.write_line(f"{what:<{width}}  {value}")
