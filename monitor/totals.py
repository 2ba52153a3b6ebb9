"""Requests dispatched to, and ended at, each instance since it was admitted to its slot."""

from __future__ import annotations

import numpy as np

from monitor.counts import Counts


class Totals:
    """The lanes' running totals per slot, less what they were when the slot got its instance."""

    def __init__(self, capacity: int) -> None:
        #: Slots admitted since the lanes were read, with the totals that they go on from.
        self._begins: dict[int, tuple[int, int]] = {}
        self._dispatched_before = np.zeros(capacity, dtype=np.int64)
        self._ended_before = np.zeros(capacity, dtype=np.int64)
        self._counts: Counts | None = None

    def begin(self, slot: int, dispatched: int = 0, ended: int = 0) -> None:
        """Just admitted, ``slot`` goes on from these totals, which an earlier monitor may have left."""
        self._begins[slot] = (dispatched, ended)

    def counted(self, counts: Counts) -> None:
        """The lanes were read."""
        self._counts = counts
        for slot, (dispatched, ended) in self._begins.items():
            self._dispatched_before[slot] = counts.dispatched[slot] - dispatched
            self._ended_before[slot] = counts.ended[slot] - ended
        self._begins.clear()

    def of(self, slot: int) -> tuple[int, int]:
        """Dispatched and ended, whether the workers that counted them live or not."""
        counts = self._counts
        if counts is None or slot in self._begins:
            return self._begins.get(slot, (0, 0))
        return (
            int(counts.dispatched[slot] - self._dispatched_before[slot]),
            int(counts.ended[slot] - self._ended_before[slot]),
        )
