"""Polls come at a fixed rate, slow instances back off alone, and nothing makes a busy loop."""

from __future__ import annotations

import random

import pytest

from monitor.polling.schedule import Schedule

S = 1_000_000_000
START = 5_000 * S


def schedule(interval_s: float = 1.0, jitter: float = 0.1, seed: int = 1, **more: float) -> Schedule:
    return Schedule(interval_s, jitter, random.Random(seed), **more)


def poll(plan: Schedule, now: int, took: int = 0) -> int:
    """Run the next poll, successfully; returns when it began."""
    due = max(now, plan.next_due(now))
    plan.started(due)
    plan.succeeded(due + took)
    return due


def settled(plan: Schedule) -> int:
    """Past the first polls, which have a phase of their own."""
    return poll(plan, poll(plan, START))


def test_a_newcomer_is_polled_at_once_within_a_small_spread() -> None:
    dues = [schedule(seed=seed).next_due(START) - START for seed in range(100)]
    assert min(dues) >= 0
    assert max(dues) <= 0.1 * S
    assert len(set(dues)) > 90


def test_asking_again_does_not_move_the_due_time() -> None:
    plan = schedule()
    first = plan.next_due(START)
    assert plan.next_due(START + 7) == first


def test_newcomers_of_one_moment_end_up_spread_over_the_interval() -> None:
    phases = []
    for seed in range(200):
        plan = schedule(jitter=0.0, seed=seed)
        poll(plan, START)
        phases.append(plan.next_due(START) - START)
    quarters = [sum(1 for phase in phases if i <= phase / (0.275 * S) < i + 1) for i in range(4)]
    assert all(quarter >= 20 for quarter in quarters)  # 50 expected, sigma 6


