"""Measuring small pieces of code against each other: interleaved in one process, on the CPU-time clock.

Machines differ and drift, so a figure says something only beside another one of the same run. Every round
measures every case once, in a new random order; a ratio is taken within each round, and reported is the median
over the rounds, with the 10th and the 90th percentile.

A case is a statement. It is compiled into a loop (``for x in items: statement``), as ``timeit`` does, so that
the loop costs every case the same and no case pays for a function around it. The loop's own cost is not taken
off; the case ``pass`` shows it.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

Name = TypeVar("Name", bound=Hashable)

#: Turns that are timed as one piece, at most; the clock is read twice for them.
_BLOCK = 2000
#: Times that a case settles in a slice, at most; its slices may end early for it.
_SETTLES = 4

_LOOP = """\
def loop(_blocks, _items, _clock, {names}):
    _start = _clock()
    for _block in _blocks:
        for x in _items:
            {statement}
    return _clock() - _start
"""
_ONCE = """\
def once(x, _clock, {names}):
    _clock()
    _start = _clock()
    {statement}
    return _clock() - _start
"""


@dataclass(frozen=True)
class Case:
    """``statement`` sees ``names`` and, as ``x``, one of ``items`` after the other.

    Where its calls leave something behind, ``settle`` takes that back; it runs after every ``at_most`` calls
    and at the end, outside of what is timed (inside, where ``settle_counts``). ``around`` is entered for the
    time of a slice. ``clock`` gives nanoseconds.
    """

    statement: str
    names: Mapping[str, object] = field(default_factory=dict)
    items: Sequence[object] = (0,)
    settle: Callable[[], object] | None = None
    at_most: int = _BLOCK
    settle_counts: bool = False
    around: Callable[[], AbstractContextManager[object]] = nullcontext
    clock: Callable[[], int] = time.thread_time_ns


@dataclass(frozen=True)
class Figure:
    """Nanoseconds per call, one value per round."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """Half of the rounds took less."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """10th percentile."""
        return percentile(self.values, 10)

    @property
    def high(self) -> float:
        """90th percentile."""
        return percentile(self.values, 90)


def percentile(values: Sequence[float], percent: int) -> float:
    """Linear between the two nearest; a lone value is every percentile."""
    if len(values) == 1:
        return values[0]
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def ratio(of: Figure, to: Figure) -> float:
    """The median over the rounds of ``of`` / ``to``, both of the same round; NaN where ``to`` is 0.

    Figures with different numbers of rounds come from different measurements: then it is that of the medians.
    """
    if len(of.values) != len(to.values):
        return of.median / to.median if to.median else float("nan")
    return statistics.median(a / b if b else float("nan") for a, b in zip(of.values, to.values, strict=True))


def measure(cases: Mapping[Name, Case], *, rounds: int, slice_s: float, seed: int = 1) -> dict[Name, Figure]:
    """Every case in every round for about ``slice_s`` seconds. The garbage collector rests meanwhile."""
    rng = random.Random(seed)
    order = list(cases)
    seen: dict[Name, list[float]] = {name: [] for name in cases}
    with _no_collections():
        slices = {name: _Slice(case, slice_s) for name, case in cases.items()}
        for _ in range(rounds):
            rng.shuffle(order)
            for name in order:
                with cases[name].around():
                    seen[name].append(slices[name].run())
            gc.collect()
    return {name: Figure(tuple(values)) for name, values in seen.items()}


def measure_cold(
    cases: Mapping[Name, Case],
    *,
    samples: int,
    evict: Callable[[], object],
    clock: Callable[[], int] = time.perf_counter_ns,
    seed: int = 1,
) -> dict[Name, Figure]:
    """Single calls, each right after ``evict``; what reading the clock takes (median) is taken off.

    ``clock`` is the wall clock, since the CPU-time clock is a system call, which is too slow for one call. It is
    read once more in between, so that its own code is not what is cold.
    """
    rng = random.Random(seed)
    once = {name: _compiled(_ONCE, case) for name, case in cases.items()}
    nothing = _compiled(_ONCE, Case("pass"))
    seen: dict[Name, list[float]] = {name: [] for name in cases}
    overheads = []
    with _no_collections():
        for name, case in cases.items():
            once[name](case.items[0], clock)
            if case.settle is not None:
                case.settle()
        for _ in range(samples):
            for name in rng.sample(list(cases), len(cases)):
                case = cases[name]
                evict()
                seen[name].append(once[name](rng.choice(case.items), clock))
                if case.settle is not None:
                    case.settle()
            evict()
            overheads.append(nothing(0, clock))
    overhead = statistics.median(overheads)
    return {name: Figure(tuple(max(0.0, v - overhead) for v in values)) for name, values in seen.items()}


class _Slice:
    """A case with the number of calls that fill its slice, found by trying."""

    def __init__(self, case: Case, slice_s: float) -> None:
        self._case = case
        self._loop = _compiled(_LOOP, case)
        self._pieces, self._repeats = 1, 1
        wanted = slice_s * 1e9
        # Where settling counts, it is for so many calls as the case says, however long that takes.
        self._take(case.at_most if case.settle_counts else 1)
        self.run()
        while (spent := self.run() * self._block) < wanted / 8 and self._block < case.at_most:
            self._take(min(4 * self._block, case.at_most))
        calls = max(1, int(self._block * wanted / max(spent, 1.0)))
        self._take(case.at_most if case.settle_counts else min(calls, case.at_most))
        blocks = max(1, calls // self._block)
        # What has nothing to settle is timed as one piece. Settling may well take longer than the calls.
        self._pieces, self._repeats = (1, blocks) if case.settle is None else (min(blocks, _SETTLES), 1)

    def _take(self, block: int) -> None:
        items = self._case.items
        self._block = block
        self._items = (list(items) * (block // len(items) + 1))[:block]

    def run(self) -> float:
        """Nanoseconds per call."""
        case, repeats, spent = self._case, range(self._repeats), 0
        for _ in range(self._pieces):
            spent += self._loop(repeats, self._items, case.clock)
            if case.settle is not None:
                start = case.clock()
                case.settle()
                spent += case.clock() - start if case.settle_counts else 0
        return spent / (self._pieces * self._repeats * self._block)


class _no_collections:  # noqa: N801 - reads as what it is in a with statement
    def __enter__(self) -> None:
        self._enabled = gc.isenabled()
        gc.collect()
        gc.disable()

    def __exit__(self, *_: object) -> None:
        if self._enabled:
            gc.enable()


def _compiled(template: str, case: Case) -> Callable[..., int]:
    """The function; the case's names are its defaults, so they are local variables in it."""
    names = ", ".join(f"{name}={name}" for name in case.names)
    scope: dict[str, Any] = dict(case.names)
    exec(template.format(names=names, statement=case.statement), scope)
    function: Callable[..., int] = scope[template.split("(")[0].removeprefix("def ")]
    return function
