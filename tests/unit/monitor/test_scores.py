"""Score modes: the formulas against numbers worked out by hand, and what must hold for every input."""

from __future__ import annotations

import copy
import math
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.config import Option, options
from monitor.config.score_sections import OWN_MODES
from monitor.scores import MODES, ScoreMode, score_mode
from monitor.scores.base import Loads, barrier, requests, told_by_all
from monitor.scores.expected_wait import ExpectedWait
from monitor.scores.inflight_kv import InflightKv
from monitor.scores.token_aware import TokenAware
from monitor.scores.weighted_sum import WeightedSum
from score_table.layout import UNITS
from tests.unit.monitor.loads import IDLE, fleet, loads
from tests.unit.monitor.rig import Rig, config


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
    for kind in (TokenAware, InflightKv, ExpectedWait):
        mode = kind(nominal_kv_capacity=50_000)
        assert mode.prices(None) == mode.prices(50_000)


def test_inflight_kv_charges_no_prompt_token_but_its_kv() -> None:
    prices = InflightKv().prices(6000)
    assert (prices.request, prices.prompt_token) == (UNITS, 0.0)
    assert prices.kv_token == pytest.approx(4 * 1.5 / 6000 * 1024)


@pytest.mark.parametrize("mode", [TokenAware(), InflightKv(), ExpectedWait()])
def test_the_kv_price_is_the_slope_of_the_score_at_half_a_cache(mode: ScoreMode) -> None:
    capacity, step = 100_000, 1e-6
    rise = mode.score(loads(kv=0.5 + step))[0] - mode.score(loads(kv=0.5 - step))[0]
    per_token = rise / (2 * step) / capacity * UNITS
    assert mode.prices(capacity).kv_token == pytest.approx(per_token, rel=1e-6)


def test_every_name_of_the_configuration_is_a_mode_that_bears_it() -> None:
    for name in MODES:
        assert score_mode(config("a", score=name)).name == name


# -- every option


def _telling(rig: Rig) -> None:
    """A minute of polls that tell everything, of engines of unequal speed, one overfull and one half full."""
    rig.table.dispatch(rig.slot("a"), 30, prompt_tokens=2000)
    for second in range(60):
        for name, tokens_per_s in (("a", 100.0), ("b", 118.0), ("c", 109.0)):
            rig.sample(
                name,
                running=20.0,
                waiting=5.0,
                kv_usage=0.1,
                kv_capacity=40_000.0,
                slots=16.0,
                queued_tokens=900.0,
                throughput=tokens_per_s,
                counters={"finished": {b"": 3.0 * second}},
            )
        rig.tick(1.0)


def _silent(rig: Rig) -> None:
    """Only requests are known."""
    rig.table.dispatch(rig.slot("a"), 30, prompt_tokens=2000)
    rig.sample("b", load=20)
    rig.tick(1.0)


def _scores(score: str, **options: dict[str, Any]) -> list[float]:
    found = []
    for story in (_telling, _silent):
        rig = Rig(config("a", "b", "c", score=score, **options))
        story(rig)
        rig.fleet.changed.update(rig.slot(name) for name in "abc")
        rig.tick(0.0)
        found += [rig.detail(name).score for name in "abc"]
    return found


MODE_OPTIONS = [option for option in options() if option.key_path.partition(".")[0] in MODES]


@pytest.mark.parametrize("option", MODE_OPTIONS, ids=lambda option: option.key_path)
def test_every_option_of_a_mode_changes_a_score(option: Option) -> None:
    section, _, key = option.key_path.partition(".")
    value = type(option.default)(float(option.default) * 0.6 or 5.0)
    assert _scores(section, **{section: {key: value}}) != _scores(section)


def test_every_mode_has_a_section_of_options() -> None:
    assert {option.key_path.partition(".")[0] for option in MODE_OPTIONS} == set(MODES) == set(OWN_MODES)


# -- what holds for every mode

OWN = [score_mode(config("a", score=name)) for name in MODES]
finite = st.floats(0, 1e7, allow_nan=False)
unknown = st.just(math.nan)


