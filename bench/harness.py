"""Measuring small functions against each other: interleaved in one process, on the CPU-time clock.

Machines differ and drift, so a figure says something only beside another one of the same run. Every round
measures every case once, in a new random order; reported are the median over the rounds and the spread
between the 10th and the 90th percentile.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """Nanoseconds of CPU time per call."""

    median: float
    low: float  #: 10th percentile
    high: float  #: 90th percentile


def measure(
    cases: Mapping[str, Callable[[], object]], *, rounds: int = 15, slice_s: float = 0.02, seed: int = 1
) -> dict[str, Figure]:
    """The figures of all cases; each slice of a round calls its case for about ``slice_s`` seconds."""
    rng = random.Random(seed)
    calls = {name: _calls_in(case, slice_s) for name, case in cases.items()}
    seen: dict[str, list[float]] = {name: [] for name in cases}
    order = list(cases)
    for _ in range(rounds):
        rng.shuffle(order)
        for name in order:
            seen[name].append(_per_call(cases[name], calls[name]))
    return {name: _figure(values) for name, values in seen.items()}


def _figure(values: list[float]) -> Figure:
    deciles = statistics.quantiles(values, n=10)
    return Figure(statistics.median(values), deciles[0], deciles[-1])


def _calls_in(case: Callable[[], object], slice_s: float) -> int:
    calls = 1
    while (elapsed := _per_call(case, calls) * calls / 1e9) < slice_s / 4:
        calls *= 4
    return max(1, int(calls * slice_s / max(elapsed, 1e-9)))


def _per_call(case: Callable[[], object], calls: int) -> float:
    turns = range(calls)
    start = time.process_time_ns()
    for _ in turns:
        case()
    return (time.process_time_ns() - start) / calls
