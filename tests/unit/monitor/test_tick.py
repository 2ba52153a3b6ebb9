"""The tick: what it publishes for what was polled and counted."""

from __future__ import annotations

import logging
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from monitor.config import MonitorConfig
from monitor.details import MOST_PER_TICK
from monitor.estimate.frozen import COUNTS_FROZEN_AFTER_S, FROZEN_AFTER_S
from monitor.polling.failure import FailureKind
from monitor.reclaim import Jumps
from monitor.sample import Reading
from monitor.scores import MODES
from monitor.scores.base import Loads
from monitor.scores.token_aware import TokenAware
from monitor.tick import Ticker
from score_table.layout import UNITS, Mark
from score_table.pick.rules import band_of
from tests.unit.monitor.fake_table import FakeTable
from tests.unit.monitor.rig import BOOT_AHEAD_NS, Rig, config

DECAY = math.exp(-0.1)  # of a low-pass of 10 s after one second


def counting(*ids: str, **options: Any) -> MonitorConfig:
    """Instances whose KV demand weighs nothing, so that scores are counts of requests."""
    return config(*ids, token_aware={"kv_weight": 0.0}, **options)


def marks(rig: Rig, name: str) -> tuple[int, int]:
    slot = rig.slot(name)
    return band_of(int(rig.table.base[slot])), band_of(int(rig.table.rest[slot]))


def test_before_any_poll_every_instance_costs_the_request_to_be_sent() -> None:
    rig = Rig(config("a", "b"))
    assert [rig.live("a"), rig.live("b")] == [1.0, 1.0]
    assert rig.table.rest[:2].tolist() == [0, 0]
    assert rig.table.heartbeat == rig.now_ns


def test_a_table_without_instances_has_a_heartbeat() -> None:
    rig = Rig(config())
    rig.tick()
    assert (rig.table.published, rig.table.heartbeat) == (2, rig.now_ns)


def test_the_whole_score_of_the_documentation() -> None:
    rig = Rig(config("a"))
    slot = rig.slot("a")
    rig.table.dispatch(slot, 4, prompt_tokens=1000)
    rig.tick()
    # Eleven there, four of them ours: seven of others.
    rig.sample(
        "a", running=9.0, waiting=2.0, kv_usage=0.1, kv_capacity=40_000.0, slots=10.0, queued_tokens=5.0
    )
    rig.tick()
    # demand = (4000 + 220*7 + 120*11) / 40000 = 0.1715, polled + delta = 0.1
    k = (4000 + 220 * 7 + 120 * 11) / 40_000
    expected = (11 + 1 + 3 * 4000 / 1000) + 5 * k / (1 - k) + 5 * (11 + 1 - 10)
    assert rig.live("a") == pytest.approx(expected, abs=2 / UNITS)
    detail = rig.detail("a")
    assert (detail.own, detail.others, detail.requests, detail.pending) == (4.0, 7.0, 11.0, 4000.0)
    assert (detail.kv_demand, detail.speed) == (pytest.approx(k), 1.0)
    assert detail.prompt_tokens == 220.0, "until engines have told of requests that ended"
    assert detail.score == pytest.approx(expected)


def test_a_dispatch_moves_the_live_value_by_its_price_and_the_next_tick_makes_it_exact() -> None:
    rig = Rig(config("a"))
    rig.sample("a", load=3, kv_usage=0.5, kv_capacity=100_000.0)
    rig.tick()
    before = rig.live("a")
    rig.table.dispatch(rig.slot("a"), 1, prompt_tokens=2000)
    # One request, 3 per 1000 prompt tokens, and 20000 per nominal 400,000 tokens of KV per 1000 tokens.
    assert rig.live("a") - before == pytest.approx(1 + 6 + 2 * 20_000 / 400_000, abs=2 / UNITS)
    rig.tick()
    # Polled + delta: 0.5 + 2000/100000, above the demand.
    exact = 1 + 6 + 5 * (0.52 / 0.48 - 1.0)
    assert rig.live("a") - before == pytest.approx(exact, abs=2 / UNITS)


