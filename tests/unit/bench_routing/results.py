"""Outcomes made by hand."""

from __future__ import annotations

from collections.abc import Callable

from bench.virtual.plan import Run
from bench.virtual.runs import Outcome


def outcome(p99: float = 1.0, failed: float = 0.0, good: float = 1.0) -> Outcome:
    return Outcome(
        requests=1000,
        ttft_mean=p99 / 4,
        ttft_p50=p99 / 5,
        ttft_p90=p99 / 2,
        ttft_p99=p99,
        total_p99=10 * p99,
        failed=failed,
        good=good,
    )


def everything(p99: Callable[[Run], float] = lambda run: 1.0) -> Callable[[Run], Outcome | None]:
    """Results in which no run is missing."""
    return lambda run: outcome(p99(run))
