"""Ratios over repetitions: the geometric mean and how far it can be believed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

# Student's t, 95th percentile, by degrees of freedom from 1: both ends of a 90 % interval.
_T_95: tuple[float, ...] = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812),
    *(1.796, 1.782, 1.771, 1.761, 1.753, 1.746, 1.740, 1.734, 1.729, 1.725),
)
# Above twenty degrees; the last one of the table is a little wide there.
_T_95_BEYOND = _T_95[-1]


class Spread(NamedTuple):
    """Of one ratio over the repetitions. ``low`` and ``high`` are the ends of the 90 % interval of the mean."""

    mean: float
    low: float | None  #: ``None`` with fewer than two repetitions
    high: float | None
    values: tuple[float, ...]  #: of each repetition


def spread(values: Sequence[float]) -> Spread:
    """Of one or more ratios above 0, on their logarithms: mean, and Student's t interval.

    ``ValueError`` for none.
    """
    if not values or min(values) <= 0:
        raise ValueError(f"ratios above 0 are needed, not {list(values)}")
    logs = [math.log(value) for value in values]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Spread(math.exp(mean), None, None, tuple(values))
    degrees = len(logs) - 1
    t = _T_95[degrees - 1] if degrees <= len(_T_95) else _T_95_BEYOND
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return Spread(math.exp(mean), math.exp(mean - half), math.exp(mean + half), tuple(values))