def test_what_is_own_is_not_counted_twice() -> None:
    rig = Rig(config("a"))
    rig.table.dispatch(rig.slot("a"), 5)
    rig.tick()
    rig.sample("a", load=5)
    rig.tick()
    assert rig.detail("a").others == 0.0
    assert rig.detail("a").requests == 5.0


def test_held_failures_count_as_own_but_not_as_being_there() -> None:
    rig = Rig(counting("a"))
    rig.table.dispatch(rig.slot("a"), 3)
    rig.table.lanes["held"][rig.slot("a")] = 3
    rig.tick()
    rig.sample("a", load=0)
    rig.tick()
    # Without the exception others would be -3 and the failures would draw traffic.
    assert rig.detail("a").others == 0.0
    assert rig.live("a") == 4.0


def test_others_move_slowly_and_own_ones_at_once() -> None:
    rig = Rig(config("a"))
    rig.sample("a", load=10)
    rig.tick(1.0)
    rig.sample("a", load=0)
    rig.table.dispatch(rig.slot("a"), 2)
    rig.tick()
    slow, recent, share = 10 * DECAY, 10 * math.exp(-1 / 2), 2 / (2 + 10 * DECAY)
    assert rig.detail("a").requests == pytest.approx(2 + slow + share * (1 - share) * (recent - slow))


def test_paced_traffic_leaves_no_instance_better_than_an_idle_one() -> None:
    """Whatever lagging gauges say: after its request has ended, it is as idle as the others, not more."""
    rig = Rig(config("a", "b"))
    for _ in range(100):
        rig.table.dispatch(rig.slot("a"), 1, prompt_tokens=100)
        rig.tick(0.5)
        rig.sample("a", load=0)  # the gauge has not seen it yet
        rig.sample("b", load=0)
        rig.tick(0.02)
        rig.table.end(rig.slot("a"), 1, prompt_tokens=100)
        rig.table.lanes["prompt_tokens"][rig.slot("a")] -= 100
        # Between two ticks, from the base of the last one:
        assert rig.live("a") >= rig.live("b") - 1 / 8


def test_a_cell_at_its_limit_takes_nothing_off_the_base() -> None:
    rig = Rig(config("a", "b"))
    rig.table.cell_limit = 50 * UNITS
    rig.table.dispatch(rig.slot("a"), 200)
    rig.tick()
    cells = 50 * UNITS
    assert rig.table.base[rig.slot("a")] + cells >= 200 * UNITS, "live is still the exact score"


def test_an_engine_whose_gauges_stay_at_zero_does_not_draw_the_fleet() -> None:
    """Its statistics are off: requests of this host end there and nothing moves. It scores by own requests."""
    rig = Rig(config("a", "b"))
    for second in range(300):
        if second == 0:
            for name in ("a", "b"):
                rig.table.dispatch(rig.slot(name), 20)
        for name in ("a", "b"):
            rig.table.end(rig.slot(name), 1)
            rig.table.dispatch(rig.slot(name), 1)
        rig.tick(1.0)
        rig.sample("a", load=0, counters={"finished": {b"": 0.0}})
        rig.sample("b", load=20, counters={"finished": {b"": float(second)}})
        rig.tick(0.02)
        assert rig.live("a") >= rig.live("b") - 1.0, second


def test_leaked_counts_heal() -> None:
    rig = Rig(config("a", "b"))
    rig.table.dispatch(rig.slot("a"), 5)
    for _ in range(120):
        rig.tick(1.0)
        rig.sample("a", load=0)
        rig.sample("b", load=0)
    rig.tick()
    assert rig.live("a") == pytest.approx(rig.live("b"), abs=0.1)


# -- unknown, stale, unreachable


