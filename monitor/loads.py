"""What is known and estimated of the instances of one pool at one tick, from nothing but these instances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monitor.counts import Counts
from monitor.estimate.kv import KvView, kv_demand
from monitor.estimate.others import correction, share_of_own
from monitor.fleet import Fleet
from monitor.pools import Pool
from monitor.scores.base import Loads, requests

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Lanes:
    """One read of the lanes as floats, and what is derived from them alone: arrays over the slots in use."""

    own: FloatArray  #: requests dispatched and not ended, held ones included
    held: FloatArray  #: of these failed
    pending: FloatArray  #: prompt tokens whose first token has not come back
    tokens: FloatArray  #: prompt tokens of all outstanding requests
    guessed: FloatArray  #: of these, what is taken for requests that did not tell
    steady: FloatArray  #: requests that were there all the time lately

    @classmethod
    def of(cls, counts: Counts, n: int, fleet: Fleet, mono_ns: int) -> Lanes:
        """Of the first ``n`` slots; once per tick, because ``fleet`` remembers the least."""
        own, held, pending, tokens, guessed = (
            row[:n].astype(np.float64)
            for row in (
                counts.outstanding,
                counts.held,
                counts.prompt_tokens,
                counts.kv_tokens,
                counts.guessed,
            )
        )
        return cls(own, held, pending, tokens, guessed, fleet.steady_own.least(own, mono_ns))


def loads_of(pool: Pool, fleet: Fleet, lanes: Lanes, known: BoolArray, mono_ns: int) -> Loads:
    """Arrays over the slots of ``pool``; ``known`` says of all slots whether their sample is believed."""
    polled, at, means = fleet.polled, pool.at, pool.means
    known, own = known[at], lanes.own[at]
    others = fleet.others.now(at, known, mono_ns)
    share = share_of_own(own[known], others[known])
    # Who has nothing there moves nothing: it may follow the polls as one that is alone.
    fleet.others.shared(at, share or 1.0)
    answered = correction(share)
    if answered:
        others = others + answered * fleet.others.change(at, known)
    others = np.maximum(others, -lanes.steady[at])
    n_requests = requests(own, others)
    believed = fleet.up[at] & ~fleet.frozen[at]
    view = KvView(
        own_tokens=lanes.tokens[at],
        guessed=lanes.guessed[at],
        others=others,
        n=n_requests,
        usage=np.where(believed, polled.usage[at], np.nan),
        waiting=np.where(believed, polled.waiting[at], np.nan),
        tokens_at_poll=polled.tokens[at],
        capacity=fleet.kv_capacity[at],
        known=known,
    )
    queued, waiting = fleet.queues.now(at, known, mono_ns)
    all_known = bool(known.all())

    def told(values: FloatArray) -> FloatArray:
        return values[at] if all_known else np.where(known, values[at], np.nan)

    return Loads(
        own=own,
        others=others,
        n=n_requests,
        pending=lanes.pending[at],
        kv=kv_demand(view, means.prompt_tokens, means.generated_tokens, pool.rules.nominal_kv_capacity),
        speed=fleet.speed.factors(at, known, pool.rules.speed_dead_band, mono_ns),
        slots=fleet.slots[at],
        known=known,
        prompt=np.full(len(own), means.prompt_tokens),
        queued=queued,
        waiting=waiting,
        running=told(polled.running),
        throughput=told(polled.throughput),
        qps_1m=told(polled.qps_1m),
        usage=told(polled.usage),
    )
