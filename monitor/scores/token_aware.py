"""``token_aware``, the default: requests, prefill still to be done, KV demand, batch slots.

::

    S = f*(n + 1 + prefill_weight*pend/1000)
        + kv_weight * k/(1 - k)                   k clamped to kv_limit
        + slots_weight * max(0, n + 1 - slots)    dropped where slots is unknown

with n = own + others, pend = own prompt tokens without a first token, k = KV demand, f = time per output
token relative to the fleet. In the routing study this project started from (ten mixes of workload, KV
capacity and load; p99 time to first token, geometric mean) it stays at 0.42 of an omniscient
join-the-shortest-queue, and never above it in any mix; request counts alone reach 0.98. The weights are
flat: 1 to 30 for prefill and 1.5 to 50 for KV give 0.42 to 0.44.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.scores.base import BARRIER_SLOPE, FloatArray, Loads, barrier
from score_table.identity import Prices
from score_table.layout import UNITS


@dataclass(frozen=True)
class TokenAware:
    """The mode with its options; ranges are those the configuration allows."""

    prefill_weight: float = 3.0  #: requests that 1000 prompt tokens waiting for prefill weigh, >= 0
    kv_weight: float = 5.0  #: requests that a half full KV cache weighs, >= 0
    kv_limit: float = 0.98  #: where the KV barrier stops growing, 0..1, below 1
    slots_weight: float = 5.0  #: extra weight of a request that does not fit the batch, >= 0
    nominal_kv_capacity: float = 400_000.0  #: tokens, for prices while the real capacity is unknown, > 0

    name = "token_aware"

    def prices(self, kv_capacity: float | None) -> Prices:
        """Request 1, prefill as in the score, KV at the barrier's slope where half of the cache is used.

        With the default weight the KV price is 20 requests per capacity: 20000/kv_capacity per 1000 tokens.
        """
        capacity = self.nominal_kv_capacity if kv_capacity is None else kv_capacity
        return Prices(
            request=float(UNITS),
            prompt_token=self.prefill_weight * UNITS / 1000.0,
            kv_token=BARRIER_SLOPE * self.kv_weight / capacity * UNITS,
        )

    def score(self, loads: Loads) -> FloatArray:
        """As in the module's formula, in requests."""
        n1 = loads.n + 1.0
        # A comparison with NaN is false, so fmax leaves 0 where the slots are unknown.
        excess = np.fmax(n1 - loads.slots, 0.0)
        return (
            loads.speed * (n1 + self.prefill_weight / 1000.0 * loads.pending)
            + self.kv_weight * barrier(loads.kv, self.kv_limit)
            + self.slots_weight * excess
        )