def test_an_unknown_instance_is_scored_by_its_own_requests_and_the_typical_others() -> None:
    rig = Rig(counting("a", "b", "c", "d"))
    for name, load in (("a", 4), ("b", 6), ("c", 20)):
        rig.sample(name, load=load)
    rig.table.dispatch(rig.slot("d"), 2)
    rig.tick()
    assert rig.live("d") == pytest.approx(2 + 6 + 1)
    rig.tick(0.5)
    assert rig.detail("d").estimated
    assert not rig.detail("a").estimated


def test_a_sample_counts_until_it_is_stale_and_no_longer() -> None:
    rig = Rig(counting("a", "b", staleness=5.0))
    rig.sample("a", load=50)
    rig.tick(4.9)
    rig.sample("b", load=2)
    assert rig.live("a") == pytest.approx(51.0)
    rig.tick(0.2)
    assert rig.live("a") == pytest.approx(3.0)
    assert rig.detail("a").state == "stale"
    assert rig.detail("a").reason == "no sample for 5.1 s"
    assert rig.detail("a").inflight == 50.0
    rig.sample("a", load=50)
    rig.tick()
    assert rig.detail("a").state == "up"


def test_staleness_is_that_of_the_configuration() -> None:
    rig = Rig(config("a", staleness=60.0, interval=20.0))
    rig.sample("a", load=50)
    rig.tick(50.0)
    assert rig.detail("a").state == "up"


@pytest.mark.parametrize(
    ("ahead_s", "state"), [(0.5, "up"), (3600.0, "stale"), (-4.0, "up"), (-3600.0, "stale")]
)
def test_ages_are_signed(ahead_s: float, state: str) -> None:
    rig = Rig(config("a"))
    rig.sample("a", load=1, boot_ns=rig.now_ns + BOOT_AHEAD_NS + round(ahead_s * 1e9))
    rig.tick()
    assert rig.detail("a").state == state
    if ahead_s == 3600.0:
        assert "in the future" in rig.detail("a").reason


def test_a_suspended_host_ages_its_samples() -> None:
    rig = Rig(config("a"))
    rig.sample("a", load=1)
    rig.tick()
    # CLOCK_MONOTONIC stands still over an hour's sleep, CLOCK_BOOTTIME does not.
    rig.board.ticker.tick(rig.now_ns + 1, rig.now_ns + BOOT_AHEAD_NS + 3600 * 10**9)
    assert rig.detail("a").state == "stale"


def test_when_all_are_stale_the_last_values_stay_for_a_while() -> None:
    rig = Rig(config("a", "b"))
    rig.sample("a", load=8)
    rig.sample("b", load=2)
    rig.tick(6.0)
    assert rig.live("a") > rig.live("b") + 5
    rig.tick(600.0)
    assert rig.live("a") == pytest.approx(rig.live("b"), abs=0.01)


def test_a_refused_instance_is_marked_in_both_rows_until_it_answers() -> None:
    rig = Rig(config("a", "b"))
    rig.sample("a", load=3)
    rig.fail("a", FailureKind.REFUSED, "instance a: nobody listens there")
    rig.tick()
    assert marks(rig, "a") == (Mark.UNREACHABLE, Mark.UNREACHABLE)
    assert marks(rig, "b") == (0, 0)
    detail = rig.detail("a")
    assert (detail.state, detail.reason, detail.failures) == ("unreachable", "nobody listens there", 1)
    assert detail.failure_boot_ns == rig.now_ns + BOOT_AHEAD_NS - 20_000_000
    rig.sample("a", load=3)
    rig.tick()
    assert marks(rig, "a") == (0, 0)
    assert (rig.detail("a").state, rig.detail("a").failures) == ("up", 0)


def test_a_refused_instance_has_no_say_in_what_is_typical() -> None:
    rig = Rig(counting("a", "b", "c"))
    rig.sample("a", load=100)
    rig.sample("b", load=4)
    rig.fail("a")
    rig.tick()
    assert rig.live("c") == pytest.approx(5.0)


