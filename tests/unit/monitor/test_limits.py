"""Overload limits: who is avoided, by what is there now, and that no veto outlives its reason."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from monitor.estimate.frozen import FROZEN_AFTER_S
from monitor.limits import Limits, Waiting, waiting_now
from score_table.layout import UNITS, Mark
from score_table.pick.rules import band_of
from tests.unit.monitor.rig import Rig, config

NAN = math.nan


def avoided(limits: Limits, waiting: list[float], kv: list[float], candidates: list[bool]) -> list[bool]:
    agreed = Waiting(np.array(waiting), np.array(waiting))
    return limits.avoided(agreed, np.array(kv), np.array(candidates, dtype=np.bool_)).tolist()


@pytest.mark.parametrize(
    ("waiting", "kv", "candidates", "expected"),
    [
        ([10.0, 9.9], [0.0, 0.0], [True, True], [True, False]),
        ([0.0, 0.0], [0.9, 0.89], [True, True], [True, False]),
        ([10.0, 0.0, 0.0], [0.0, 0.9, 0.0], [True] * 3, [True, True, False]),
        # All over: none.
        ([10.0, 11.0], [0.0, 0.0], [True, True], [False, False]),
        # The one below is no candidate.
        ([10.0, 0.0], [0.0, 0.0], [True, False], [False, False]),
        # No candidate is avoided twice, and one that is over is no reason to spare others.
        ([10.0, 12.0, 0.0], [0.0, 0.0, 0.0], [True, False, True], [True, False, False]),
        # A lost signal is not over, and no evidence that somebody is below.
        ([10.0, NAN], [NAN, NAN], [True, True], [False, False]),
        ([10.0, NAN, 1.0], [NAN, NAN, NAN], [True] * 3, [True, False, False]),
        ([], [], [], []),
    ],
)
def test_who_is_avoided(
    waiting: list[float], kv: list[float], candidates: list[bool], expected: list[bool]
) -> None:
    assert avoided(Limits(waiting=10, kv=0.9), waiting, kv, candidates) == expected


def test_a_limit_of_zero_is_none() -> None:
    assert not Limits().active
    assert avoided(Limits(kv=0.5), [1e6, 0.0], [0.0, 0.0], [True, True]) == [False, False]
    assert avoided(Limits(waiting=5), [0.0, 0.0], [1e6, 0.0], [True, True]) == [False, False]


@pytest.mark.parametrize(
    ("waiting", "kv", "said"),
    [
        (12.0, 0.2, "waiting 12 >= 10"),
        (2.0, 0.953, "KV 0.953 >= 0.9"),
        (12.04, 0.9, "waiting 12.04 >= 10, KV 0.9 >= 0.9"),
        (NAN, 0.95, "KV 0.95 >= 0.9"),
    ],
)
def test_the_reason_names_what_is_over(waiting: float, kv: float, said: str) -> None:
    assert Limits(waiting=10, kv=0.9).reason(waiting, kv) == said


def test_where_two_accounts_differ_one_is_neither_over_nor_below() -> None:
    limits = Limits(waiting=10)
    everyone = np.array([True, True])

    def judged(least: list[float], most: list[float]) -> list[bool]:
        found = limits.avoided(Waiting(np.array(least), np.array(most)), np.array([NAN, NAN]), everyone)
        return found.tolist()  # type: ignore[no-any-return]

    assert judged([20.0, 0.0], [20.0, 5.0]) == [True, False]
    assert judged([20.0, 0.0], [20.0, 15.0]) == [False, False], "nobody is surely below"
    assert judged([5.0, 0.0], [20.0, 5.0]) == [False, False], "nobody is surely over"


@pytest.mark.parametrize(
    ("n", "own", "own_at_poll", "polled", "slots", "expected"),
    [
        # The size of the batch is known: what does not fit it, and what the poll said and came since.
        (70.0, 30.0, 10.0, 0.0, 64.0, (6.0, 20.0)),
        (60.0, 30.0, 10.0, 50.0, 64.0, (0.0, 70.0)),
        (90.0, 30.0, 30.0, 0.0, 64.0, (0.0, 26.0)),
        (90.0, 30.0, 30.0, NAN, 64.0, (26.0, 26.0)),
        # Unknown: what was waiting, what has come behind it, what has made room.
        (70.0, 30.0, 24.0, 3.0, NAN, (9.0, 9.0)),
        (70.0, 20.0, 24.0, 6.0, NAN, (2.0, 2.0)),
        (70.0, 10.0, 24.0, 6.0, NAN, (0.0, 0.0)),
        # Nothing waited, so one that was added may as well run.
        (70.0, 30.0, 10.0, 0.0, NAN, (0.0, 20.0)),
        (70.0, 30.0, 10.0, NAN, NAN, (NAN, NAN)),
    ],
)
def test_what_waits_now(
    n: float, own: float, own_at_poll: float, polled: float, slots: float, expected: tuple[float, float]
) -> None:
    found = waiting_now(*(np.array([value]) for value in (n, own, own_at_poll, polled, slots)))
    assert [account[0] for account in found] == pytest.approx(expected, nan_ok=True)


# -- on a table


def limited(*ids: str, **options: Any) -> Rig:
    rig = Rig(config(*ids, **{"overload_waiting": 10, **options}))
    for name in ids:
        rig.sample(name, load=2, slots=4.0)
    rig.tick()
    return rig


def mark(rig: Rig, name: str) -> int:
    return band_of(int(rig.table.base[rig.slot(name)]))


def test_without_limits_nobody_is_avoided() -> None:
    rig = limited("a", "b", overload_waiting=0)
    rig.table.dispatch(rig.slot("a"), 500)
    rig.tick()
    assert mark(rig, "a") == Mark.NONE


def test_the_live_count_is_judged_not_the_polled_one() -> None:
    rig = limited("a", "b")
    # 2 of others and 11 own ones: 9 beyond the batch of 4.
    rig.table.dispatch(rig.slot("a"), 11)
    rig.tick()
    assert mark(rig, "a") == Mark.NONE
    rig.table.dispatch(rig.slot("a"), 1)
    rig.tick()
    assert (mark(rig, "a"), mark(rig, "b")) == (Mark.AVOIDED, Mark.NONE)
    assert rig.detail("a").reason == "waiting 10 >= 10"
    assert rig.detail("a").waiting == 0.0, "no poll has seen them"


def test_a_veto_clears_with_its_cause_at_the_next_tick() -> None:
    rig = limited("a", "b")
    for _ in range(3):
        rig.table.dispatch(rig.slot("a"), 12)
        rig.tick()
        assert mark(rig, "a") == Mark.AVOIDED
        rig.table.end(rig.slot("a"), 12)
        rig.tick()
        assert mark(rig, "a") == Mark.NONE
        assert rig.detail("a").reason == ""


def test_a_veto_is_not_in_the_row_that_is_read_when_the_monitor_is_gone() -> None:
    rig = limited("a", "b")
    rig.table.dispatch(rig.slot("a"), 12)
    rig.tick()
    assert rig.table.rest[rig.slot("a")] == 2 * UNITS


def test_within_the_mark_the_score_still_tells_who_is_less_loaded() -> None:
    rig = limited("a", "b", "c")
    rig.table.dispatch(rig.slot("a"), 12)
    rig.table.dispatch(rig.slot("b"), 20)
    rig.tick()
    assert mark(rig, "a") == mark(rig, "b") == Mark.AVOIDED
    assert rig.live("b") > rig.live("a") + 8


def test_when_all_are_over_none_is_avoided() -> None:
    rig = limited("a", "b")
    for name in ("a", "b"):
        rig.table.dispatch(rig.slot(name), 12)
    rig.tick()
    assert (mark(rig, "a"), mark(rig, "b")) == (Mark.NONE, Mark.NONE)
    assert rig.detail("a").reason == ""


def test_a_lost_signal_is_never_avoided_and_saves_no_other_from_it() -> None:
    rig = limited("a", "b", "c")
    rig.table.dispatch(rig.slot("a"), 50)
    rig.tick(4.0)
    rig.sample("b", load=2, slots=4.0)
    rig.sample("c", load=2, slots=4.0)
    rig.tick(2.0)
    assert rig.detail("a").state == "stale"
    assert mark(rig, "a") == Mark.NONE
    # Of the two that are known, one is over; if only unseen ones were left, there would be no veto.
    rig.table.dispatch(rig.slot("b"), 50)
    rig.tick()
    assert (mark(rig, "a"), mark(rig, "b"), mark(rig, "c")) == (Mark.NONE, Mark.AVOIDED, Mark.NONE)
    rig.fail("c")
    rig.tick()
    assert (mark(rig, "b"), mark(rig, "c")) == (Mark.NONE, Mark.UNREACHABLE)


def test_gauges_that_stand_still_are_no_signal() -> None:
    rig = Rig(config("a", "b", overload_waiting=10))
    stuck = {"running": 4.0, "waiting": 60.0, "kv_usage": 0.99, "counters": {"generated_tokens": {b"": 5.0}}}
    for second in range(round(FROZEN_AFTER_S) + 1):
        rig.tick(1.0)
        rig.sample("a", **stuck)
        rig.sample("b", load=2 + second % 2, kv_usage=0.01 * (second % 2))
        rig.tick()
        assert mark(rig, "a") == (Mark.NONE if second == round(FROZEN_AFTER_S) else Mark.AVOIDED)


def test_without_a_batch_size_the_polled_queue_is_brought_up_to_date() -> None:
    rig = Rig(config("a", "b", overload_waiting=10))
    rig.sample("a", running=60.0, waiting=8.0)
    rig.sample("b", running=60.0, waiting=8.0)
    rig.table.dispatch(rig.slot("a"), 3)
    rig.tick()
    assert mark(rig, "a") == Mark.AVOIDED
    assert rig.detail("a").reason == "waiting 11 >= 10"
    rig.table.end(rig.slot("a"), 2)
    rig.tick()
    assert mark(rig, "a") == Mark.NONE


def test_what_a_worker_brings_along_is_not_added_to_the_polled_queue() -> None:
    rig = Rig(config("a", "b", overload_waiting=10))
    for name in ("a", "b"):
        rig.sample(name, running=60.0, waiting=8.0)
    rig.tick()
    rig.table.lanes["outstanding"][0] = 40
    rig.tick()
    rig.tick()
    assert mark(rig, "a") == Mark.NONE


def test_one_that_fails_fast_is_never_the_only_one_below() -> None:
    """Its engine is idle by every poll. Were its held failures left out, a veto would send everything there."""
    rig = limited("a", "b")
    failing, busy = rig.slot("a"), rig.slot("b")
    rig.table.dispatch(busy, 14)
    rig.tick()
    assert mark(rig, "b") == Mark.AVOIDED
    rig.table.dispatch(failing, 15)
    rig.table.lanes["held"][failing] = 15
    rig.tick(1.0)
    rig.sample("a", load=0, slots=4.0)
    rig.sample("b", load=16, slots=4.0)
    rig.tick()
    assert (mark(rig, "a"), mark(rig, "b")) == (Mark.NONE, Mark.NONE)


def test_one_of_unknown_batch_is_not_below_for_the_whole_time_to_its_next_poll() -> None:
    rig = Rig(config("a", "b", overload_waiting=10))
    rig.sample("a", running=8.0, waiting=12.0)
    rig.sample("b", running=8.0, waiting=0.0)
    rig.tick()
    assert (mark(rig, "a"), mark(rig, "b")) == (Mark.AVOIDED, Mark.NONE)
    rig.table.dispatch(rig.slot("b"), 10)
    rig.tick()
    assert (mark(rig, "a"), mark(rig, "b")) == (Mark.NONE, Mark.NONE)


def test_polls_that_see_nobody_wait_end_a_veto_though_the_average_of_others_lags() -> None:
    rig = limited("a", "b")
    for second in range(30):
        rig.after(1.0)
        rig.sample("a", running=4.0, waiting=60.0 + second % 2, slots=4.0)
        rig.sample("b", load=2 + second % 2, slots=4.0)
    rig.tick()
    assert mark(rig, "a") == Mark.AVOIDED
    rig.after(1.0)
    rig.sample("a", load=3, slots=4.0)
    rig.tick()
    assert rig.others("a") > 20
    assert mark(rig, "a") == Mark.NONE


def test_kv_use_is_judged_by_the_demand() -> None:
    rig = Rig(config("a", "b", overload_kv=0.8))
    for name in ("a", "b"):
        rig.sample(name, load=2, kv_usage=0.5, kv_capacity=10_000.0)
    rig.table.dispatch(rig.slot("a"), 1, prompt_tokens=3500)
    rig.tick()
    assert (mark(rig, "a"), mark(rig, "b")) == (Mark.AVOIDED, Mark.NONE)
    assert rig.detail("a").reason == "KV 0.85 >= 0.8"


def test_kv_use_that_nobody_tells_is_not_judged() -> None:
    rig = Rig(config("a", "b", "c", overload_kv=0.8))
    rig.sample("a", load=2, kv_usage=0.95)  # without its capacity no dispatch since the poll can be counted
    rig.sample("b", load=2, kv_usage=0.95, kv_capacity=10_000.0)
    rig.sample("c", load=2, kv_usage=0.1, kv_capacity=10_000.0)
    rig.tick()
    assert (mark(rig, "a"), mark(rig, "b"), mark(rig, "c")) == (Mark.NONE, Mark.AVOIDED, Mark.NONE)


def test_one_that_is_unknown_and_avoided_has_no_say_in_a_limit() -> None:
    rig = limited("a", "b", "c", unknown="avoid")
    rig.table.dispatch(rig.slot("a"), 50)
    rig.tick(4.0)
    rig.sample("a", load=52, slots=4.0)
    rig.tick(2.0)
    assert [mark(rig, name) for name in "abc"] == [Mark.NONE, Mark.AVOIDED, Mark.AVOIDED]


def test_a_reason_and_a_remark_are_both_told() -> None:
    rig = limited("a", "b")
    rig.table.dispatch(rig.slot("a"), 12)
    rig.sample("a", load=2, slots=4.0, problems=("no KV cache usage",))
    rig.table.dispatch(rig.slot("a"), 12)
    rig.tick()
    assert rig.detail("a").reason.endswith(" >= 10; no KV cache usage")


def test_limits_follow_a_reload() -> None:
    rig = limited("a", "b")
    rig.table.dispatch(rig.slot("a"), 12)
    rig.tick()
    assert mark(rig, "a") == Mark.AVOIDED
    rig.apply(config("a", "b", overload_waiting=20))
    rig.tick()
    assert mark(rig, "a") == Mark.NONE
    assert rig.detail("a").reason == ""


def test_hosts_with_the_same_veto_do_not_swing_between_the_instances() -> None:
    """Three hosts, two instances at the limit all the time: each stays within what a tick can bring.

    Arrivals are 6 per tick and host at most, so an instance overshoots the limit of 10 waiting beyond its batch
    of 8 by at most 18 requests before all hosts avoid it, and by 6 more where one host has to wait for its next
    poll to see what the others have added; with a veto that swings, one of them would be empty.
    """
    rng = random.Random(5)
    rigs = [Rig(config("a", "b", overload_waiting=10)) for _ in range(3)]
    inside = {"a": [0, 0, 0], "b": [0, 0, 0]}
    fewest, most = math.inf, 0
    for step in range(3000):
        for host, rig in enumerate(rigs):
            for name in ("a", "b"):
                done = min(inside[name][host], rng.randrange(3))
                rig.table.end(rig.slot(name), done)
                inside[name][host] -= done
            for _ in range(rng.randrange(7) if sum(map(sum, inside.values())) < 36 else 0):
                name = min(("a", "b"), key=rig.live)
                rig.table.dispatch(rig.slot(name))
                inside[name][host] += 1
            if step % 50 == host:
                for name in ("a", "b"):
                    total = float(sum(inside[name]))
                    rig.sample(
                        name,
                        running=min(total, 8.0),
                        waiting=max(0.0, total - 8),
                        slots=8.0,
                        kv_usage=rng.random(),
                    )
            rig.tick()
        if step > 1000:
            counts = [sum(each) for each in inside.values()]
            fewest, most = min(fewest, *counts), max(most, *counts)
    assert most <= 18 + 18 + 6
    assert fewest > 0
