"""``expected_wait``: how long an instance needs for the work it has, plus a KV barrier.

::

    tokens = request_tokens*(n + 1) + pend + queue
    wait   = f * tokens / throughput  +  kv_weight * k/(1 - k)      seconds, k clamped to kv_limit
    S      = wait * throughput / request_tokens                     requests

with n = own + others, pend = own prompt tokens without a first token, queue = prompt tokens of others in the
engine's queue, k = KV demand, f = time per output token relative to the fleet, 1 where unknown.

After the ``least_load`` policy of the SMG router (its pull requests 1647, 2154 and 2187), which divides queued
prompt tokens, and those it has sent since the last poll, by the polled throughput. Here instead:

- all that moves between two polls is this host's own live count, and what others have is low-passed;
- requests whose prompt is done are work as well: ``request_tokens`` each. Without them all instances with an
  empty queue look the same;
- ``throughput`` is one constant, and f is what tells machines apart. An instance that is busy generates more
  tokens per second than an idle one, so dividing by its own polled rate would reward it for its load.

Signals that are missing. All instances are compared by one formula, that of the first line which every
instance with a believed sample allows; the others get the median of those for its queue:

=============================  =====================================================================
every one tells                queue
=============================  =====================================================================
its queued tokens              as told
its waiting requests           waiting * mean prompt tokens, as SMG does since 2154
neither                        0: others count with their requests, as before 2154
=============================  =====================================================================

Where nothing is known of any instance, n and k come from the lanes alone: the shortest queue is joined, in
SMG as well. An instance whose KV cache or speed is unknown has the fleet's, as in every mode.
"""

from __future__ import annotations

from dataclasses import dataclass

from monitor.scores.base import BARRIER_SLOPE, FloatArray, Loads, Taken, barrier, told_by_all
from score_table.identity import Prices
from score_table.layout import UNITS


@dataclass(frozen=True)
class ExpectedWait:
    """The mode with its options; ranges are those the configuration allows."""

    throughput: float = 2000.0  #: tokens/s that an instance of the fleet's mean speed works off, > 0
    request_tokens: float = 200.0  #: tokens of work of a request, its waiting prompt apart, > 0
    kv_weight: float = 0.15  #: seconds that a half full KV cache weighs, >= 0
    kv_limit: float = 0.999  #: where the KV barrier stops growing, 0..1, below 1
    nominal_kv_capacity: float = 400_000.0  #: tokens, for prices while the real capacity is unknown, > 0

    name = "expected_wait"

    def prices(self, kv_capacity: float | None) -> Prices:
        """The slopes of the score at mean speed, that of the KV part where half of the cache is used."""
        capacity = self.nominal_kv_capacity if kv_capacity is None else kv_capacity
        return Prices(
            request=float(UNITS),
            prompt_token=UNITS / self.request_tokens,
            kv_token=BARRIER_SLOPE * self._kv_requests / capacity * UNITS,
        )

    def score(self, loads: Loads) -> FloatArray:
        """As in the module's formula, in requests."""
        tokens = self.request_tokens * (loads.n + 1.0) + loads.pending
        queue = queued_tokens(loads)
        if queue is not None:
            tokens += queue
        return loads.speed * tokens / self.request_tokens + self._kv_requests * barrier(
            loads.kv, self.kv_limit
        )

    def taken(self, loads: Loads) -> Taken:
        """Its queue."""
        return Taken(queued=queued_tokens(loads))

    @property
    def _kv_requests(self) -> float:
        return self.kv_weight * self.throughput / self.request_tokens


def queued_tokens(loads: Loads) -> FloatArray | None:
    """Prompt tokens of others in each queue, by the best of what all tell; ``None`` if that is nothing."""
    queued = told_by_all(loads.queued, loads.known)
    if queued is None:
        waiting = told_by_all(loads.waiting, loads.known)
        queued = None if waiting is None else waiting * loads.prompt
    return queued