@pytest.mark.parametrize("kind", [FailureKind.TIMEOUT, FailureKind.STATUS, FailureKind.UNUSABLE])
def test_busy_is_not_dead(kind: FailureKind) -> None:
    rig = Rig(config("a"))
    rig.sample("a", load=3)
    rig.fail("a", kind, "too slow")
    rig.tick()
    assert marks(rig, "a") == (0, 0)
    assert rig.detail("a").state == "up"
    rig.tick(6.0)
    assert (rig.detail("a").state, rig.detail("a").reason) == ("stale", "too slow")
    assert marks(rig, "a") == (0, 0)


def test_a_host_that_is_off_is_unreachable_after_three_polls_and_back_with_one_answer() -> None:
    rig = Rig(config("a", "b"))
    rig.sample("a", load=3)
    for state in ("up", "up", "unreachable", "unreachable"):
        rig.fail("a", FailureKind.NO_CONNECTION, "no connection")
        rig.tick()
        assert rig.detail("a").state == state
    assert marks(rig, "a") == (Mark.UNREACHABLE, Mark.UNREACHABLE)
    rig.sample("a", load=3)
    rig.tick()
    assert rig.detail("a").state == "up"
    assert marks(rig, "a") == (0, 0)


@pytest.mark.parametrize("kind", [None, FailureKind.TIMEOUT, FailureKind.UNRESOLVED, FailureKind.LOCAL])
def test_a_lost_connection_attempt_now_and_then_makes_nobody_unreachable(kind: FailureKind | None) -> None:
    rig = Rig(config("a"))
    for _ in range(5):
        for _ in range(2):
            rig.fail("a", FailureKind.NO_CONNECTION, "no connection")
        if kind is None:
            rig.sample("a", load=3)
        else:
            rig.fail("a", kind, "something else")
        rig.tick()
        assert marks(rig, "a") == (0, 0)


def test_a_metrics_host_that_is_off_says_nothing_of_the_serving_one() -> None:
    base = config("a")
    instance = base.instances[0].model_copy(update={"metrics_url": "http://elsewhere.test:9000"})
    rig = Rig(base.model_copy(update={"instances": (instance,)}))
    for _ in range(5):
        rig.fail("a", FailureKind.NO_CONNECTION)
    rig.tick()
    assert marks(rig, "a") == (0, 0)


def test_each_change_of_state_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(config("a"))
    caplog.set_level(logging.INFO)
    caplog.clear()
    for _ in range(3):
        rig.fail("a", FailureKind.STATUS, "answers 503")
    for _ in range(3):
        rig.fail("a", FailureKind.REFUSED, "nobody listens there")
    for _ in range(3):
        rig.sample("a", load=3)
    rig.fail("a", FailureKind.TIMEOUT, "too slow")
    rig.tick(6.0)
    for _ in range(3):
        rig.fail("a", FailureKind.TIMEOUT, "too slow")
        rig.fail("a", FailureKind.STATUS, "answers 503")
        rig.tick(1.0)
    assert [record.getMessage() for record in caplog.records] == [
        "a: still new (answers 503)",
        "a: unreachable, was new (nobody listens there)",
        "a: up, was unreachable",
        "a: stale, was up (too slow)",
        "a: still stale (answers 503)",
    ]


def test_a_refused_metrics_port_says_nothing_of_the_serving_one() -> None:
    base = config("a")
    instance = base.instances[0].model_copy(update={"metrics_url": "http://a.test:9000"})
    rig = Rig(base.model_copy(update={"instances": (instance,)}))
    rig.fail("a", FailureKind.REFUSED)
    rig.tick()
    assert marks(rig, "a") == (0, 0)


def test_avoid_prefers_instances_whose_load_is_known() -> None:
    rig = Rig(config("a", "b", "c", unknown="avoid"))
    rig.sample("a", load=30)
    rig.sample("b", kv_usage=0.5)
    rig.fail("c")
    rig.tick()
    assert (marks(rig, "a"), marks(rig, "b")) == ((0, 0), (Mark.AVOIDED, Mark.AVOIDED))
    assert marks(rig, "c") == (Mark.UNREACHABLE, Mark.UNREACHABLE)
    rig.sample("b", load=1)
    rig.tick()
    assert marks(rig, "b") == (0, 0)
    rig.tick(10.0)
    assert marks(rig, "a") == (Mark.AVOIDED, Mark.AVOIDED)


