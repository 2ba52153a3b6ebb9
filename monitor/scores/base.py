"""What a score mode is: constant prices for what a dispatch adds, and an exact score for each tick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from monitor.estimate.typical import median
from score_table.identity import Prices

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Loads:
    """What is known or estimated of each slot at one tick: arrays of one length.

    Finite, but for those where NaN says *unknown*. What was polled is there only from a sample that is believed.
    Arrays belong to the monitor: a score only reads them.
    """

    own: FloatArray  #: requests of this host's workers, dispatched and not ended, held ones included, >= 0
    others: FloatArray  #: requests of everyone else, low-passed, signed
    n: FloatArray  #: requests in the instance, >= 0; see :func:`requests`
    pending: FloatArray  #: own prompt tokens whose first token has not come back, >= 0
    kv: FloatArray  #: demand for KV cache as a share of the capacity, >= 0; above 1 is more than fits
    speed: FloatArray  #: time per output token relative to the fleet, > 0; 1 where unknown
    slots: FloatArray  #: requests that fit the batch, > 0; NaN where unknown
    known: BoolArray  #: a fresh sample that is believed says how many requests are there
    prompt: FloatArray  #: prompt tokens of a request, the fleet's running mean, >= 1
    queued: FloatArray  #: prompt tokens of others in the engine's queue, low-passed, >= 0; NaN where unknown
    waiting: FloatArray  #: requests of others in the engine's queue, low-passed, >= 0; NaN where unknown
    # As polled, and the same for every pick until the next poll: a score that goes by one of these alone sends
    # all requests in between to one instance.
    running: FloatArray  #: requests in the batch, >= 0; NaN where unknown
    throughput: (
        FloatArray  #: generated tokens/s, >= 0; NaN where unknown; it is highest where most is to be done
    )
    qps_1m: FloatArray  #: finished requests/s over the last minute, >= 0; NaN where unknown
    usage: FloatArray  #: share of the KV cache in use, 0..1; NaN where unknown


class Taken(NamedTuple):
    """What a score took in beside the parts that every mode has, to be shown; ``None``: not a part of it."""

    queued: FloatArray | None = None  #: prompt tokens of others in each engine's queue
    waiting: FloatArray | None = None  #: requests of others in each engine's queue
    qps_1m: FloatArray | None = None  #: finished requests/s


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


def told_by_all(values: FloatArray, known: BoolArray) -> FloatArray | None:
    """``values`` if every slot of ``known`` tells its own, else ``None``; also where nothing is known at all.

    Any other slot gets the median of these. So one part of a score is there for all or for none, and an
    instance that is not heard of for a while does not change the formula for the others.
    """
    typical = median(values[known])
    if typical is None or not np.isfinite(values[known]).all():
        return None
    return np.where(known, values, typical)


def barrier(kv: FloatArray, limit: float) -> FloatArray:
    """``k / (1 - k)`` with k clamped to ``0..limit``, ``limit`` < 1: 1 at half full, steep when nearly full."""
    k = np.minimum(np.maximum(kv, 0.0), limit)
    return k / (1.0 - k)


#: Slope of k/(1-k) at k = 1/2: where the linear KV price touches the barrier.
BARRIER_SLOPE = 4.0