def test_regular_polls_are_never_further_apart_than_the_interval_and_the_jitter() -> None:
    plan = schedule(interval_s=1.0, jitter=0.1)
    last = settled(plan)
    for _ in range(500):
        now = poll(plan, last, took=S // 20)
        assert 0.9 * S <= now - last <= 1.1 * S
        last = now


def test_the_rate_does_not_drift_with_the_time_that_polls_take() -> None:
    plan = schedule(interval_s=1.0, jitter=0.1)
    first = last = settled(plan)
    for _ in range(1000):
        last = poll(plan, last, took=S // 3)
    assert abs((last - first) - 1000 * S) <= 0.1 * S


def test_without_jitter_the_polls_lie_exactly_on_the_grid() -> None:
    plan = schedule(interval_s=0.25, jitter=0.0)
    last = settled(plan)
    for _ in range(20):
        now = poll(plan, last)
        assert now - last == S // 4
        last = now


def test_points_that_passed_during_a_long_poll_are_left_out() -> None:
    plan = schedule(interval_s=0.01, jitter=0.0)
    last = settled(plan)
    plan.started(last)
    end = last + S + 3
    plan.succeeded(end)
    assert end < plan.next_due(end) <= end + S // 100
    assert (plan.next_due(end) - last) % (S // 100) == 0


@pytest.mark.parametrize("interval_s", [0.001, 0.05, 0.3, 1.0, 30.0])
def test_after_any_poll_the_next_regular_one_lies_in_the_future(interval_s: float) -> None:
    plan = schedule(interval_s=interval_s, jitter=0.5)
    rng = random.Random(3)
    now = START
    for _ in range(300):
        now = max(now, plan.next_due(now))
        plan.started(now)
        now += round(rng.random() * 3 * interval_s * S)
        if rng.random() < 0.5:
            plan.succeeded(now)
        else:
            plan.failed(now, slow=rng.random() < 0.3)
        assert plan.next_due(now) > now


def test_a_host_that_slept_polls_once_and_not_for_every_missed_point() -> None:
    plan = schedule(interval_s=1.0, jitter=0.0)
    last = settled(plan)
    woke = last + 3600 * S + 5
    assert plan.next_due(woke) <= woke
    poll(plan, woke)
    assert plan.next_due(woke) > woke


def test_slow_polls_back_off_by_doubling_up_to_the_cap() -> None:
    plan = schedule(interval_s=1.0, jitter=0.0, back_off_cap_s=10.0)
    now = settled(plan)
    pauses = []
    for _ in range(7):
        plan.started(now)
        plan.failed(now, slow=True)
        pauses.append((plan.next_due(now) - now) / S)
        now = plan.next_due(now)
    assert pauses == [1, 2, 4, 8, 10, 10, 10]


def test_a_hundred_slow_polls_stay_at_the_cap() -> None:
    plan = schedule(interval_s=1.0, jitter=0.0)
    now = settled(plan)
    for _ in range(100):
        plan.failed(now, slow=True)
    assert plan.next_due(now) - now == 30 * S


def test_a_cap_below_the_interval_never_polls_more_often_than_the_interval() -> None:
    plan = schedule(interval_s=60.0, jitter=0.0)
    now = settled(plan)
    plan.failed(now, slow=True)
    assert plan.next_due(now) - now == 60 * S


def test_back_off_is_jittered_so_that_instances_do_not_return_together() -> None:
    pauses = set()
    for seed in range(20):
        plan = schedule(seed=seed)
        now = settled(plan)
        plan.failed(now, slow=True)
        pauses.add(plan.next_due(now) - now)
        assert S <= plan.next_due(now) - now <= 1.1 * S
    assert len(pauses) > 15


def test_fast_failures_stay_at_the_interval_so_that_their_end_is_noticed_within_one_poll() -> None:
    plan = schedule(interval_s=1.0, jitter=0.1)
    now = settled(plan)
    for _ in range(50):
        plan.started(now)
        plan.failed(now, slow=False)
        assert plan.next_due(now) - now <= 1.1 * S
        now = plan.next_due(now)


@pytest.mark.parametrize("fast", ["a sample", "a fast failure"])
def test_the_back_off_starts_anew_after(fast: str) -> None:
    plan = schedule(interval_s=1.0, jitter=0.0)
    now = settled(plan)
    for _ in range(4):
        plan.failed(now, slow=True)
    if fast == "a sample":
        plan.succeeded(now)
    else:
        plan.failed(now, slow=False)
    assert plan.next_due(now) - now <= S
    plan.failed(now, slow=True)
    assert plan.next_due(now) - now == S


def test_a_demand_is_due_at_once_even_out_of_a_back_off() -> None:
    plan = schedule()
    now = settled(plan)
    for _ in range(6):
        plan.failed(now, slow=True)
    plan.poll_now(now + 5)
    assert plan.next_due(now + 5) == now + 5


def test_a_demand_during_a_poll_is_met_by_a_poll_after_it() -> None:
    plan = schedule(interval_s=10.0)
    now = settled(plan)
    plan.started(now)
    plan.poll_now(now + 1)
    plan.succeeded(now + 2)
    assert plan.next_due(now + 2) <= now + 2
    plan.started(now + 2)
    plan.succeeded(now + 3)
    assert plan.next_due(now + 3) > now + 3


def test_a_demand_does_not_put_off_a_regular_poll() -> None:
    plan = schedule(interval_s=1.0, jitter=0.0)
    now = settled(plan)
    regular = plan.next_due(now)
    plan.poll_now(now + S // 2)
    poll(plan, now + S // 2)
    assert plan.next_due(now + S // 2) == regular


def test_demands_without_end_make_a_few_polls_a_second_and_no_busy_loop() -> None:
    plan = schedule(interval_s=5.0)
    now = settled(plan)
    polls = 0
    for tick in range(500):  # ten seconds of 20 ms ticks
        at = now + tick * S // 50
        plan.poll_now(at)
        if plan.next_due(at) <= at:
            polls += 1
            plan.started(at)
            plan.failed(at, slow=False)
    assert 30 <= polls <= 50


@pytest.mark.parametrize("interval_s", [0.0, -1.0, float("nan"), float("inf")])
def test_an_interval_that_is_none_is_refused_with_its_value(interval_s: float) -> None:
    with pytest.raises(ValueError, match=f"interval.*{interval_s!r}"):
        schedule(interval_s=interval_s)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan")])
def test_a_jitter_outside_0_to_1_is_refused_with_its_value(jitter: float) -> None:
    with pytest.raises(ValueError, match=f"jitter.*{jitter!r}"):
        schedule(jitter=jitter)
