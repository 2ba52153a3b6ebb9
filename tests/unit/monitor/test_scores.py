"""Score modes: the formulas against numbers worked out by hand, and what must hold for every input."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.scores import MODES, score_mode
from monitor.scores.base import Loads, barrier, requests
from monitor.scores.inflight_kv import InflightKv
from monitor.scores.token_aware import TokenAware
from score_table.layout import UNITS
from tests.unit.monitor.rig import config


def loads(**given: float) -> Loads:
    """One slot; what is not given is that of an idle instance whose batch size is unknown."""
    idle = {"own": 0.0, "others": 0.0, "n": 0.0, "pending": 0.0, "kv": 0.0, "speed": 1.0, "slots": math.nan}
    return Loads(**{name: np.array([value]) for name, value in {**idle, **given}.items()})


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (loads(), 1.0),
        (loads(n=4.0), 5.0),
        # 2000 prompt tokens without a first token weigh 3 * 2 = 6 requests.
        (loads(n=4.0, pending=2000.0), 11.0),
        # Half of the KV cache: 5 * 0.5/0.5.
        (loads(kv=0.5), 6.0),
        # Four fifths of it: 5 * 0.8/0.2.
        (loads(kv=0.8), 21.0),
        # More than fits is clamped: 5 * 0.98/0.02 = 245.
        (loads(kv=3.0), 246.0),
        # Six requests and this one, of which four fit: 7 + 5 * 3.
        (loads(n=6.0, slots=4.0), 22.0),
        (loads(n=3.0, slots=4.0), 4.0),
        # 1.5 times slower: 1.5 * (2 + 1 + 3).
        (loads(n=2.0, pending=1000.0, speed=1.5), 9.0),
    ],
)
def test_token_aware_is_the_documented_formula(load: Loads, expected: float) -> None:
    assert TokenAware().score(load)[0] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (loads(), 0.0),
        (loads(n=4.0, pending=5000.0, slots=1.0, speed=2.0), 4.0),
        (loads(n=4.0, kv=0.5), 5.5),
        (loads(kv=0.9), 13.5),
        # Clamped: 1.5 * 0.999/0.001.
        (loads(kv=1.0), 1498.5),
    ],
)
def test_inflight_kv_is_the_documented_formula(load: Loads, expected: float) -> None:
    assert InflightKv().score(load)[0] == pytest.approx(expected)


def test_token_aware_prices_are_those_of_the_routing_study() -> None:
    prices = TokenAware().prices(80_000)
    assert prices.request == UNITS
    assert prices.prompt_token == pytest.approx(3 * 1024 / 1000)
    assert prices.kv_token == pytest.approx(20000 / 80_000 * 1024 / 1000)


def test_prices_of_an_unknown_capacity_are_those_of_the_nominal_one() -> None:
    for mode in (TokenAware(nominal_kv_capacity=50_000), InflightKv(nominal_kv_capacity=50_000)):
        assert mode.prices(None) == mode.prices(50_000)


def test_inflight_kv_charges_no_prompt_token_but_its_kv() -> None:
    prices = InflightKv().prices(6000)
    assert (prices.request, prices.prompt_token) == (UNITS, 0.0)
    assert prices.kv_token == pytest.approx(4 * 1.5 / 6000 * 1024)


@pytest.mark.parametrize("mode", [TokenAware(), InflightKv()])
def test_the_kv_price_is_the_slope_of_the_score_at_half_a_cache(mode: TokenAware | InflightKv) -> None:
    capacity, step = 100_000, 1e-6
    rise = mode.score(loads(kv=0.5 + step))[0] - mode.score(loads(kv=0.5 - step))[0]
    per_token = rise / (2 * step) / capacity * UNITS
    assert mode.prices(capacity).kv_token == pytest.approx(per_token, rel=1e-6)


def test_every_name_of_the_configuration_is_a_mode_that_bears_it() -> None:
    for name in MODES:
        assert score_mode(config("a", score=name)).name == name


@pytest.mark.parametrize(
    ("section", "option", "value"),
    [
        ("token_aware", "prefill_weight", 7.0),
        ("token_aware", "kv_weight", 11.0),
        ("token_aware", "kv_limit", 0.9),
        ("token_aware", "slots_weight", 0.0),
        ("token_aware", "nominal_kv_capacity", 12_000),
        ("inflight_kv", "lambda", 9.0),
        ("inflight_kv", "kv_limit", 0.9),
    ],
)
def test_every_option_of_a_mode_reaches_its_score_or_its_prices(
    section: str, option: str, value: float
) -> None:
    usual = score_mode(config("a", score=section))
    changed = score_mode(config("a", score=section, **{section: {option: value}}))
    load = loads(n=9.0, pending=300.0, kv=0.97, slots=4.0)

    def says(mode: object) -> tuple[object, ...]:
        assert isinstance(mode, (TokenAware, InflightKv))
        return (mode.score(load)[0], mode.prices(None))

    assert says(usual) != says(changed)


finite = st.floats(0, 1e7, allow_nan=False)
any_loads = st.builds(
    loads,
    own=finite,
    others=st.floats(-1e7, 1e7),
    n=finite,
    pending=st.floats(0, 1e12),
    kv=st.floats(0, 1e6),
    speed=st.floats(0.25, 4),
    slots=st.floats(1, 1e6) | st.just(math.nan),
)


@settings(deadline=None)
@given(load=any_loads, mode=st.sampled_from([TokenAware(), InflightKv(), TokenAware(kv_limit=0.999)]))
def test_a_score_is_always_finite(load: Loads, mode: TokenAware | InflightKv) -> None:
    assert np.isfinite(mode.score(load)).all()


@settings(deadline=None)
@given(load=any_loads, mode=st.sampled_from([TokenAware(), InflightKv()]))
def test_one_more_request_always_makes_it_worse(load: Loads, mode: TokenAware | InflightKv) -> None:
    assert mode.score(replace(load, n=load.n + 1.0))[0] > mode.score(load)[0]


@settings(deadline=None)
@given(load=any_loads, part=st.sampled_from(["pending", "kv"]), more=st.floats(0, 1e6))
def test_more_work_never_makes_it_better(load: Loads, part: str, more: float) -> None:
    for mode in (TokenAware(), InflightKv()):
        assert mode.score(replace(load, **{part: getattr(load, part) + more}))[0] >= mode.score(load)[0]


def test_requests_are_the_sum_and_never_negative() -> None:
    assert requests(np.array([3.0, 3.0, 1.0]), np.array([-1.25, 2.0, -5.0])).tolist() == [1.75, 5.0, 0.0]


def test_the_barrier_is_zero_for_an_empty_and_below_an_empty_cache() -> None:
    assert barrier(np.array([-0.5, 0.0]), 0.98).tolist() == [0.0, 0.0]


def test_loads_are_arrays_only() -> None:
    assert all(isinstance(getattr(loads(), each.name), np.ndarray) for each in fields(Loads))
