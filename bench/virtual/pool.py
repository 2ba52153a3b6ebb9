"""Runs on several processes, each given back as soon as it is done."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import numpy as np

from bench.children import signal_at_parents_end
from bench.virtual.engines import build
from bench.virtual.leftovers import remove_tables_of
from bench.virtual.plan import Run
from bench.virtual.runs import Outcome, run
from loadboard.sim.model import EngineParameters


class Done(NamedTuple):
    """A run and what came of it."""

    run: Run
    outcome: Outcome
    seconds: float  #: of CPU time


class Failed(RuntimeError):
    """A run raised an error or its process died; which one stands in the message."""


def all_of(runs: Sequence[Run], jobs: int) -> Iterator[Done]:
    """Begun in their order, given in that of their ends.

    The processes have the code of this one, whatever happens to its files meanwhile. They leave no table
    behind when this is left early, by an interrupt too. :class:`Failed` at the first run that fails.
    """
    _import_engines()
    context = multiprocessing.get_context("fork")
    workers: dict[Connection, BaseProcess] = {}
    busy: dict[Connection, Run] = {}
    ahead = iter(runs)
    try:
        for _ in range(min(jobs, len(runs))):
            ours, its = context.Pipe()
            process = context.Process(target=_work, args=(its, [*workers, ours], os.getpid()), daemon=True)
            process.start()
            its.close()
            workers[ours] = process
            _give(ours, ahead, busy)
        while busy:
            for ready in wait(list(busy)):
                assert isinstance(ready, Connection)
                done = _taken(ready, busy.pop(ready))
                _give(ready, ahead, busy)
                yield done
    finally:
        _end(workers, busy)


def _give(worker: Connection, ahead: Iterator[Run], busy: dict[Connection, Run]) -> None:
    following = next(ahead, None)
    if following is not None:
        worker.send(following)
        busy[worker] = following


def _taken(worker: Connection, given: Run) -> Done:
    what = f"{given.policy}, {given.scenario.name}, seed {given.seed}"
    try:
        answer = worker.recv()
    except EOFError:
        raise Failed(f"{what}: its process died; is there too little memory?") from None
    if isinstance(answer, str):
        raise Failed(f"{what}: {answer}")
    outcome, seconds = answer
    return Done(given, outcome, seconds)


def _end(workers: dict[Connection, BaseProcess], busy: dict[Connection, Run]) -> None:
    for connection, process in workers.items():
        if connection in busy and process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGINT)
        connection.close()
    for process in workers.values():
        process.join(timeout=10.0)
        if process.is_alive():
            process.kill()
            process.join()
        if process.pid is not None:
            remove_tables_of(process.pid)


def _work(connection: Connection, others: Sequence[Connection], parent: int) -> None:
    for other in others:
        other.close()  # else the end of the parent would not be seen
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    try:
        # A parent that was killed closes no connection in the middle of a run, and takes no result any more.
        signal_at_parents_end(signal.SIGTERM)
        while os.getppid() == parent:
            given: Run = connection.recv()
            began = time.process_time()
            try:
                outcome = run(*given)
            except Exception as error:
                connection.send(f"{type(error).__name__}: {error}")
            else:
                connection.send((outcome, time.process_time() - began))
    except (EOFError, KeyboardInterrupt, BrokenPipeError, ConnectionResetError):
        return
    finally:
        # What an interrupt left between the making of a table and the note of it; nobody else may be there to do it.
        remove_tables_of(os.getpid())


def _stop(*_: object) -> None:
    # Once: a terminal interrupts the whole group, and its parent interrupts it again while it cleans up.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _import_engines() -> None:
    """The one import that otherwise waits for the first run, and would find the files of that moment."""
    one = np.ones(1, np.int64)
    build([EngineParameters()], one, one)
