"""``weighted_sum``: requests by the stage they are in, and the prefill still to be done.

::

    S = n
        + prefill_weight * first                  first = pend/prompt + waiting: requests without a first token
        + decode_weight  * max(0, n - first)
        + waiting_weight * waiting                requests of others in the engine's queue
        + backlog_weight * (pend + queued) / prefill_rate     seconds
        + qps_weight     * qps_1m

with n = own + others, pend = own prompt tokens without a first token, prompt = the mean length of a prompt,
queued = prompt tokens of others in the engine's queue. Parts and weights after the ``least_load`` strategy of
CacheRoute (proxy/strategy/least_load.py); its requests in flight weigh 1 there too, its backlog 0.001 per
millisecond, its qps_1m 0. Its two counts of requests that its proxy prepares and forwards have no counterpart
in a lane, where a request counts from its dispatch.

There, a part that is unknown of one instance is left out for that one alone, which then looks less loaded.
Here ``waiting``, ``queued`` and ``qps_1m`` are each left out for all unless every instance with a believed
sample tells its own; an instance without one gets the median of the others. The rest is known of every
instance. ``qps_1m`` is high where requests end quickly, and stands still between polls: it routes badly, and
is there for comparison.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from monitor.scores.base import FloatArray, Loads, Taken, told_by_all
from score_table.identity import Prices
from score_table.layout import UNITS


@dataclass(frozen=True)
class WeightedSum:
    """The mode with its options; ranges are those the configuration allows."""

    prefill_weight: float = 1.0  #: extra weight of a request without a first token, >= 0
    decode_weight: float = 0.5  #: extra weight of any other request, 0..prefill_weight
    waiting_weight: float = 0.25  #: extra weight of a request of others in the engine's queue, >= 0
    backlog_weight: float = 1.0  #: requests that a second of prefill weighs, >= 0
    prefill_rate: float = 7500.0  #: prompt tokens/s that an instance works off, > 0
    qps_weight: float = 0.0  #: requests that a finished request per second weighs, >= 0
    nominal_prompt_tokens: float = 220.0  #: mean length of a prompt, for prices, > 0

    name = "weighted_sum"

    def prices(self, kv_capacity: float | None) -> Prices:
        """The slopes of the score: a first token makes a request of the first stage one of the other."""
        per_token = (self.prefill_weight - self.decode_weight) / self.nominal_prompt_tokens
        per_token += self.backlog_weight / self.prefill_rate
        return Prices(
            request=(1.0 + self.decode_weight) * UNITS, prompt_token=per_token * UNITS, kv_token=0.0
        )

    def score(self, loads: Loads) -> FloatArray:
        """As in the module's formula, in requests."""
        first = loads.pending / loads.prompt
        backlog = loads.pending / self.prefill_rate
        queued, waiting, qps_1m = self.taken(loads)
        score: FloatArray = loads.n.copy()
        if waiting is not None:
            first = first + waiting
            score += self.waiting_weight * waiting
        if queued is not None:
            backlog = backlog + queued / self.prefill_rate
        if qps_1m is not None:
            score += self.qps_weight * qps_1m
        score += self.prefill_weight * first + self.decode_weight * np.maximum(loads.n - first, 0.0)
        score += self.backlog_weight * backlog
        return score

    def taken(self, loads: Loads) -> Taken:
        """What every instance with a believed sample tells, the rate only if it weighs anything."""
        queued, waiting = (told_by_all(part, loads.known) for part in (loads.queued, loads.waiting))
        return Taken(queued, waiting, told_by_all(loads.qps_1m, loads.known) if self.qps_weight else None)
