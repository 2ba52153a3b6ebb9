"""Rates from running totals: per series, restart-safe, never negative."""

from __future__ import annotations

import math
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.engines.base import MAX_SERIES
from monitor.estimate.rates import RateResult, Rates
from monitor.sample import FINISHED, GENERATED_TOKENS, PROMPT_TOKENS, Reading

S = 1_000_000_000


def reading(
    finished: dict[str, float] | float | None = None,
    *,
    prompt: float | None = None,
    generated: float | None = None,
    start: float | None = None,
) -> Reading:
    counters: dict[str, dict[bytes, float]] = {}
    if isinstance(finished, dict):
        counters[FINISHED] = {key.encode(): value for key, value in finished.items()}
    elif finished is not None:
        counters[FINISHED] = {b"": finished}
    if prompt is not None:
        counters[PROMPT_TOKENS] = {b"": prompt}
    if generated is not None:
        counters[GENERATED_TOKENS] = {b"": generated}
    return Reading(counters=counters, process_start=start)


def run(*polls: tuple[float, Reading]) -> list[RateResult]:
    rates = Rates()
    return [rates.update(int(at * S), read) for at, read in polls]


def qps(*polls: tuple[float, Reading]) -> float | None:
    return run(*polls)[-1].qps_1m


def test_a_rate_is_unknown_until_two_polls() -> None:
    first, second = run((0, reading(1000)), (2, reading(1010)))
    assert (first.qps_1m, second.qps_1m) == (None, 5.0)


def test_a_rate_is_unknown_without_the_counter_and_known_again_with_it() -> None:
    results = run((0, reading(0)), (1, reading(5)), (2, reading()), (3, reading(15)))
    assert [result.qps_1m for result in results] == [None, 5.0, None, 5.0]


def test_qps_is_taken_over_the_last_minute() -> None:
    polls = [(t, reading(10 * min(t, 100))) for t in range(201)]
    results = run(*polls)
    assert results[50].qps_1m == results[100].qps_1m == pytest.approx(10)
    assert results[130].qps_1m == pytest.approx(5)
    assert results[200].qps_1m == 0


def test_the_gain_over_a_long_gap_is_spread_over_the_gap() -> None:
    assert qps((0, reading(0)), (1, reading(1)), (601, reading(601))) == pytest.approx(1)


def test_throughput_follows_within_seconds() -> None:
    results = run(*[(t, reading(generated=100 * t if t <= 20 else 2000 + 300 * (t - 20))) for t in range(31)])
    assert results[0].throughput is None
    assert results[20].throughput == pytest.approx(100)
    assert results[25].throughput == pytest.approx(300)


def test_the_mean_prompt_is_that_of_the_requests_finished_in_the_window() -> None:
    results = run(
        (0, reading(100, prompt=1e6)),
        (1, reading(100, prompt=1e6 + 500)),
        (2, reading(104, prompt=1e6 + 1000)),
    )
    assert [result.mean_prompt_tokens for result in results] == [None, None, 250.0]


def test_a_restart_seen_by_a_falling_total_never_makes_a_rate_negative() -> None:
    results = run((0, reading(1000)), (1, reading(1010)), (2, reading(3)), (3, reading(5)))
    assert [result.restarted for result in results] == [False, False, True, False]
    assert [result.qps_1m for result in results] == [None, 10.0, 5.0, 4.0]


def test_a_restart_that_only_the_process_start_shows_is_no_burst() -> None:
    results = run(
        (0, reading(10, start=1.0)), (1, reading(20, start=1.0)), (2, reading(1_000_000, start=2.0))
    )
    assert [result.restarted for result in results] == [False, False, True]
    assert results[-1].qps_1m == 5.0


def test_one_engine_of_a_group_restarts_and_the_others_go_on_counting() -> None:
    assert (
        qps(
            (0, reading({"0": 500, "1": 100})),
            (1, reading({"0": 510, "1": 0})),
            (2, reading({"0": 520, "1": 4})),
        )
        == 12
    )


