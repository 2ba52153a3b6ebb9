"""What a machine can do: the figures in :data:`bench.virtual.scenarios.CAPACITY`, which are loads of 100 %."""

from __future__ import annotations

import numpy as np

from bench.virtual.engines import build
from bench.virtual.scenarios import KV_CAPACITY, WORKLOADS
from bench.virtual.workloads import lengths, prompts
from loadboard.sim.model import EngineParameters


def measured(workload: str, kv: str, *, requests: int = 20_000, seed: int = 1) -> float:
    """Requests per second of one machine of speed 1 that always has more to do than it can.

    All requests are queued at the beginning. Counted are those that end in the middle three fifths of the time
    until the last of them is done: the batch is in its steady state there, and the queue not yet empty.
    """
    rng = np.random.default_rng([seed, requests])
    of, capacity = WORKLOADS[workload], KV_CAPACITY[kv]
    prompt = np.minimum(prompts(of, requests, rng), capacity - 2)
    answer = lengths(of.answer_mean, of.answer_sigma, of.answer_most, requests, rng)
    engine = build(
        [EngineParameters(kv_capacity=capacity)], prompt, np.minimum(answer, capacity - prompt - 1)
    )
    for request in range(requests):
        engine.submit(0, 0.0, request)
    now, ended = 0.0, []
    while (began := engine.step(0, now)) is not None:
        now = began.ends
        ended += [now] * len(began.finished)
    begin, end = 0.2 * now, 0.8 * now
    return sum(begin <= when < end for when in ended) / (end - begin)


def main() -> None:
    """Print the figure of every workload on every machine."""
    for workload in WORKLOADS:
        for kv in KV_CAPACITY:
            print(f"{workload:<10} {kv:<6} {measured(workload, kv):8.2f}", flush=True)


if __name__ == "__main__":
    main()