def test_among_avoided_instances_the_least_loaded_is_still_told_apart() -> None:
    rig = Rig(config("a", "b", unknown="avoid"))
    rig.table.dispatch(rig.slot("a"), 5)
    rig.tick()
    assert rig.live("a") == pytest.approx(rig.live("b") + 5)


def test_gauges_that_stand_still_are_neither_believed_nor_a_reason_to_stay_away() -> None:
    rig = Rig(config("a", "b", unknown="avoid"))
    stuck = {"running": 60.0, "waiting": 0.0, "kv_usage": 0.99, "counters": {"generated_tokens": {b"": 5.0}}}
    for second in range(round(FROZEN_AFTER_S) + 1):
        rig.tick(1.0)
        rig.sample("a", **stuck)
        rig.sample("b", load=2 + second % 2, kv_usage=0.01 * (second % 2))
        if second == 20:
            assert rig.live("a") > 50
    rig.tick()
    assert rig.live("a") == pytest.approx(rig.live("b"), abs=0.2)
    assert marks(rig, "a") == (0, 0)
    assert "not moved" in rig.detail("a").reason
    rig.sample("a", **{**stuck, "running": 0.0, "kv_usage": 0.0})
    rig.tick()
    assert rig.detail("a").reason == ""


def test_a_lone_gauge_that_is_stuck_high_does_not_keep_the_traffic_away_for_ever() -> None:
    rig = Rig(config("a", "b"))
    for second in range(round(COUNTS_FROZEN_AFTER_S) + 1):
        rig.tick(1.0)
        rig.sample("a", load=60)
        rig.sample("b", load=2 + second % 2)
    rig.tick()
    assert rig.live("a") == pytest.approx(rig.live("b"), abs=0.2)
    assert f"not moved for {COUNTS_FROZEN_AFTER_S:g} s" in rig.detail("a").reason


# -- odd values


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, -1.0, 1e300, None])
@pytest.mark.parametrize(
    "name", ["running", "waiting", "kv_usage", "queued_tokens", "throughput", "kv_capacity", "slots"]
)
def test_an_odd_field_is_unknown_and_the_rest_counts(name: str, odd: float | None) -> None:
    rig = Rig(config("a", "b"))
    whole = {"running": 4.0, "waiting": 1.0, "kv_usage": 0.5, "queued_tokens": 9.0, "throughput": 7.0}
    whole |= {"kv_capacity": 50_000.0, "slots": 8.0}
    rig.sample("b", **whole)
    rig.sample("a", **{**whole, name: odd})
    rig.tick()
    detail = rig.detail("a")
    for field, value in whole.items():
        assert getattr(detail, field) == (None if field == name else value)
    assert detail.inflight == (None if name in ("running", "waiting") else 5.0)
    assert detail.state == "up"
    assert np.isfinite(detail.score)


@pytest.mark.parametrize("capacity", [0.0, 1e-308, 0.5])
def test_a_capacity_below_one_is_none(capacity: float) -> None:
    rig = Rig(config("a"))
    rig.sample("a", load=1, kv_usage=0.1, kv_capacity=capacity, slots=capacity)
    rig.table.dispatch(rig.slot("a"), 1, prompt_tokens=100)
    rig.tick()
    assert (rig.detail("a").kv_capacity, rig.detail("a").slots) == (None, None)


def test_a_sum_of_both_is_used_where_the_engine_tells_no_parts() -> None:
    rig = Rig(counting("a"))
    rig.sample("a", inflight=6.0)
    rig.tick()
    assert rig.live("a") == 7.0


def test_an_absent_part_is_no_zero() -> None:
    rig = Rig(counting("a", "b"))
    rig.sample("b", load=9)
    rig.sample("a", running=0.0)
    rig.tick()
    assert rig.live("a") == pytest.approx(10.0)