@st.composite
def any_slot(draw: st.DrawFn) -> dict[str, float]:
    known = draw(st.booleans())
    polled = {
        "queued": st.floats(0, 1e15),
        "waiting": finite,
        "running": finite,
        "throughput": st.floats(0, 1e9),
        "qps_1m": st.floats(0, 1e9),
        "usage": st.floats(0, 1),
    }
    own, others = draw(finite), draw(st.floats(-1e7, 1e7))
    return {
        "own": own,
        "others": others,
        "n": max(0.0, own + others),
        "pending": draw(st.floats(0, 1e12)),
        "kv": draw(st.floats(0, 1e6)),
        "speed": draw(st.floats(0.25, 4)),
        "slots": draw(st.floats(1, 1e6) | unknown),
        "known": known,
        "prompt": draw(st.floats(1, 1e6)),
        **{name: draw((value | unknown) if known else unknown) for name, value in polled.items()},
    }


any_fleet = st.lists(any_slot(), max_size=4).map(lambda slots: fleet(*slots) if slots else EMPTY)
EMPTY = Loads(**{name: np.array([], dtype=bool if name == "known" else float) for name in IDLE})
any_mode = st.sampled_from(
    [
        *OWN,
        TokenAware(kv_limit=0.999),
        ExpectedWait(throughput=1e6, request_tokens=1.0, kv_weight=100.0, kv_limit=0.9999),
        WeightedSum(prefill_weight=1000.0, decode_weight=1000.0, qps_weight=1000.0, prefill_rate=1.0),
    ]
)


@settings(deadline=None)
@given(load=any_fleet, mode=any_mode)
def test_a_score_is_finite_for_every_slot_and_leaves_the_loads_as_they_are(
    load: Loads, mode: ScoreMode
) -> None:
    before = copy.deepcopy(load)
    score = mode.score(load)
    assert score.shape == load.n.shape
    assert np.isfinite(score).all()
    assert mode.score(load).tolist() == score.tolist()
    for name in IDLE:
        np.testing.assert_array_equal(getattr(load, name), getattr(before, name))


@settings(deadline=None)
@given(slot=any_slot(), mode=st.sampled_from(OWN))
def test_one_more_request_always_makes_it_worse(slot: dict[str, float], mode: ScoreMode) -> None:
    more = {**slot, "n": slot["n"] + 1.0}
    # At 10^15 tokens of queue a request is below what a float can tell.
    slot["queued"], more["queued"] = (min(each["queued"], 1e9) for each in (slot, more))
    assert mode.score(loads(**more))[0] > mode.score(loads(**slot))[0]


@settings(deadline=None)
@given(
    slot=any_slot(),
    part=st.sampled_from(["pending", "kv", "queued", "waiting"]),
    more=st.floats(0, 1e6),
    mode=st.sampled_from(OWN),
)
def test_more_work_never_makes_it_better(
    slot: dict[str, float], part: str, more: float, mode: ScoreMode
) -> None:
    before = mode.score(loads(**slot))[0]
    after = mode.score(loads(**{**slot, part: slot[part] + more}))[0]
    assert after >= before or after == pytest.approx(before)


@settings(deadline=None)
@given(capacity=st.none() | st.floats(1, 1e9), mode=any_mode)
def test_a_dispatch_always_costs(capacity: float | None, mode: ScoreMode) -> None:
    prices = mode.prices(capacity).bounded()
    assert prices.request >= UNITS / 2
    assert prices.prompt_token >= 0
    assert prices.kv_token >= 0


def test_requests_are_the_sum_and_never_negative() -> None:
    assert requests(np.array([3.0, 3.0, 1.0]), np.array([-1.25, 2.0, -5.0])).tolist() == [1.75, 5.0, 0.0]


def test_the_barrier_is_zero_for_an_empty_and_below_an_empty_cache() -> None:
    assert barrier(np.array([-0.5, 0.0]), 0.98).tolist() == [0.0, 0.0]


def test_loads_are_arrays_only() -> None:
    assert all(isinstance(getattr(loads(), each.name), np.ndarray) for each in fields(Loads))


def test_a_part_that_all_known_ones_tell_is_filled_up_with_their_median() -> None:
    values, known = np.array([1.0, 4.0, 2.0, math.nan]), np.array([True, True, True, False])
    told = told_by_all(values, known)
    assert told is not None
    assert told.tolist() == [1.0, 4.0, 2.0, 2.0]


@pytest.mark.parametrize("known", [[True, True], [False, False]])
def test_a_part_that_one_does_not_tell_or_that_nobody_does_is_none(known: list[bool]) -> None:
    assert told_by_all(np.array([1.0, math.nan]), np.array(known)) is None
