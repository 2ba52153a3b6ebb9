"""One run: a policy in a scenario, with the requests of a seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np

from bench.virtual.clock import VirtualClock
from bench.virtual.comparators import COMPARATORS
from bench.virtual.product import Product, Setting
from bench.virtual.scenarios import Scenario
from bench.virtual.settings import SETTINGS
from bench.virtual.workloads import requests_of
from bench.virtual.world import Policy, World

#: The last arrivals of a run are not measured: some would have no first token by its end.
TAIL_S = 20.0
#: What a request may take to be a good one: to its first token, and for each token after it.
GOOD_FIRST_S, GOOD_TOKEN_S = 10.0, 0.1


@dataclass(frozen=True)
class Outcome:
    """What was measured. Seconds; shares are of the arrivals measured."""

    requests: int
    ttft_mean: float
    ttft_p50: float
    ttft_p90: float
    ttft_p99: float
    total_p99: float  #: to the last token, of those that got it
    failed: float  #: share
    good: float  #: share that was quick enough, see ``GOOD_FIRST_S``

    def as_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)


def run(scenario: Scenario, policy: str, seed: int) -> Outcome:
    """``KeyError`` for a policy that is none."""
    requests = requests_of(scenario, seed)
    world = World(scenario, requests, VirtualClock())
    made = policies()[policy](random.Random(seed * 1009 + 7))
    try:
        world.run(made)
    finally:
        made.close()
    return outcome(world)


def policies() -> dict[str, Callable[[random.Random], Policy]]:
    """All of them by name."""

    def made(setting: Setting) -> Callable[[random.Random], Policy]:
        return lambda rng: Product(rng, setting)

    return {**COMPARATORS, **{name: made(setting) for name, setting in SETTINGS.items()}}


def outcome(world: World) -> Outcome:
    """Of the arrivals from the end of the warm-up to a while before the end, but for those of a killed worker.

    One without a first token by the end has waited at least until then, which counts as its time.
    """
    scenario, arrival = world.scenario, world.requests.arrival
    begin, end = scenario.warmup + scenario.measured_from, scenario.duration - TAIL_S
    measured = (arrival >= begin) & (arrival < end) & ~world.lost
    served = measured & ~world.failed
    ttft = np.where(np.isnan(world.first_at), scenario.duration, world.first_at)[served] - arrival[served]
    ended = served & ~np.isnan(world.end_at)
    total = world.end_at[ended] - arrival[ended]
    per_token = (world.end_at - world.first_at)[ended] / np.maximum(world.requests.answer[ended] - 1, 1)
    first = (world.first_at - arrival)[ended]
    # What is still running at the end is judged by its first token alone.
    running = served & np.isnan(world.end_at)
    waited = np.where(np.isnan(world.first_at), scenario.duration, world.first_at)[running] - arrival[running]
    good = ((first <= GOOD_FIRST_S) & (per_token <= GOOD_TOKEN_S)).sum() + (waited <= GOOD_FIRST_S).sum()
    p50, p90, p99 = np.percentile(ttft, (50, 90, 99))
    count = int(measured.sum())
    return Outcome(
        requests=count,
        ttft_mean=float(ttft.mean()),
        ttft_p50=float(p50),
        ttft_p90=float(p90),
        ttft_p99=float(p99),
        total_p99=float(np.percentile(total, 99)),
        failed=float(world.failed[measured].mean()),
        good=float(good / count),
    )
