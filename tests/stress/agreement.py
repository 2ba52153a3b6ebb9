"""Every pick implementation gives the same answers on random tables, over sequences of picks that count themselves.

The plain implementation is the oracle; the others must say what it says, to the bit. ``--seed S --first X --cases 1``
repeats case number X of seed S.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from score_table.layout import Geometry
from score_table.location import Location
from score_table.pick import CORES, NO_SLOT
from score_table.segment import Segment
from tests.stress.agreement_cases import Case, batch_shape, batches, cases_of


class Disagreement(AssertionError):
    """Two implementations gave different answers."""


@dataclass
class Tally:
    """What was compared. ``unmarked``, ``marked`` and ``none`` count the answers of the picks by their kind."""

    cases: int = 0
    picks: int = 0
    live_values: int = 0
    unmarked: int = 0
    marked: int = 0
    none: int = 0

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        return (
            f"{self.cases:,} cases, {self.picks:,} picks ({self.unmarked:,} unmarked, {self.marked:,} marked, "
            f"{self.none:,} without a slot) and {self.live_values:,} live values"
        )


@dataclass
class Board:
    """A segment to write cases into, and every implementation on it."""

    segment: Segment
    names: list[str] = field(default_factory=lambda: sorted(CORES, key=lambda name: name != "plain"))

    def __post_init__(self) -> None:
        geometry = self.segment.geometry
        self._cores = [CORES[name](self.segment) for name in self.names]
        self._matrix: NDArray[np.int32] = np.ndarray(
            (geometry.rows, geometry.slots),
            dtype=np.int32,
            buffer=self.segment.data,
            offset=geometry.matrix_offset,
            strides=(geometry.matrix_stride, 4),
        )

    def compare(self, case: Case, tally: Tally) -> None:
        """Put ``case`` into the table and ask every implementation; ``Disagreement`` where one differs."""
        segment, limit = self.segment, self.segment.geometry.lane_cell_limit
        self._matrix[:] = case.rows
        segment.store("n", case.n)
        segment.store("lanes_hi", case.lanes_hi)
        extra = None if case.extra is None else case.extra.data
        asked = [
            (core.choose, None if case.candidates is None else core.prepare(case.candidates))
            for core in self._cores
        ]
        cursor = case.cursor
        for pick, (lane, price, jump) in enumerate(case.steps):
            answers = [choose(candidates, cursor, case.fade, extra) for choose, candidates in asked]
            if answers.count(answers[0]) != len(answers):
                raise self._disagreement(case, f"pick {pick} with cursor {cursor}", answers)
            answer = answers[0]
            tally.picks += 1
            if answer == NO_SLOT:
                tally.none += 1
                break
            slot = answer if answer >= 0 else ~answer
            tally.unmarked += answer >= 0
            tally.marked += answer < 0
            cell = int(self._matrix[2 + lane, slot]) + price
            self._matrix[2 + lane, slot] = min(cell, limit)
            cursor = slot + 1 if jump < 0 else jump
        slots = range(case.n) if case.candidates is None else case.candidates
        values = [core.live(slots, case.fade, extra) for core in self._cores]
        if values.count(values[0]) != len(values):
            raise self._disagreement(case, "live after the picks", values)
        tally.live_values += len(values[0])
        tally.cases += 1

    def _disagreement(self, case: Case, where: str, answers: Sequence[object]) -> Disagreement:
        given = "\n".join(f"  {name}: {answer}" for name, answer in zip(self.names, answers, strict=True))
        return Disagreement(f"case {case.number}, {where}:\n{given}\n{case}")


class Boards:
    """One board per geometry, made in ``directory`` when it is first needed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._boards: dict[Geometry, Board] = {}

    def compare(self, seed: int, batch: int, first: int, end: int) -> Tally:
        """The cases of ``batch`` that lie in [``first``, ``end``)."""
        geometry = batch_shape(batch)[0]
        if geometry not in self._boards:
            place = Location.parse(str(self._directory / f"{os.getpid()}-{secrets.token_hex(4)}"))
            made = Segment.create(place, geometry, mode=0o600, gid=None, max_heartbeat_age_ns=10**9)
            self._boards[geometry] = Board(made)
        tally = Tally()
        for case in cases_of(seed, batch):
            if first <= case.number < end:
                self._boards[geometry].compare(case, tally)
        return tally


# -- the command --------------------------------------------------------------------------------------------------

_boards: Boards


def _start_process(directory: str) -> None:
    global _boards
    _boards = Boards(Path(directory))


def _compare(task: tuple[int, int, int, int]) -> Tally | Disagreement:
    try:
        return _boards.compare(*task)
    except Disagreement as disagreement:
        return disagreement


def main() -> int:
    """Compare, print progress and a summary; 1 at the first disagreement, which is printed whole."""
    parser = argparse.ArgumentParser(prog="python -m tests.stress.agreement", description=__doc__)
    parser.add_argument("--cases", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=None, help="random if not given; it is printed")
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--processes", type=int, default=1)
    args = parser.parse_args()
    seed = secrets.randbits(32) if args.seed is None else args.seed
    end = args.first + args.cases
    print(f"seed {seed}: {', '.join(CORES)}", flush=True)
    tally, started, next_report = Tally(), time.monotonic(), args.cases // 20
    with (
        tempfile.TemporaryDirectory() as directory,
        ProcessPoolExecutor(
            args.processes, multiprocessing.get_context("spawn"), _start_process, (directory,)
        ) as processes,
    ):
        tasks = ((seed, batch, args.first, end) for batch in batches(args.first, end))
        for done in processes.map(_compare, tasks):
            if isinstance(done, Disagreement):
                print(f"DISAGREEMENT, seed {seed}, {done}")
                processes.shutdown(cancel_futures=True)
                return 1
            tally.add(done)
            if tally.cases >= next_report:
                next_report += args.cases // 20
                print(f"{time.monotonic() - started:6.0f} s  {tally}", flush=True)
    print(f"seed {seed}: {', '.join(CORES)} agree on {tally}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