def test_a_series_that_shows_up_late_in_a_known_process_counts_from_zero() -> None:
    assert qps((0, reading({"stop": 7})), (1, reading({"stop": 7, "length": 3}))) == 3
    assert qps((0, reading({"stop": 7}, start=1)), (1, reading({"stop": 7, "length": 3}, start=1))) == 3


@pytest.mark.parametrize(
    ("before", "start", "qps_1m"),
    [
        (reading(), None, 4.0),  # the counter was not there, so its first second is the second one
        (reading({"a": 5}, start=1.0), 2.0, 2.0),  # another process
        (reading({"b": 10}), None, 2.0),  # a total falls at the same time: a restart
    ],
)
def test_a_series_of_unknown_age_counts_from_where_it_is_first_seen(
    before: Reading, start: float | None, qps_1m: float
) -> None:
    seen = {"a": 1_000_000.0, "b": 9.0, "c": 1_000_000.0}
    assert (
        qps((0, before), (1, reading(seen, start=start)), (2, reading(seen | {"a": 1_000_004.0}))) == qps_1m
    )


def test_a_series_that_is_missing_for_a_poll_is_not_counted_anew() -> None:
    assert (
        qps((0, reading({"a": 900, "b": 1})), (1, reading({"b": 2})), (2, reading({"a": 903, "b": 2}))) == 2
    )


def test_a_series_that_was_missing_for_long_counts_from_where_it_is_seen_again() -> None:
    gone = [(t, reading({"b": 0})) for t in (1, 2, 3)]
    assert qps((0, reading({"a": 900, "b": 0})), *gone, (4, reading({"a": 990, "b": 4}))) == 1


def test_labels_that_change_on_every_poll_are_neither_remembered_nor_counted_as_work() -> None:
    rates = Rates()
    tracemalloc.start()
    try:
        for poll in range(60):
            series = {f"{poll}/{number}" + "x" * 1000: 5.0 for number in range(200)}
            result = rates.update(poll * S, reading(series))
            if poll == 5:
                before, _ = tracemalloc.get_traced_memory()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 200_000, "two readings at most"
    assert result.qps_1m is not None
    assert result.qps_1m < 200 * 5 * 3 / 59


def test_more_series_than_any_engine_has_are_no_rate() -> None:
    many = {str(number): 5.0 for number in range(MAX_SERIES + 1)}
    assert [result.qps_1m for result in run((0, reading(many)), (1, reading(many)))] == [None, None]


def test_a_start_time_that_is_missing_for_a_poll_is_no_restart() -> None:
    results = run(
        (0, reading(0, start=1.0)), (1, reading(1)), (2, reading(2, start=1.0)), (3, reading(3, start=2.0))
    )
    assert [result.restarted for result in results] == [False, False, False, True]


def test_two_readings_of_one_moment_are_no_rate_and_no_division_by_zero() -> None:
    results = run((1, reading(0)), (1, reading(5)), (2, reading(5)))
    assert [result.qps_1m for result in results] == [None, None, 0.0]


totals = st.one_of(st.none(), st.floats(0, 1e18), st.integers(0, 20).map(float))
series = st.one_of(st.none(), st.dictionaries(st.sampled_from("abc"), st.floats(0, 1e18), max_size=3))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**12), series, totals, totals, st.sampled_from([None, 1.0, 2.0])),
        max_size=20,
    )
)
def test_rates_are_finite_and_never_negative(
    polls: list[tuple[int, dict[str, float] | None, float | None, float | None, float | None]],
) -> None:
    rates, now = Rates(), 0
    for step, finished, prompt, generated, start in polls:
        now += step
        result = rates.update(now, reading(finished, prompt=prompt, generated=generated, start=start))
        for rate in (result.qps_1m, result.throughput, result.mean_prompt_tokens):
            assert rate is None or (math.isfinite(rate) and rate >= 0)