number = (
    st.floats(allow_nan=True, allow_infinity=True)
    | st.none()
    | st.sampled_from([-1.0, 0.0, 1.0, 5.0, 1e6, 1e15])
)
FIELDS = (
    "running",
    "waiting",
    "inflight",
    "kv_usage",
    "queued_tokens",
    "throughput",
    "kv_capacity",
    "slots",
)
readings = st.fixed_dictionaries(dict.fromkeys(FIELDS, number))
counted = st.tuples(st.integers(0, 10_000), st.integers(0, 10_000))


@settings(deadline=None, max_examples=150)
@given(
    polls=st.lists(st.tuples(readings, readings, counted, st.floats(0.01, 8.0)), min_size=1, max_size=4),
    score=st.sampled_from(sorted(MODES)),
)
def test_whatever_is_polled_the_table_is_exact_and_grows_with_each_own_request(
    polls: list[tuple[dict[str, Any], dict[str, Any], tuple[int, int], float]], score: str
) -> None:
    rig = Rig(config("a", "b", "c", score=score))
    slot = rig.slot("a")
    for first, second, (requests, tokens), wait_s in polls:
        rig.sample("a", **first)
        rig.sample("b", **second)
        rig.table.dispatch(slot, requests, tokens)
        # publish() of the fake checks types and shapes, write_detail() packs every number.
        rig.tick(wait_s)
        for name in ("a", "b", "c"):
            rig.fleet.changed.add(rig.slot(name))
        rig.tick(0.0)
        for name in ("a", "b", "c"):
            detail = rig.detail(name)
            parts = (detail.own, detail.others, detail.requests, detail.kv_demand, detail.score)
            assert all(math.isfinite(part) for part in parts)
            clamped = abs(rig.table.base[rig.slot(name)]) == 2**29 - 1
            assert clamped or rig.live(name) == pytest.approx(detail.score, abs=1 / UNITS, rel=1e-9)
        before = rig.detail("a").score
        rig.table.dispatch(slot, 1, 0)
        rig.fleet.changed.add(slot)
        rig.tick(0.0)
        assert rig.detail("a").score > before
    assert rig.board.ticker.unsound == 0


class _Unsound(TokenAware):
    def score(self, loads: Loads) -> NDArray[np.float64]:
        score = super().score(loads)
        score[0] = math.nan
        return score


def test_a_score_that_is_not_finite_becomes_the_request_count_and_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig = Rig(config("a", "b"))
    rig.fleet.pools.at(0).mode = _Unsound(kv_weight=0.0)
    rig.sample("a", load=9)
    rig.sample("b", load=9)
    rig.table.dispatch(rig.slot("a"), 3)
    with caplog.at_level(logging.ERROR):
        rig.tick()
        rig.tick()
    assert rig.live("a") == pytest.approx(4.0)
    assert rig.live("b") == pytest.approx(10.0)
    assert rig.board.ticker.unsound == 2
    assert [record.message.split(":")[0] for record in caplog.records] == ["slot 0 has the score nan"]


# -- options


@pytest.mark.parametrize(
    "options",
    [
        {"score": "inflight_kv"},
        {"unknown": "avoid"},
        {"staleness": 4.0},
        {"token_aware": {"prompt_tokens": 5000}},
        {"token_aware": {"generated_tokens": 5000}},
        {"token_aware": {"speed_dead_band": 1.0}},
        {"token_aware": {"nominal_kv_capacity": 10_000}},
    ],
)
def test_every_option_of_the_estimate_changes_what_is_published(options: dict[str, Any]) -> None:
    def published(configured: Any) -> list[int]:
        rig = Rig(configured)
        for second in range(40):
            rig.tick(1.0)
            for name, rate in (("a", 400.0), ("b", 100.0)):
                rig.sample(name, load=8, throughput=rate + second, kv_capacity=90_000.0)
        rig.table.dispatch(rig.slot("c"), 3, prompt_tokens=500)
        rig.tick(4.5)
        return rig.table.base[:3].tolist() + rig.table.rest[:3].tolist()

    # Where instances tell their KV capacity the nominal one only sets the prices.
    usual = {"interval": 1.0, "timeout": 1.0}
    assert published(config("a", "b", "c", **usual)) != published(config("a", "b", "c", **usual, **options))


