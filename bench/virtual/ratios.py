"""Ratios over seeds and over mixes, with their spread. All seeds are paired: the same requests for both sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Spread(NamedTuple):
    """A figure, the smallest and largest of what it is the mean of, and its standard error.

    The error is one of the natural logarithm for a ratio (0.02 is 2 %), and plain for a share; NaN where one
    value alone says nothing of it.
    """

    value: float
    low: float
    high: float
    error: float


class Pair(NamedTuple):
    """A quantity by seed, of two policies or situations. Of one length, > 0."""

    of: Sequence[float]
    to: Sequence[float]


def over_seeds(pair: Pair) -> Spread:
    """The geometric mean of the seeds' ratios; their range; the standard error of the mean of their logarithms."""
    logs = np.log(np.asarray(pair.of)) - np.log(np.asarray(pair.to))
    return Spread(math.exp(logs.mean()), math.exp(logs.min()), math.exp(logs.max()), _error(logs))


def of_means(pair: Pair) -> Spread:
    """The ratio of the means over seeds; the range of the seeds' ratios.

    Its standard error by the delta method: the logarithm of a ratio of means moves, to first order, by
    ``mean(of / mean(of) - to / mean(to))``, whose terms are one per seed and independent.
    """
    of, to = np.asarray(pair.of, float), np.asarray(pair.to, float)
    ratios = of / to
    return Spread(
        float(of.mean() / to.mean()),
        float(ratios.min()),
        float(ratios.max()),
        _error(of / of.mean() - to / to.mean()),
    )


def over_mixes(pairs: Sequence[Pair]) -> Spread:
    """The geometric mean of the mixes' :func:`of_means`; their range. Mixes are independent, so the errors of
    the logarithms add up as squares."""
    each = [of_means(pair) for pair in pairs]
    logs = [math.log(spread.value) for spread in each]
    values = [spread.value for spread in each]
    error = math.sqrt(sum(spread.error**2 for spread in each)) / len(each)
    return Spread(math.exp(sum(logs) / len(logs)), min(values), max(values), error)


def mean(values: Sequence[float]) -> Spread:
    """The mean of a share over seeds."""
    array = np.asarray(values, float)
    return Spread(float(array.mean()), float(array.min()), float(array.max()), _error(array))


def _error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
