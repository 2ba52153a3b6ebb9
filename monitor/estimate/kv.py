"""Demand for KV cache per instance, as a share of its capacity.

::

    demand    = (own told KV tokens + prompt_tokens * others + generated_tokens * n) / capacity
    corrected = polled usage + (2 * prompt_tokens * polled waiting
                                + own KV tokens now - own KV tokens at that poll) / capacity
    k         = max(demand, corrected)

``demand`` knows how long the prompts in the queue are, where their proxies told; ``corrected`` sees what others
hold. A polled usage alone would be the same for every pick between two polls, and with the weight it needs all
hosts would run to the same instance.

A prompt that waits is longer than most, because long ones are what does not fit: twice the mean, which is the mean
of exponential lengths weighted by length.

Tokens of requests that did not tell (*guessed* ones, at the mean each) are no part of ``demand`` where the usage is
polled: an instance that has many short prompts would look full by the mean, and one full of long ones no fuller.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monitor.estimate.typical import median

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Length of a prompt that waits, in means.
WAITING_LENGTH = 2.0
#: Above this a demand says nothing more, and every mode clamps long before.
MOST = 1e6


@dataclass(frozen=True)
class KvView:
    """What :func:`kv_demand` works on, arrays over slots; NaN is *unknown*."""

    own_tokens: FloatArray  #: KV tokens of this host's outstanding requests, >= 0
    guessed: FloatArray  #: of these, the tokens of requests that did not tell their length, >= 0
    others: FloatArray  #: requests of others, signed
    n: FloatArray  #: requests in the instance, >= 0
    usage: FloatArray  #: polled usage 0..1, NaN unless from a sample that counts
    waiting: FloatArray  #: requests in its queue at that poll, NaN where it does not tell
    tokens_at_poll: FloatArray  #: ``own_tokens`` when ``usage`` was polled
    capacity: FloatArray  #: tokens, > 0
    known: BoolArray  #: the instance's sample counts, so that ``others`` is its own


def kv_demand(
    view: KvView, prompt_tokens: float, generated_tokens: float, nominal_capacity: float
) -> FloatArray:
    """KV demand per slot, >= 0 and finite.

    ``prompt_tokens`` and ``generated_tokens`` are what a request of others holds, and what any request has
    generated so far, on average. Unknown capacity: the polled usage alone. Nothing polled that counts: own
    tokens over the capacity (the fleet's median, or the nominal one, where it is unknown) plus the fleet's
    median of what is not its own.
    """
    sized = np.isfinite(view.capacity)
    capacity = view.capacity
    if not sized.all():
        capacity = np.where(sized, capacity, median(capacity[sized]) or nominal_capacity)

    own = view.own_tokens / capacity
    polled = np.isfinite(view.usage)
    # The rows are not read as one: a guess may be there a moment before its tokens.
    told = np.maximum(view.own_tokens - np.where(polled, view.guessed, 0.0), 0.0)
    demand = np.maximum((told + prompt_tokens * view.others + generated_tokens * view.n) / capacity, 0)
    queue = np.where(np.isfinite(view.waiting), WAITING_LENGTH * prompt_tokens * view.waiting, 0.0)
    since = queue + view.own_tokens - view.tokens_at_poll
    delta = np.where(sized, since / capacity, 0.0)
    corrected = np.maximum(np.where(polled, view.usage, 0.0) + delta, 0.0)

    by_demand = sized & view.known
    k = np.where(by_demand, np.maximum(demand, np.where(polled, corrected, 0.0)), corrected)
    measured = polled | by_demand
    if not measured.all():
        foreign = median(np.maximum(k - own, 0.0)[measured])
        k = np.where(measured, k, demand if foreign is None else own + foreign)
    return np.minimum(k, MOST)
