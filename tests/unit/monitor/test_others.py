"""What others have at an instance: the low-pass, and where it starts."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.estimate.others import FADE_S, Others, correction, low_pass, share_of_own, tau_s
from monitor.estimate.typical import median

START_NS = 1000 * 10**9
STALE_S = 5.0


class Fleet:
    """``Others`` of four slots, polled once a second."""

    def __init__(self) -> None:
        self.others = Others(4)
        self.now_ns = START_NS

    def sample(self, slot: int, foreign: float, *, after_s: float = 0.0, cold: bool = False) -> None:
        self.now_ns += round(after_s * 1e9)
        self.others.sampled(slot, foreign, self.now_ns, 1.0, STALE_S, cold)

    def now(self, *known: bool) -> list[float]:
        at = slice(0, len(known))
        return self.others.now(at, np.array(known, dtype=np.bool_), self.now_ns).tolist()


def test_the_time_constant_of_a_host_alone_is_ten_seconds_or_three_polls() -> None:
    assert [tau_s(each, 1.0) for each in (0.05, 1.0, 10 / 3, 20.0)] == [10.0, 10.0, 10.0, 60.0]


def test_it_grows_with_the_number_of_hosts_that_answer_to_the_same_polls() -> None:
    assert [tau_s(1.0, share) for share in (0.5, 1 / 4, 1 / 16, 1 / 20, 0.0)] == [
        10.0,
        12.0,
        48.0,
        60.0,
        60.0,
    ]
    assert tau_s(0.05, 1 / 16) == 10.0


def test_the_share_of_the_last_tick_is_that_of_the_next_sample() -> None:
    fleet = Fleet()
    fleet.sample(0, 0.0, cold=True)
    fleet.others.shared(slice(0, 1), 1 / 16)
    fleet.sample(0, 10.0, after_s=1.0)
    assert fleet.now(True) == [pytest.approx(10.0 * (1 - math.exp(-1 / 48)))]
    fleet.others.clear(0)
    fleet.sample(0, 0.0, cold=True)
    fleet.sample(0, 10.0, after_s=1.0)
    assert fleet.now(True) == [pytest.approx(10.0 * (1 - math.exp(-1 / 10)))], "nothing of the last holder"


def test_the_first_sample_of_a_cold_fleet_is_taken_as_it_is() -> None:
    fleet = Fleet()
    fleet.sample(0, 7.0, cold=True)
    fleet.sample(1, -2.0, cold=True)
    assert fleet.now(True, True) == [7.0, -2.0]


def test_a_step_weighs_by_the_time_since_the_last_one() -> None:
    fleet = Fleet()
    fleet.sample(0, 0.0, cold=True)
    fleet.sample(0, 10.0, after_s=1.0)
    first = 10.0 * (1 - math.exp(-0.1))
    assert fleet.now(True) == [pytest.approx(first)]
    fleet.sample(0, 10.0, after_s=3.0)
    assert fleet.now(True) == [pytest.approx(10.0 - (10.0 - first) * math.exp(-0.3))]


def test_what_has_changed_lately_is_told_apart() -> None:
    fleet = Fleet()
    fleet.sample(0, 10.0, cold=True)
    fleet.sample(1, 10.0, cold=True)
    fleet.sample(0, 0.0, after_s=1.0)
    recent, slow = 10 * math.exp(-1 / 2), 10 * math.exp(-1 / 10)
    known = np.array([True, True])
    assert fleet.others.change(slice(0, 2), known).tolist() == [pytest.approx(recent - slow), 0.0]
    assert fleet.others.change(slice(0, 2), ~known).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("own", "slow", "expected"),
    [
        # Alone: nothing to learn from polls.
        ([40.0, 40.0], [0.0, 0.0], 0.0),
        ([40.0, 40.0], [-3.0, 3.0], 0.0),
        # One of four like hosts, one of a hundred, and one that sends nothing.
        ([10.0, 10.0], [30.0, 30.0], 3 / 16),
        ([1.0, 1.0], [99.0, 99.0], 0.0099),
        ([0.0, 0.0], [50.0, 20.0], 0.0),
        # Nobody has anything there.
        ([0.0], [0.0], 0.0),
        ([], [], 0.0),
        # Leaked counts: more own ones than there are.
        ([50.0], [-20.0], 0.0),
    ],
)
def test_a_host_answers_to_its_share_of_a_change(
    own: list[float], slow: list[float], expected: float
) -> None:
    share = share_of_own(np.array(own), np.array(slow))
    assert 0.0 <= share <= 1.0
    assert correction(share) == pytest.approx(expected)


@settings(deadline=None)
@given(
    steps=st.lists(st.floats(0.01, 5.0), min_size=1, max_size=20),
    start=st.floats(-100, 100),
    target=st.floats(-100, 100),
)
def test_irregular_steps_come_to_the_same_as_one(steps: list[float], start: float, target: float) -> None:
    value = start
    for step in steps:
        value = low_pass(value, target, step, 10.0)
    assert value == pytest.approx(low_pass(start, target, sum(steps), 10.0), abs=1e-6)


def test_time_that_runs_backwards_changes_nothing() -> None:
    assert low_pass(3.0, 100.0, -5.0, 10.0) == 3.0


def test_an_instance_without_a_fresh_sample_has_the_median_of_the_known_ones() -> None:
    fleet = Fleet()
    for slot, foreign in enumerate((1.0, 2.0, 6.0, 100.0)):
        fleet.sample(slot, foreign, cold=True)
    assert fleet.now(True, True, True, False) == [1.0, 2.0, 6.0, 2.0]
    assert fleet.now(True, False, True, False) == [1.0, 3.5, 6.0, 3.5]


def test_a_newcomer_starts_at_the_median_and_not_at_its_own_empty_queue() -> None:
    fleet = Fleet()
    for slot, foreign in enumerate((4.0, 5.0, 6.0)):
        fleet.sample(slot, foreign, cold=True)
    assert fleet.now(True, True, True, False)[3] == 5.0
    fleet.sample(3, 0.0)
    assert fleet.now(True, True, True, True)[3] == pytest.approx(5.0 * math.exp(-0.1))


def test_a_newcomer_starts_at_the_median_even_before_a_tick_has_seen_it() -> None:
    fleet = Fleet()
    fleet.sample(0, 4.0, cold=True)
    fleet.now(True)
    fleet.others.clear(1)
    fleet.others.begin(1, slice(0, 2))
    fleet.sample(1, 0.0)
    assert fleet.now(True, True)[1] == pytest.approx(4.0 * math.exp(-0.1))


def test_an_instance_that_was_away_goes_on_from_what_was_in_use_for_it() -> None:
    fleet = Fleet()
    fleet.sample(0, 50.0, cold=True)
    fleet.sample(1, 2.0, cold=True)
    fleet.sample(1, 2.0, after_s=60.0)
    assert fleet.now(False, True) == [2.0, 2.0]
    fleet.sample(0, 0.0)
    assert fleet.now(True, True)[0] == pytest.approx(2.0 * math.exp(-0.1))


def test_the_last_values_fade_while_nothing_at_all_is_known() -> None:
    fleet = Fleet()
    fleet.sample(0, 8.0, cold=True)
    fleet.sample(1, -4.0, cold=True)
    fleet.now_ns += round(FADE_S * 1e9)
    faded = math.exp(-1)
    assert fleet.now(False, False, False) == [
        pytest.approx(8.0 * faded),
        pytest.approx(-4.0 * faded),
        pytest.approx(2.0 * faded),
    ]


def test_nothing_ever_heard_of_is_zero_others() -> None:
    assert Fleet().now(False, False) == [0.0, 0.0]
    assert Fleet().now() == []


def test_after_a_jump_of_the_own_counts_the_next_sample_counts_as_it_is() -> None:
    fleet = Fleet()
    fleet.sample(0, 2.0, cold=True)
    fleet.sample(1, 2.0, cold=True)
    fleet.others.reseed([0])
    assert fleet.now(True, True) == [2.0, 2.0]
    fleet.sample(0, 9.0, after_s=1.0)
    fleet.sample(1, 9.0)
    assert fleet.now(True, True) == [9.0, pytest.approx(9.0 - 7.0 * math.exp(-0.1))]
    fleet.sample(0, 2.0, after_s=1.0)
    assert fleet.now(True, True)[0] == pytest.approx(2.0 + 7.0 * math.exp(-0.1))


def test_a_jump_at_an_instance_that_never_had_a_sample_leaves_it_a_newcomer() -> None:
    fleet = Fleet()
    fleet.sample(0, 6.0, cold=True)
    fleet.now(True, False)
    fleet.others.reseed([1])
    fleet.sample(1, 0.0)
    assert fleet.now(True, True)[1] == pytest.approx(6.0 * math.exp(-0.1))


def test_a_restored_value_is_in_use_at_once_and_gone_on_from() -> None:
    fleet = Fleet()
    fleet.others.restore(0, 12.0, fleet.now_ns)
    assert fleet.now(False, False) == [12.0, 12.0]
    fleet.sample(0, 2.0, after_s=1.0, cold=True)
    assert fleet.now(True)[0] == pytest.approx(2.0 + 10.0 * math.exp(-0.1))


def test_a_cleared_slot_has_nothing_of_its_last_holder() -> None:
    fleet = Fleet()
    fleet.sample(0, 40.0, cold=True)
    fleet.sample(1, 4.0, cold=True)
    fleet.sample(2, 4.0, cold=True)
    fleet.now(True, True, True)
    fleet.others.clear(0)
    assert fleet.now(False, True, True)[0] == 4.0


@settings(deadline=None)
@given(values=st.lists(st.floats(-1e6, 1e6), max_size=12))
def test_the_median_is_that_of_numpy(values: list[float]) -> None:
    expected = float(np.median(values)) if values else None
    assert median(np.array(values)) == (pytest.approx(expected) if values else None)
