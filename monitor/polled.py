"""What the last poll of each slot said, as arrays, and what this host had there at that moment."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from monitor.counts import Counts
from monitor.sample import Sample


class Polled:
    """Arrays over all slots; NaN is unknown. A value stays until the next poll, however old it gets."""

    def __init__(self, capacity: int) -> None:
        self.usage = np.full(capacity, np.nan)  #: share of the KV cache in use, 0..1
        self.running = np.full(capacity, np.nan)  #: requests in the batch
        self.waiting = np.full(capacity, np.nan)  #: requests not yet in the batch
        self.throughput = np.full(capacity, np.nan)  #: generated tokens/s
        self.qps_1m = np.full(capacity, np.nan)  #: finished requests/s
        #: Requests of this host that the engine had then, and the KV tokens of all it had dispatched there.
        self.own = np.zeros(capacity)
        self.tokens = np.zeros(capacity)

    def clear(self, slot: int) -> None:
        """Forget the slot."""
        for array in (self.usage, self.running, self.waiting, self.throughput, self.qps_1m):
            array[slot] = np.nan
        self.own[slot] = self.tokens[slot] = 0.0

    def sampled(self, slot: int, sample: Sample) -> None:
        """Take in one poll; :meth:`counted` belongs to it."""
        self.usage[slot] = _or_nan(sample.kv_usage)
        self.running[slot] = _or_nan(sample.running)
        self.waiting[slot] = _or_nan(sample.waiting)
        self.throughput[slot] = _or_nan(sample.throughput)
        self.qps_1m[slot] = _or_nan(sample.qps_1m)

    def counted(self, slots: int | Sequence[int], counts: Counts) -> None:
        """What the lanes said when ``slots`` were polled, or what has to be taken for it: their counts jumped."""
        self.own[slots] = counts.outstanding[slots] - counts.held[slots]
        self.tokens[slots] = counts.kv_tokens[slots]


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