# -- details, suspects, jumps


def test_each_detail_record_is_written_about_twice_a_second() -> None:
    names = [f"i{number}" for number in range(16)]
    rig = Rig(config(*names))
    written = rig.table.details_written
    most = 0
    for _ in range(100):
        before = rig.table.details_written
        rig.tick(0.02)
        most = max(most, rig.table.details_written - before)
    assert rig.table.details_written - written == pytest.approx(16 * 4, abs=2)
    assert most <= 2


def test_where_much_happens_nothing_else_is_written() -> None:
    names = [f"i{number}" for number in range(64)]
    rig = Rig(config(*names, slots=64), FakeTable(capacity=64))
    rig.tick(2.0)
    for polled in (names[:MOST_PER_TICK], names):
        for name in polled:
            rig.sample(name, load=7)
        before = rig.table.details_written
        rig.tick(0.02)
        assert rig.table.details_written - before == len(polled)


def test_a_slot_to_which_something_happened_has_a_new_record_at_the_next_tick() -> None:
    rig = Rig(config("a", "b"))
    rig.sample("b", load=7, kv_usage=0.25)
    rig.tick()
    assert (rig.detail("b").inflight, rig.detail("b").kv_usage) == (7.0, 0.25)
    assert rig.detail("b").sample_boot_ns == rig.now_ns + BOOT_AHEAD_NS - 20_000_000
    assert rig.detail("b").engine == "vllm"


def test_the_rate_of_dispatches_stands_in_where_the_engine_has_no_counter() -> None:
    rig = Rig(config("a"))
    for _ in range(10):
        rig.table.dispatch(rig.slot("a"), 3)
        rig.tick(1.0)
    assert rig.detail("a").qps_1m == pytest.approx(3.0)
    for second in range(10):
        rig.sample("a", load=1, counters={"finished": {b"": 50.0 * second}})
        rig.tick(1.0)
    assert rig.detail("a").qps_1m == pytest.approx(50.0, rel=0.1)


def test_a_new_suspicion_is_reported_once() -> None:
    rig = Rig(config("a", "b"))
    assert rig.tick() == []
    rig.table.lanes["suspects"][1] += 2
    assert rig.tick() == [1]
    assert rig.tick() == []


def test_suspicions_from_before_the_start_are_none() -> None:
    table = FakeTable()
    table.lanes["suspects"][0] = 40
    assert Rig(config("a"), table).tick() == []


def test_a_worker_that_joins_with_requests_does_not_make_them_others() -> None:
    rig = Rig(config("a"))
    rig.sample("a", load=10)
    # The polled ones were its own all the time: it attaches with what it had open.
    rig.table.lanes["outstanding"][0] = 10
    rig.tick(0.5)
    rig.tick(0.5)
    rig.sample("a", load=10)
    rig.tick()
    assert rig.detail("a").requests == 10.0


def test_tokens_that_a_worker_brings_along_are_not_added_to_the_polled_usage() -> None:
    rig = Rig(config("a"))
    rig.sample("a", load=10, kv_usage=0.5, kv_capacity=40_000.0)
    rig.tick()
    # The polled usage has them already.
    rig.table.lanes["outstanding"][0] = 10
    rig.table.lanes["kv_tokens"][0] = 10_000
    rig.tick()
    rig.tick()
    rig.fleet.changed.add(0)
    rig.tick()
    assert rig.detail("a").kv_demand == pytest.approx(0.5)
    # What is dispatched from now on, it has not.
    rig.table.dispatch(0, 1, prompt_tokens=4000)
    rig.fleet.changed.add(0)
    rig.tick()
    assert rig.detail("a").kv_demand == pytest.approx(0.6)


