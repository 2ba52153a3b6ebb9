"""``inflight_kv``: requests in flight plus a KV barrier.

::

    S = n + lambda * k/(1 - k)       k clamped to kv_limit (0.999), lambda 1.5

Formula after the load policy of the SMG router as its pull request 1629 brought it in. There n is what that
one router process has in flight, blind to all others, and k the polled usage, the same for every pick between
two polls and 0 where unknown. Here n = own + others and k is the demand corrected by what was dispatched since
the poll, as in every mode of this project.
"""

from __future__ import annotations

from dataclasses import dataclass

from monitor.scores.base import BARRIER_SLOPE, FloatArray, Loads, barrier
from score_table.identity import Prices
from score_table.layout import UNITS


@dataclass(frozen=True)
class InflightKv:
    """The mode with its options; ranges are those the configuration allows."""

    lambda_: float = 1.5  #: requests that a half full KV cache weighs, >= 0
    kv_limit: float = 0.999  #: where the KV barrier stops growing, 0..1, below 1
    nominal_kv_capacity: float = 400_000.0  #: tokens, for prices while the real capacity is unknown, > 0

    name = "inflight_kv"

    def prices(self, kv_capacity: float | None) -> Prices:
        """Request 1, prompt tokens nothing, KV at the barrier's slope where half of the cache is used."""
        capacity = self.nominal_kv_capacity if kv_capacity is None else kv_capacity
        return Prices(
            request=float(UNITS), prompt_token=0.0, kv_token=BARRIER_SLOPE * self.lambda_ / capacity * UNITS
        )

    def score(self, loads: Loads) -> FloatArray:
        """As in the module's formula, in requests."""
        return loads.n + self.lambda_ * barrier(loads.kv, self.kv_limit)
