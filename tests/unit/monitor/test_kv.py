"""KV demand, and the estimates beside it: speed, means, frozen gauges, dispatch rates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.estimate.dispatched import DispatchRate
from monitor.estimate.frozen import COUNTS_FROZEN_AFTER_S, FROZEN_AFTER_S, Frozen
from monitor.estimate.kv import KvView, kv_demand
from monitor.estimate.means import Means
from monitor.estimate.speed import KEEP_NS, SLOWEST, Speed
from monitor.sample import Reading

NAN = math.nan


def demand(
    *slots: dict[str, Any], prompt: float = 220, generated: float = 120, nominal: float = 400_000
) -> list[float]:
    """KV demand of slots, each given by what differs from an idle one of 100,000 tokens just polled."""
    usual = {
        "own_tokens": 0.0,
        "others": 0.0,
        "n": 0.0,
        "guessed": 0.0,
        "usage": 0.0,
        "waiting": 0.0,
        "tokens_at_poll": 0.0,
        "capacity": 100_000.0,
        "known": True,
    }
    rows = [{**usual, **slot} for slot in slots]
    view = KvView(**{name: np.array([row[name] for row in rows], dtype=type(usual[name])) for name in usual})
    return kv_demand(view, prompt, generated, nominal).tolist()


def test_demand_is_own_tokens_and_the_expected_ones_of_everybody() -> None:
    # (5000 + 220*10 + 120*14) / 100000
    slot = {"own_tokens": 5000.0, "others": 10.0, "n": 14.0, "tokens_at_poll": 5000.0}
    assert demand(slot) == [pytest.approx(0.0888)]


def test_a_higher_polled_usage_wins_and_follows_the_own_tokens_since() -> None:
    # 0.40 + (9000 - 4000) / 100000; the demand is only 0.09.
    assert demand({"usage": 0.4, "own_tokens": 9000.0, "tokens_at_poll": 4000.0}) == [pytest.approx(0.45)]
    assert demand({"usage": 0.4, "own_tokens": 1000.0, "tokens_at_poll": 4000.0}) == [pytest.approx(0.37)]


def test_what_waits_in_the_queue_is_in_no_polled_usage_and_is_added_at_twice_the_mean() -> None:
    # 0.40 + (2*220*25 + 9000 - 4000) / 100000
    slot = {"usage": 0.4, "waiting": 25.0, "own_tokens": 9000.0, "tokens_at_poll": 4000.0}
    assert demand(slot) == [pytest.approx(0.56)]
    assert demand({**slot, "waiting": NAN}) == [pytest.approx(0.45)]
    assert demand({**slot, "capacity": NAN}) == [pytest.approx(0.4)]


def test_guessed_tokens_are_no_demand_where_the_usage_is_polled() -> None:
    """Twenty short prompts, taken for long ones: the poll knows better; what came since it is guessed still."""
    slot = {"usage": 0.1, "own_tokens": 60_000.0, "tokens_at_poll": 57_000.0, "n": 20.0}
    assert demand({**slot, "guessed": 60_000.0}) == [pytest.approx(0.13)]
    # Half of them told: (30000 + 120*20) / 100000
    assert demand({**slot, "guessed": 30_000.0}) == [pytest.approx(0.324)]
    # Nobody knows better: (60000 + 120*20) / 100000
    assert demand({**slot, "guessed": 60_000.0, "usage": NAN}) == [pytest.approx(0.624)]


def test_a_demand_is_never_negative() -> None:
    assert demand({"others": -50.0}) == [0.0]
    assert demand({"usage": 0.1, "tokens_at_poll": 50_000.0}) == [0.0]


def test_with_an_unknown_capacity_the_polled_usage_counts_alone() -> None:
    slot = {"usage": 0.3, "capacity": NAN, "own_tokens": 90_000.0, "others": 500.0, "n": 600.0}
    assert demand(slot) == [pytest.approx(0.3)]


def test_with_an_unknown_usage_the_demand_counts_alone() -> None:
    slot = {"usage": NAN, "own_tokens": 20_000.0, "others": 0.0, "n": 0.0}
    assert demand(slot) == [pytest.approx(0.2)]


def test_an_unknown_instance_has_its_own_tokens_and_the_median_of_what_is_foreign() -> None:
    # Foreign shares of the known ones: 0.1, 0.5 - 0.2 = 0.3, 0.6.
    known: list[dict[str, Any]] = [
        {"usage": 0.1},
        {"usage": 0.5, "own_tokens": 20_000.0, "tokens_at_poll": 20_000.0},
        {"usage": 0.6},
    ]
    unknown = {"known": False, "usage": NAN, "own_tokens": 5000.0}
    assert demand(*known, unknown)[3] == pytest.approx(0.05 + 0.3)


def test_an_unknown_capacity_is_the_median_one_where_something_must_be_divided_by_it() -> None:
    unknown = {"known": False, "usage": NAN, "capacity": NAN, "own_tokens": 5000.0}
    assert demand({"capacity": 50_000.0}, unknown)[1] == pytest.approx(0.1)


def test_a_blind_instance_is_not_an_empty_one() -> None:
    # Requests are known, KV is not: it must not look idle beside a half full fleet.
    blind = {"usage": NAN, "capacity": NAN}
    assert demand({"usage": 0.5}, {"usage": 0.5}, blind)[2] == pytest.approx(0.5)


def test_nothing_known_at_all_counts_own_tokens_over_the_nominal_capacity() -> None:
    unknown = {"known": False, "usage": NAN, "capacity": NAN, "own_tokens": 4000.0, "n": 10.0}
    assert demand(unknown) == [pytest.approx((4000 + 1200) / 400_000)]
    assert demand() == []


maybe = st.floats(0, 1) | st.just(NAN)


@settings(deadline=None)
@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                "own_tokens": st.floats(0, 1e12),
                "others": st.floats(-1e7, 1e7),
                "n": st.floats(0, 1e7),
                "usage": maybe,
                "tokens_at_poll": st.floats(0, 1e12),
                "capacity": st.floats(1, 1e15) | st.just(NAN),
                "known": st.booleans(),
            }
        ),
        max_size=6,
    )
)
def test_a_demand_is_always_finite_and_not_negative(rows: list[dict[str, Any]]) -> None:
    assert all(math.isfinite(k) and k >= 0 for k in demand(*rows))


# -- speed


def speed_after(
    seconds: int, *slots: tuple[float | None, float | None], dead_band: float = 0.1
) -> list[float]:
    """Factors of slots that ran ``(requests, tokens per second)`` for so long, polled each second."""
    speed = Speed(len(slots))
    for second in range(seconds + 1):
        for slot, (running, rate) in enumerate(slots):
            speed.sampled(slot, running, rate, (1000 + second) * 10**9)
    known = np.ones(len(slots), dtype=np.bool_)
    return speed.factors(slice(0, len(slots)), known, dead_band, (1000 + seconds) * 10**9).tolist()


def test_an_instance_that_takes_twice_the_time_per_token_is_that_much_slower() -> None:
    # 10/500 s = 20 ms per token, 10/250 = 40 ms: relative to the mean of 30 ms.
    fast, slow = speed_after(600, (10.0, 500.0), (10.0, 250.0))
    assert fast == pytest.approx(2 / 3, rel=1e-3)
    assert slow == pytest.approx(4 / 3, rel=1e-3)


def test_a_bigger_batch_at_the_same_time_per_token_is_not_slower() -> None:
    assert speed_after(600, (10.0, 500.0), (40.0, 2000.0)) == [1.0, 1.0]


def test_within_the_dead_band_all_are_equal() -> None:
    assert speed_after(600, (10.0, 500.0), (10.0, 460.0)) == [1.0, 1.0]
    assert speed_after(600, (10.0, 500.0), (10.0, 460.0), dead_band=0.01) != [1.0, 1.0]


def test_a_short_history_counts_in_proportion() -> None:
    _, slow = speed_after(30, (10.0, 500.0), (10.0, 250.0))
    assert slow == pytest.approx(1 + (1 - math.exp(-1)) / 3, rel=1e-3)


@pytest.mark.parametrize("mute", [(None, 500.0), (10.0, None), (0.0, 0.0)])
def test_an_instance_that_tells_no_speed_has_that_of_the_fleet(
    mute: tuple[float | None, float | None],
) -> None:
    assert speed_after(600, (10.0, 500.0), (10.0, 250.0), mute)[2] == 1.0


def test_a_lone_instance_is_its_own_fleet() -> None:
    assert speed_after(600, (10.0, 500.0)) == [1.0]


def test_a_batch_without_output_is_slow_and_does_not_make_the_others_fast() -> None:
    # 20, 20 and for ever, which counts as 4 * 20: the mean is 40 ms.
    *healthy, hung = speed_after(600, (10.0, 500.0), (10.0, 500.0), (10.0, 0.0))
    assert healthy == [pytest.approx(0.5, rel=1e-3)] * 2
    assert hung == pytest.approx(SLOWEST, rel=1e-3)


def test_factors_are_made_anew_after_a_moment_and_for_others() -> None:
    speed, everyone = Speed(3), np.ones(3, dtype=np.bool_)
    rates = (500.0, 500.0, 100.0)

    def polled(second: int) -> None:
        for slot, rate in enumerate(rates):
            speed.sampled(slot, 10.0, rate, (1000 + second) * 10**9)

    for second in range(30):
        polled(second)
    now = 1029 * 10**9
    before = speed.factors(slice(0, 3), everyone, 0.1, now)
    polled(30)
    assert speed.factors(slice(0, 3), everyone, 0.1, now + KEEP_NS - 1) is before
    assert speed.factors(slice(0, 3), everyone, 0.1, now + KEEP_NS)[2] > before[2]
    assert speed.factors(slice(0, 3), np.array([True, True, False]), 0.1, now).tolist() == [1.0] * 3
    assert speed.factors(np.array([0, 2]), everyone[:2], 0.1, now)[1] > 1.1
    assert len(speed.factors(slice(0, 3), everyone, 0.1, now)) == 3


def test_a_cleared_slot_has_no_speed_of_its_own() -> None:
    speed = Speed(2)
    for second in range(100):
        speed.sampled(0, 10.0, 500.0, second * 10**9)
        speed.sampled(1, 10.0, 100.0, second * 10**9)
    speed.clear(1)
    assert speed.factors(slice(0, 2), np.array([True, True]), 0.1, 10**12).tolist() == [1.0, 1.0]


@settings(deadline=None)
@given(
    rows=st.lists(
        st.tuples(st.floats(0, 1e7) | st.none(), st.floats(0, 1e9) | st.none()), min_size=2, max_size=4
    ),
    seconds=st.integers(1, 50),
)
def test_a_speed_is_always_within_its_bounds(
    rows: list[tuple[float | None, float | None]], seconds: int
) -> None:
    assert all(1 / SLOWEST <= factor <= SLOWEST for factor in speed_after(seconds, *rows))


# -- means


def test_means_start_at_the_configured_values_and_become_those_of_the_traffic() -> None:
    means = Means(220, 120)
    assert (means.prompt_tokens, means.generated_tokens) == (pytest.approx(220), pytest.approx(120))
    for second in range(600):
        # 5 requests per second of 1000 prompt tokens and 400 generated ones.
        means.sampled(5.0, 1000.0, 2000.0, second * 10**9)
    assert means.prompt_tokens == pytest.approx(1000, rel=1e-3)
    assert means.generated_tokens == pytest.approx(0.6 * 400, rel=1e-3)


def test_means_weigh_instances_by_their_requests() -> None:
    means = Means(220, 120)
    for half_second in range(2400):
        busy = half_second % 2
        means.sampled(9.0 if busy else 1.0, 100.0 if busy else 900.0, 1000.0, half_second * 5 * 10**8)
    assert means.prompt_tokens == pytest.approx(180, rel=0.02)


@pytest.mark.parametrize(
    "poll", [(None, 900.0, 900.0), (0.0, 900.0, 900.0), (9.0, None, 900.0), (9.0, 900.0, None)]
)
def test_a_poll_that_lacks_a_part_changes_no_mean(
    poll: tuple[float | None, float | None, float | None],
) -> None:
    means = Means(220, 120)
    for second in range(100):
        means.sampled(*poll, second * 10**9)
    assert (means.prompt_tokens, means.generated_tokens) == (pytest.approx(220), pytest.approx(120))


# -- frozen gauges


def judged(*readings: tuple[float, Reading]) -> list[bool]:
    """What is judged of each reading at its time in seconds."""
    frozen = Frozen()
    return [
        frozen.judge(reading, (reading.running or 0.0) + (reading.waiting or 0.0), round(at * 1e9))
        for at, reading in readings
    ]


BUSY = Reading(running=7.0, waiting=2.0, kv_usage=0.5, counters={"generated_tokens": {b"": 900.0}})


def test_a_claim_of_work_in_which_nothing_moves_is_not_believed_after_a_while() -> None:
    assert judged((0, BUSY), (FROZEN_AFTER_S - 1, BUSY), (FROZEN_AFTER_S, BUSY)) == [False, False, True]


def test_any_movement_makes_the_gauges_believed_again() -> None:
    moved = Reading(running=7.0, waiting=2.0, kv_usage=0.5, counters={"generated_tokens": {b"": 901.0}})
    assert judged((0, BUSY), (40, BUSY), (41, moved), (60, moved)) == [False, True, False, False]


def test_an_idle_instance_may_stand_still() -> None:
    idle = Reading(running=0.0, waiting=0.0, kv_usage=0.0, counters={"generated_tokens": {b"": 900.0}})
    assert judged((0, idle), (1000, idle)) == [False, False]


@pytest.mark.parametrize("bare", [Reading(running=60.0, waiting=0.0), Reading(inflight=9.0)])
def test_where_only_the_requests_are_told_they_may_stand_still_for_longer_but_not_for_ever(
    bare: Reading,
) -> None:
    frozen, load = Frozen(), 60.0
    last_s = COUNTS_FROZEN_AFTER_S
    verdicts = [frozen.judge(bare, load, round(at * 1e9)) for at in (0, last_s - 1, last_s, last_s + 100)]
    assert verdicts == [False, False, True, True]
    assert frozen.after_s == COUNTS_FROZEN_AFTER_S
    assert not frozen.judge(replace(bare, waiting=1.0), load, round(1000e9))


# -- dispatch rates


def test_the_dispatch_rate_is_that_of_the_last_minute() -> None:
    rate, totals = DispatchRate(2), np.zeros(2, dtype=np.int64)
    assert rate.per_s(0) is None
    for tick in range(200 * 50):
        totals[0] += 1 if tick % 25 == 0 else 0
        rate.counted(totals, tick * 20_000_000)
    assert rate.per_s(0) == pytest.approx(2.0, rel=0.02)
    assert rate.per_s(1) == 0.0


def test_a_new_instance_has_no_dispatches_of_the_one_before() -> None:
    rate, totals = DispatchRate(1), np.zeros(1, dtype=np.int64)
    for second in range(60):
        totals[0] += 10
        rate.counted(totals, second * 10**9)
    rate.clear(0, 60 * 10**9)
    assert rate.per_s(0) is None
    for second in range(60, 65):
        totals[0] += 3
        rate.counted(totals, second * 10**9)
    # The first row after the change already counts three of its own.
    assert rate.per_s(0) == pytest.approx(15 / 4)
