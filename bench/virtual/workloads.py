"""The requests of a run: when they arrive, where, and how long they are. The same for every policy of a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.virtual.scenarios import KV_CAPACITY, WORKLOADS, Scenario, Workload

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

#: Spread of what a proxy believes of a prompt's length, which it has from its bytes: sigma of a log-normal factor.
HINT_SIGMA = 0.3
_CV = 3.0  #: of the times between bursty arrivals


@dataclass(frozen=True)
class Requests:
    """Arrays over requests, in the order of their arrival."""

    arrival: FloatArray  #: s
    prompt: IntArray  #: tokens, >= 1
    answer: IntArray  #: tokens, >= 1
    told: IntArray  #: what a proxy believes of the prompt, tokens
    host: IntArray
    worker: IntArray
    past_proxies: NDArray[np.bool_]
    luck: FloatArray  #: 0..1, for what is not a policy's choice

    def __len__(self) -> int:
        return len(self.arrival)


def requests_of(scenario: Scenario, seed: int) -> Requests:
    """Apart from the load they carry, requests do not depend on hosts and workers: scenarios that differ in
    those only meet the same ones."""
    streams = [np.random.default_rng([seed, kind]) for kind in range(8)]
    rate = scenario.rate()
    count = round(rate * scenario.duration * 1.2) + 200
    if scenario.bursty:
        shape = 1.0 / _CV**2
        gaps = streams[0].gamma(shape, 1.0 / (rate * shape), count)
    else:
        gaps = streams[0].exponential(1.0 / rate, count)
    arrival = np.cumsum(gaps)
    arrival = arrival[arrival < scenario.duration]
    count = len(arrival)
    workload, capacity = WORKLOADS[scenario.workload], KV_CAPACITY[scenario.kv]
    prompt = np.minimum(prompts(workload, count, streams[1]), capacity - 2)
    answer = lengths(workload.answer_mean, workload.answer_sigma, workload.answer_most, count, streams[2])
    blur = np.exp(streams[3].normal(-(HINT_SIGMA**2) / 2, HINT_SIGMA, count))
    return Requests(
        arrival=arrival,
        prompt=prompt,
        answer=np.minimum(answer, capacity - prompt - 1),
        told=np.maximum(1, np.rint(prompt * blur)).astype(np.int64),
        host=streams[4].integers(0, 2**31, count) % scenario.hosts,
        worker=streams[5].integers(0, 2**31, count) % scenario.workers,
        past_proxies=streams[6].random(count) < scenario.bypass,
        luck=streams[7].random(count),
    )


def prompts(workload: Workload, count: int, rng: np.random.Generator) -> IntArray:
    """Prompt lengths in tokens."""
    short = lengths(workload.prompt_mean, workload.prompt_sigma, workload.prompt_most, count, rng)
    long = rng.integers(6000, 16_001, count)
    return np.where(rng.random(count) < workload.long_share, long, short)


def lengths(mean: float, sigma: float, most: int, count: int, rng: np.random.Generator) -> IntArray:
    """Log-normal, cut to 1..``most``; ``mean`` is that before the cut."""
    drawn = np.exp(rng.normal(math.log(mean) - sigma**2 / 2, sigma, count))
    return np.clip(drawn, 1, most).astype(np.int64)
