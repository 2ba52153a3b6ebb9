"""``expected_wait``: the formula against numbers worked out by hand, and what it does where signals are missing."""

from __future__ import annotations

import math

import pytest

from monitor.scores.base import Loads
from monitor.scores.expected_wait import ExpectedWait
from score_table.layout import UNITS
from tests.unit.monitor.loads import fleet, loads

MODE = ExpectedWait()


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (loads(), 1.0),
        (loads(n=4.0), 5.0),
        # 1000 prompt tokens are the work of 1000/200 = 5 requests.
        (loads(n=4.0, pending=1000.0), 10.0),
        # So are 1000 tokens of others in the queue.
        (loads(n=4.0, queued=1000.0), 10.0),
        # 2 waiting prompts of 300 tokens each: 600/200 = 3; what is told in tokens goes first.
        (loads(n=4.0, waiting=2.0, prompt=300.0), 8.0),
        (loads(n=4.0, waiting=2.0, prompt=300.0, queued=200.0), 6.0),
        # Half of the KV cache: 0.15 s, in which 0.15 * 2000/200 = 1.5 requests are worked off.
        (loads(kv=0.5), 2.5),
        # Clamped: 1 + 1.5 * 0.999/0.001.
        (loads(kv=3.0), 1499.5),
        # 1.5 times slower: 1.5 * (3 + 1 + 2), the KV part as it is.
        (loads(n=3.0, pending=400.0, kv=0.5, speed=1.5), 10.5),
    ],
)
def test_it_is_the_documented_formula(load: Loads, expected: float) -> None:
    assert MODE.score(load)[0] == pytest.approx(expected)


def test_the_wait_in_seconds_is_the_score_in_requests() -> None:
    load = loads(n=3.0, pending=500.0, queued=1500.0, kv=0.75)
    tokens = 200.0 * 4 + 500 + 1500
    wait_s = tokens / 2000.0 + 0.15 * 3
    assert MODE.score(load)[0] == pytest.approx(wait_s * 2000.0 / 200.0)


def test_a_busy_instance_is_not_rewarded_for_the_tokens_it_generates() -> None:
    busy, idle = MODE.score(fleet({"n": 8.0, "throughput": 4000.0}, {"n": 8.0, "throughput": 100.0}))
    assert busy == idle


def test_one_that_tells_no_tokens_puts_all_on_their_waiting_requests() -> None:
    score = MODE.score(
        fleet({"queued": 4000.0, "waiting": 1.0, "prompt": 400.0}, {"waiting": 2.0, "prompt": 400.0})
    )
    assert score.tolist() == [1.0 + 2.0, 1.0 + 4.0]


def test_one_that_tells_no_queue_at_all_puts_all_on_their_requests() -> None:
    score = MODE.score(fleet({"n": 2.0, "queued": 4000.0, "waiting": 9.0}, {"n": 3.0}))
    assert score.tolist() == [3.0, 4.0]


def test_one_that_is_not_heard_of_has_the_median_queue_and_leaves_the_formula_to_the_others() -> None:
    silent = {"n": 2.0, "known": False}
    score = MODE.score(fleet({"queued": 200.0}, {"queued": 400.0}, {"queued": 1000.0}, silent))
    assert score.tolist() == [2.0, 3.0, 6.0, 5.0]


def test_where_nothing_is_known_the_shortest_queue_is_joined() -> None:
    dark = {"known": False, "kv": 0.0}
    score = MODE.score(fleet({"n": 5.0, **dark}, {"n": 2.0, **dark}, {"n": 3.0, **dark}))
    assert score.tolist() == [6.0, 3.0, 4.0]


def test_a_price_is_what_a_dispatch_adds_at_half_a_cache() -> None:
    capacity, tokens = 100_000.0, 30.0
    prices = ExpectedWait().prices(capacity)
    before = MODE.score(loads(n=6.0, pending=100.0, kv=0.5))[0]
    after = MODE.score(loads(n=7.0, pending=100.0 + tokens, kv=0.5 + tokens / capacity))[0]
    price = prices.request + tokens * (prices.prompt_token + prices.kv_token)
    assert price / UNITS == pytest.approx(after - before, rel=1e-3)


def test_no_queue_is_not_an_unknown_queue() -> None:
    assert MODE.score(fleet({"queued": 0.0}, {"queued": 200.0})).tolist() == [1.0, 2.0]
    assert MODE.score(fleet({"queued": math.nan}, {"queued": 200.0})).tolist() == [1.0, 1.0]