def test_requests_that_are_dispatched_and_end_are_no_jump() -> None:
    jumps, table = Jumps(), FakeTable(capacity=16)
    jumps.seen(table.naturals())
    for _ in range(20):
        table.dispatch(0, 5)
        assert jumps.seen(table.naturals()) == []
        table.end(0, 4)
        assert jumps.seen(table.naturals()) == []


def test_a_request_seen_half_counted_is_no_jump() -> None:
    jumps, table = Jumps(), FakeTable(capacity=16)
    jumps.seen(table.naturals())
    table.lanes["outstanding"][3] += 1
    assert jumps.seen(table.naturals()) == []
    table.lanes["dispatched"][3] += 1
    assert [jumps.seen(table.naturals()) for _ in range(3)] == [[], [], []]


def test_a_jump_is_found_once_and_where_it_was() -> None:
    jumps, table = Jumps(), FakeTable(capacity=16)
    jumps.seen(table.naturals())
    table.lanes["outstanding"][3] += 4
    assert [jumps.seen(table.naturals()) for _ in range(3)] == [[], [3], []]


def test_a_late_answer_of_an_instance_that_is_gone_lands_nowhere() -> None:
    rig = Rig(config("a", "b"))
    rig.apply(config("b"))
    rig.sample("a", load=90)
    rig.fail("a")
    rig.tick()
    assert marks(rig, "b") == (0, 0)
    assert band_of(int(rig.table.base[0])) == Mark.UNUSED
    assert not rig.fleet.up.any()


def test_nothing_of_the_last_holder_is_left_in_a_slot() -> None:
    rig = Rig(config("a", "b"))
    rig.sample("b", load=1)
    rig.sample("a", load=90, kv_usage=0.9, kv_capacity=1000.0, slots=3.0)
    rig.tick()
    rig.apply(config("b"))
    rig.tick(6.0)
    rig.sample("b", load=1)
    rig.apply(config("b", "c"))
    rig.tick()
    assert rig.slot("c") == 0
    assert rig.live("c") == pytest.approx(rig.live("b"))
    assert (rig.detail("c").slots, rig.detail("c").kv_capacity, rig.detail("c").state) == (None, None, "new")


def test_an_engine_restart_begins_its_rates_and_its_speed_anew() -> None:
    rig = Rig(config("a"))
    for second, total in enumerate((100.0, 200.0, 300.0, 5.0)):
        rig.tick(1.0)
        rig.fleet.sampled(
            rig.keys["a"],
            Reading(
                running=1.0,
                waiting=0.0,
                process_start=1.0 if second < 3 else 2.0,
                counters={"finished": {b"": total}},
            ),
            "vllm",
            rig.now_ns + BOOT_AHEAD_NS,
            rig.now_ns,
        )
    rig.tick()
    qps = rig.detail("a").qps_1m
    assert qps is None or qps >= 0.0


def test_a_tick_needs_nothing_but_a_table_and_a_fleet() -> None:
    rig = Rig(config("a"))
    ticker = Ticker(rig.table, rig.fleet)
    assert ticker.tick(rig.now_ns, rig.now_ns) == []


def test_an_answer_that_stands_still_at_some_work_says_nothing_of_the_speed() -> None:
    """Until it is no longer believed, frozen gauges must not send a whole fleet's traffic elsewhere."""
    rig = Rig(config("a", "b", "c"))
    for second in range(45):
        rig.after(1.0)
        for name in "abc":
            frozen = name == "a" and second > 20
            tokens = 500.0 * (20 if frozen else second)
            running = 10.0 if frozen else 10.0 + second % 2
            rig.sample(name, running=running, waiting=0.0, counters={"generated_tokens": {b"": tokens}})
        rig.tick()
    assert [rig.detail(name).speed for name in "abc"] == [1.0, 1.0, 1.0]
    assert not rig.fleet.frozen[0]
