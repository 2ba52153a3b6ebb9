"""The routing bench, reduced: the product's own code in virtual time, fixed seeds."""

from __future__ import annotations

import math
import os
import random
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from bench.virtual.capacity import measured
from bench.virtual.cases import UNEQUAL
from bench.virtual.clock import VirtualClock
from bench.virtual.comparators import COMPARATORS
from bench.virtual.plan import run_of
from bench.virtual.product import Product, Setting
from bench.virtual.ratios import Pair, over_seeds
from bench.virtual.runs import Outcome, run
from bench.virtual.scenarios import CAPACITY, Mix, Scenario, of_mix
from bench.virtual.workloads import requests_of
from bench.virtual.world import World

SEEDS = (1, 2, 3, 4)
CHAT = of_mix(Mix("chat", "ample", 0.85), duration=70.0, warmup=20.0)
LONG = of_mix(Mix("long", "tight", 0.85), duration=70.0, warmup=20.0)
JSQ = "shortest_queue"
#: A short scenario in which nearly everything happens at once.
TROUBLE = replace(
    CHAT, duration=30.0, warmup=5.0, instances=4, hosts=2, workers=2, churn=6.0, bypass=0.1, bursty=True
)


@lru_cache
def _run(scenario: Scenario, policy: str, seed: int) -> Outcome:
    return run(scenario, policy, seed)


def _logs(scenario: Scenario, of: str, to: str) -> list[float]:
    """Of each seed's ratio of p99 TTFT."""
    return [math.log(_run(scenario, of, seed).ttft_p99 / _run(scenario, to, seed).ttft_p99) for seed in SEEDS]


@pytest.mark.parametrize("other", [JSQ, "round_robin"])
def test_the_product_is_better_in_every_pair_of_runs(other: str) -> None:
    """A sign test. If the other one was as good, half of all ratios would be above 1 in either mix, and all
    eight of these below 1 with a probability of 2^-8 = 0.4 %."""
    logs = _logs(CHAT, "token_aware", other) + _logs(LONG, "token_aware", other)
    assert max(logs) < 0.0


@pytest.mark.parametrize(("scenario", "limit"), [(CHAT, 1.0), (LONG, 0.8)], ids=["chat", "long"])
def test_the_products_mean_ratio_to_the_shortest_queue_is_below_its_goal(
    scenario: Scenario, limit: float
) -> None:
    """Student's t over four seeds: the mean logarithm plus 2.35 standard errors is an upper bound with a
    confidence of 95 % (three degrees of freedom). Runs of a quarter of the usual length: so the limits are
    those of no mix being worse, and of long contexts being where tokens pay, not those of the full bench."""
    p99 = [[_run(scenario, policy, seed).ttft_p99 for seed in SEEDS] for policy in ("token_aware", JSQ)]
    found = over_seeds(Pair(*p99))
    assert found.value * math.exp(2.35 * found.error) <= limit


def test_the_smallest_polled_count_alone_is_an_outage() -> None:
    """Round robin is 1.3 times JSQ here, and the naive choice more than ten times: far from what seeds do, which
    is a standard deviation of a tenth. Its bound is a tenth of what was found at the usual length, 22 times."""
    assert min(_logs(CHAT, "stale_argmin", JSQ)) > math.log(5.0)
    assert min(_logs(CHAT, "stale_argmin", "token_aware")) > math.log(5.0)


@pytest.mark.parametrize("policy", ["token_aware", "power_of_two", "smg_1647", JSQ])
def test_a_seed_gives_the_same_outcome_again_and_no_table_is_left_behind(policy: str) -> None:
    assert run(TROUBLE, policy, 7) == run(TROUBLE, policy, 7)
    assert not list(Path("/dev/shm").glob(f"loadboard-routing-{os.getpid()}-*"))


def test_another_seed_gives_another_outcome() -> None:
    assert run(TROUBLE, JSQ, 7) != run(TROUBLE, JSQ, 8)


@pytest.mark.parametrize("policy", sorted(COMPARATORS))
def test_a_run_is_the_same_without_what_its_policy_does_not_notice(policy: str) -> None:
    noticed = replace(
        TROUBLE,
        poll=0.5,
        together=True,
        unknown=1,
        frozen=1,
        dead_monitor=True,
        worker_killed=True,
        untold=True,
    )
    assert run(noticed, policy, 7) == run(*run_of(noticed, policy, 7))


def _known(scenario: Scenario, setting: Setting) -> list[list[float]]:
    """Batch slots and KV capacities that the monitor knows after some polls, NaN where not, and shares by weight;
    of each the different ones."""
    product = Product(random.Random(1), setting)
    world = World(scenario, requests_of(scenario, 1), VirtualClock())
    try:
        world.run(product)
        fleet = product.hosts[0].board.fleet
        rows = (fleet.slots, fleet.kv_capacity, fleet.pools.share)
        return [np.unique(row[:8]).tolist() for row in rows]
    finally:
        product.close()


def test_what_is_untold_the_monitor_does_not_know() -> None:
    short = replace(CHAT, duration=10.0, warmup=2.0)
    assert _known(short, Setting()) == [[64.0], [400_000.0], [1.0]]
    slots, capacity, _ = _known(replace(short, untold=True), Setting())
    assert np.isnan([slots, capacity]).all()


def test_machines_are_weighed_by_their_speeds_only_where_that_is_the_setting() -> None:
    unequal = replace(CHAT, duration=10.0, warmup=2.0, speeds=UNEQUAL)
    assert _known(unequal, Setting())[2] == [1.0]
    assert _known(unequal, Setting(weighs=True))[2] == pytest.approx([1 / 3, 2 / 3, 1])


@pytest.mark.parametrize(("workload", "kv"), sorted(CAPACITY))
def test_the_capacities_are_those_of_a_machine_that_always_has_more_to_do(workload: str, kv: str) -> None:
    """The study's figures were found by another program with other seeds. Counted are some 7,000 requests with
    a coefficient of variation of up to 1.8 (heavy answers), 2 % of error for their mean, and somewhat more where
    requests that are preempted are computed again: 3.5 % between seeds at most, 2 % for the mean of three. 6 % is
    three of these."""
    found = [measured(workload, kv, requests=12_000, seed=seed) for seed in (1, 2, 3)]
    assert sum(found) / len(found) == pytest.approx(CAPACITY[workload, kv], rel=0.06)


def test_capacity_grows_with_speed_by_definition() -> None:
    fast = replace(CHAT, speeds=(2.0, 1.0))
    assert fast.rate() == pytest.approx(1.5 * CHAT.rate())
    assert np.isclose(CHAT.rate(), 0.85 * CAPACITY["chat", "ample"] * 8)
