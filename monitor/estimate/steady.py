"""What this host has had at an instance all the time lately: the most that can be a leaked count.

A count that nobody will ever take back is there at every moment. So a load of others below zero, which says
that the engine has less than this host believes, is only believed as far down as the own count has not fallen
below for a while. Gauges that lag, or stand at 0, would otherwise make an instance look idle to the next
request just because the last one has ended there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

#: The least own count is taken over one to two of these.
SPAN_NS = 60_000_000_000


class SteadyOwn:
    """The least own count per slot over the last one to two minutes; 0 until the first minute is over."""

    def __init__(self, capacity: int) -> None:
        self._before = np.zeros(capacity)
        self._now = np.full(capacity, np.inf)
        self._span_ends_ns = 0

    def clear(self, slot: int) -> None:
        """A new instance is there."""
        self._before[slot] = 0.0

    def least(self, own: FloatArray, mono_ns: int) -> FloatArray:
        """Take in the own counts of the first ``len(own)`` slots; the least of each, 0 <= least <= own."""
        n = len(own)
        if mono_ns >= self._span_ends_ns:
            if self._span_ends_ns:
                self._before = np.where(np.isfinite(self._now), self._now, 0.0)
            self._now = np.full(len(self._now), np.inf)
            self._span_ends_ns = mono_ns + SPAN_NS
        np.minimum(self._now[:n], own, out=self._now[:n])
        least: FloatArray = np.minimum(self._before[:n], self._now[:n])
        return least
