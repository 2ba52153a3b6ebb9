"""Dispatches per second from the lanes' running totals: the rate of an engine that counts nothing itself."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

WINDOW_NS = 60_000_000_000
STEP_NS = 1_000_000_000


class DispatchRate:
    """Remembers the totals of all slots once a second for a minute. Totals give rates, levels never do."""

    def __init__(self, capacity: int) -> None:
        self._rows: deque[tuple[int, NDArray[np.int64]]] = deque()
        self._since_ns = np.zeros(capacity, dtype=np.int64)

    def counted(self, dispatched: NDArray[np.int64], mono_ns: int) -> None:
        """Take in the totals of all slots as they are at ``mono_ns``; cheap when called more often."""
        if self._rows and mono_ns - self._rows[-1][0] < STEP_NS:
            return
        self._rows.append((mono_ns, dispatched.copy()))
        while len(self._rows) > 2 and self._rows[1][0] <= mono_ns - WINDOW_NS:
            self._rows.popleft()

    def clear(self, slot: int, mono_ns: int) -> None:
        """A new instance is in ``slot``: what was dispatched to the one before is none of its own."""
        self._since_ns[slot] = mono_ns
        if self._rows:
            latest = self._rows[-1][1][slot]
            for _, row in self._rows:
                row[slot] = latest

    def per_s(self, slot: int) -> float | None:
        """Dispatches per second over the last minute; ``None`` before the first full second."""
        if len(self._rows) < 2:
            return None
        (first_ns, first), (last_ns, last) = self._rows[0], self._rows[-1]
        span_ns = last_ns - max(first_ns, int(self._since_ns[slot]))
        if span_ns < STEP_NS:
            return None
        return max(0.0, float(last[slot] - first[slot])) / (span_ns / 1e9)
