"""What the pick has to show: ratios of figures of one run, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.harness import Figure, ratio
from bench.names import (
    COMPANY,
    CPU_OF_BOTH,
    DISPATCH,
    EMPTY,
    NUMPY,
    PICK,
    RPC,
    SCAN,
    SELECT,
    SIZES,
    WALL,
    WITHOUT,
    WRITER,
    Name,
    by_clock,
    usual,
)

_EMPTY = Name(EMPTY)


@dataclass(frozen=True)
class Goal:
    """The ratio of each of ``pairs`` (of, to) is at most ``limit``; the largest is shown.

    ``needs`` are the rates (steps per second by role) that neighbours must have kept for it to count.
    """

    text: str
    pairs: tuple[tuple[Name, Name], ...]
    limit: float
    needs: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Verdict:
    """``figure`` is the largest ratio, ``None`` if it was not measured; ``remark`` says why."""

    goal: Goal
    figure: float | None
    remark: str

    @property
    def met(self) -> bool:
        """What was not measured is not met."""
        return self.figure is not None and not self.remark and self.figure <= self.goal.limit


def _one(text: str, of: Name, to: Name, limit: float, *needs: tuple[str, float]) -> Goal:
    return Goal(text, ((of, to),), limit, needs)


def _undisturbed(text: str, case: str, beside: str, *needs: tuple[str, float]) -> Goal:
    return _one(text, usual(case, beside=beside), usual(case, beside=WITHOUT[beside]), 1.15, *needs)


# Nine tenths of a rate is that rate: timers of a busy machine come late.
_TICKS = ("writer", 900.0)
_COUNTS = ("counter", 90_000.0)

GOALS: tuple[Goal, ...] = (
    _one("native pick / empty C call", usual(PICK), _EMPTY, 8),
    _one("dispatch and release with guard / empty C call", usual(DISPATCH), _EMPTY, 16),
    _one("select(list) with 64 objects / empty C call", usual(SELECT), _EMPTY, 20),
    _one("native pick, N=16 / empty C call", usual(PICK, 16), _EMPTY, 6),
    _one("native pick / list scan", usual(PICK), usual(SCAN), 1 / 100),
    _one("native pick / list scan, N=256", usual(PICK, 256), usual(SCAN, 256), 1 / 200),
    _one("native pick / numpy pick", usual(PICK), usual(NUMPY), 1 / 12),
    Goal(
        "native pick / manager RPC, by wall clock and by CPU time of both",
        tuple((usual(PICK), usual(by_clock(RPC, clock))) for clock in (WALL, CPU_OF_BOTH)),
        1 / 150,
    ),
    _one("native pick, N=4096 / N=64", usual(PICK, 4096), usual(PICK), 60),
    _one("native pick, N=1024, 32 lanes / 1 lane", usual(PICK, 1024, 32), usual(PICK, 1024, 1), 6),
    _undisturbed("native pick, 1 kHz writer / without", PICK, WRITER, _TICKS),
    _undisturbed("dispatch and release, 1 kHz writer / without", DISPATCH, WRITER, _TICKS),
    _undisturbed("native pick, neighbour counting 100 k/s / without", PICK, COMPANY, _COUNTS),
    _undisturbed("dispatch and release, neighbour counting 100 k/s / without", DISPATCH, COMPANY, _COUNTS),
    Goal(
        "numpy pick / list scan, every N >= 16",
        tuple((usual(NUMPY, size), usual(SCAN, size)) for size in SIZES if size >= 16),
        1,
    ),
)


def judge(goals: Sequence[Goal], figures: Mapping[Name, Figure], rates: Mapping[str, float]) -> list[Verdict]:
    """A verdict for each goal. ``rates`` are those that neighbours kept, by role."""
    return [_verdict(goal, figures, rates) for goal in goals]


def _verdict(goal: Goal, figures: Mapping[Name, Figure], rates: Mapping[str, float]) -> Verdict:
    missing = next((name for pair in goal.pairs for name in pair if name not in figures), None)
    if missing is not None:
        where = f", {missing.instances} instances" if missing.instances else ""
        return Verdict(goal, None, f"not measured: {missing.case}{where}")
    ratios = [ratio(figures[of], figures[to]) for of, to in goal.pairs]
    figure = max(ratios) if not any(map(math.isnan, ratios)) else None
    if figure is None:
        return Verdict(goal, None, "too small to be measured")
    slow = [
        f"the {role} kept only {rates.get(role, 0.0):,.0f} of {rate / 0.9:,.0f} a second"
        for role, rate in goal.needs
        if rates.get(role, 0.0) < rate
    ]
    return Verdict(goal, figure, "; ".join(slow))
