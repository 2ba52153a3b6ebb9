"""The least own count of the last one to two minutes."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from monitor.estimate.steady import SPAN_NS, SteadyOwn

_SECOND = 1_000_000_000


def test_nothing_is_steady_in_the_first_minute() -> None:
    steady = SteadyOwn(4)
    for second in range(60):
        assert steady.least(np.array([5.0, 9.0]), second * _SECOND + 1).tolist() == [0.0, 0.0]


def test_what_has_been_there_for_a_minute_is_steady_until_it_falls() -> None:
    steady = SteadyOwn(4)
    for second in range(62):
        least = steady.least(np.array([5.0 + second % 3, 9.0]), second * _SECOND + 1)
    assert least.tolist() == [5.0, 9.0]
    assert steady.least(np.array([1.0, 12.0]), 62 * _SECOND + 1).tolist() == [1.0, 9.0]


def test_a_new_instance_starts_at_nothing() -> None:
    steady = SteadyOwn(4)
    for second in range(62):
        steady.least(np.array([5.0]), second * _SECOND + 1)
    steady.clear(0)
    assert steady.least(np.array([5.0]), 63 * _SECOND).tolist() == [0.0]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, SPAN_NS)), max_size=50))
def test_the_least_is_never_above_the_own_count_nor_below_zero(steps: list[tuple[float, int]]) -> None:
    steady, now = SteadyOwn(2), 1
    for own, later in steps:
        now += later
        least = steady.least(np.array([own]), now)[0]
        assert 0.0 <= least <= own
