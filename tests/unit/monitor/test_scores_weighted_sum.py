"""``weighted_sum``: the formula against numbers worked out by hand, and which of its parts count."""

from __future__ import annotations

import pytest

from monitor.config import ConfigError, load_config
from monitor.scores.base import Loads
from monitor.scores.weighted_sum import WeightedSum
from score_table.layout import UNITS
from tests.unit.monitor.config_problems import ONE, Write, the_problem, writer
from tests.unit.monitor.loads import fleet, loads

MODE = WeightedSum()


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (loads(), 0.0),
        # Each request 1, and 0.5 more for its decoding.
        (loads(n=4.0), 6.0),
        # One of the four, 220 tokens, waits for its first token: 4 + 1 + 0.5 * 3, and 220/7500 s.
        (loads(n=4.0, pending=220.0), 6.5 + 220 / 7500),
        # Two requests of others are in the queue: 4 + 2 * (1 + 0.25) + 0.5 * 2.
        (loads(n=4.0, waiting=2.0), 7.5),
        # With 1500 tokens of others there: 0.2 s.
        (loads(n=4.0, queued=1500.0), 6.2),
        # One long prompt counts for several requests: 1 + 7500/220 + 1 s.
        (loads(n=1.0, pending=7500.0), 2.0 + 7500 / 220),
        (loads(n=4.0, qps_1m=100.0), 6.0),
    ],
)
def test_it_is_the_documented_formula(load: Loads, expected: float) -> None:
    assert MODE.score(load)[0] == pytest.approx(expected)


def test_the_rate_of_requests_counts_with_its_weight() -> None:
    assert WeightedSum(qps_weight=0.1).score(loads(n=4.0, qps_1m=20.0))[0] == pytest.approx(8.0)


@pytest.mark.parametrize(
    ("part", "told"), [("waiting", 2.0), ("queued", 1500.0), ("qps_1m", 20.0)], ids=lambda value: str(value)
)
def test_a_part_that_one_does_not_tell_counts_for_none(part: str, told: float) -> None:
    mode = WeightedSum(qps_weight=0.1)
    bare = mode.score(fleet({"n": 4.0}, {"n": 5.0})).tolist()
    assert mode.score(fleet({"n": 4.0, part: told}, {"n": 5.0})).tolist() == bare
    assert mode.score(fleet({"n": 4.0, part: told}, {"n": 5.0, part: told})).tolist() != bare


def test_one_that_is_not_heard_of_has_the_median_of_a_part_and_keeps_it_for_the_others() -> None:
    silent = {"n": 4.0, "known": False}
    first, second, third, unknown = MODE.score(
        fleet({"n": 4.0, "waiting": 0.0}, {"n": 4.0, "waiting": 2.0}, {"n": 4.0, "waiting": 4.0}, silent)
    )
    assert first < second < third
    assert unknown == second


def test_a_price_is_what_a_dispatch_adds() -> None:
    prices = MODE.prices(None)
    before = MODE.score(loads(n=9.0, pending=440.0))[0]
    after = MODE.score(loads(n=10.0, pending=440.0 + 300.0))[0]
    assert (prices.request + 300.0 * prices.prompt_token) / UNITS == pytest.approx(after - before)
    assert prices.kv_token == 0.0


def test_a_first_token_never_makes_an_instance_look_worse() -> None:
    waits, answers = MODE.score(fleet({"n": 3.0, "pending": 500.0}, {"n": 3.0, "pending": 0.0}))
    assert answers < waits


@pytest.fixture
def write(tmp_path_factory: pytest.TempPathFactory) -> Write:
    return writer(tmp_path_factory.mktemp("config"))


def test_weights_that_make_waiting_prompts_attractive_are_refused(write: Write) -> None:
    said = the_problem(write(ONE + "[weighted_sum]\nprefill_weight = 0.4\n"))
    assert said.startswith("weighted_sum.decode_weight: 0.5 is above prefill_weight, 0.4: ")


def test_so_they_are_where_a_pool_has_only_one_of_them(write: Write) -> None:
    pool = '[[pools]]\ntags = { role = "decode" }\n[pools.weighted_sum]\n'
    common = "[weighted_sum]\nprefill_weight = 4\ndecode_weight = 3\n"
    said = the_problem(write(ONE + common + pool + "prefill_weight = 2\n"))
    assert said.startswith("pools[0].weighted_sum.decode_weight: 3 is above prefill_weight, 2: ")
    try:
        load_config(write(ONE + common + pool + "decode_weight = 2\n"), {}, {})
    except ConfigError as error:
        pytest.fail(str(error))
