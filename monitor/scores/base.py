"""What a score mode is: constant prices for what a dispatch adds, and an exact score for each tick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from score_table.identity import Prices

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Loads:
    """What is known or estimated of each slot at one tick: arrays of one length, finite but for ``slots``."""

    own: FloatArray  #: requests of this host's workers, dispatched and not ended, held ones included, >= 0
    others: FloatArray  #: requests of everyone else, low-passed, signed
    n: FloatArray  #: requests in the instance, >= 0; see :func:`requests`
    pending: FloatArray  #: own prompt tokens whose first token has not come back, >= 0
    kv: FloatArray  #: demand for KV cache as a share of the capacity, >= 0; above 1 is more than fits
    speed: FloatArray  #: time per output token relative to the fleet, > 0; 1 where unknown
    slots: FloatArray  #: requests that fit the batch, > 0; NaN where unknown


class ScoreMode(Protocol):
    """One way to turn loads into a score. Pure: no state, no clock."""

    @property
    def name(self) -> str:
        """The mode's name in the configuration."""

    def prices(self, kv_capacity: float | None) -> Prices:
        """What a dispatch adds to a lane cell, fixed for a slot's generation.

        ``kv_capacity`` is the instance's KV cache in tokens, > 0, ``None`` while it is unknown.
        """

    def score(self, loads: Loads) -> FloatArray:
        """The exact score of each slot, in requests; the smallest is the best. Grows with ``loads.n``."""


def requests(own: FloatArray, others: FloatArray) -> FloatArray:
    """Requests in each instance: ``max(0, own + others)``."""
    return np.maximum(own + others, 0.0)


def barrier(kv: FloatArray, limit: float) -> FloatArray:
    """``k / (1 - k)`` with k clamped to ``0..limit``, ``limit`` < 1: 1 at half full, steep when nearly full."""
    k = np.clip(kv, 0.0, limit)
    return k / (1.0 - k)


#: Slope of k/(1-k) at k = 1/2: where the linear KV price touches the barrier.
BARRIER_SLOPE = 4.0
