"""Weights: a share of the traffic in proportion, and nothing at all where they are equal."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest

from score_table.identity import Prices
from score_table.layout import DISPATCH_LIMIT, PRICE_LIMIT, TIE_WINDOW, UNITS
from tests.unit.monitor.fake_table import FakeTable
from tests.unit.monitor.rig import Rig, config, with_each, with_instance


def shares(weights: list[float], at_once: int, **options: Any) -> list[float]:
    """How steady traffic splits over idle equal engines: ``at_once`` requests at a time, each new one as the
    oldest ends, picked as picks are: the first from a cursor on within the tie window of the least."""
    names = [f"i{number}" for number in range(len(weights))]
    rig = Rig(with_each(config(*names, **options), weight=weights))
    for name in names:
        rig.sample(name, load=0, kv_usage=0.0, kv_capacity=1e6)
    rig.tick()
    running: deque[int] = deque()
    taken, cursor = [0] * len(names), 0
    for request in range(3000):
        if len(running) == at_once:
            rig.table.end(running.popleft(), 1, prompt_tokens=100)
        live = [rig.table.live(slot) for slot in range(len(names))]
        near = [slot for slot, value in enumerate(live) if value <= min(live) + TIE_WINDOW / UNITS]
        slot = min(near, key=lambda slot: (slot - cursor) % len(names))
        cursor = slot + 1
        rig.table.dispatch(slot, 1, prompt_tokens=100)
        rig.table.lanes["prompt_tokens"][slot] -= 100  # its first token is there before the next one comes
        running.append(slot)
        taken[slot] += 1
        if request % 7 == 0:
            rig.tick()
    return [count / sum(taken) for count in taken]


@pytest.mark.parametrize("score", ["token_aware", "inflight_kv"])
@pytest.mark.parametrize("weights", [[1.0, 1.0, 2.0], [1.0, 4.0], [30.0, 10.0, 20.0]])
def test_steady_traffic_splits_about_in_proportion(score: str, weights: list[float]) -> None:
    """n, or n + 1, is in proportion up to one request: with 40 at a time that is 1/40 of the traffic, and half of
    that again for the tie window and for what is placed between two ticks."""
    for share, weight in zip(shares(weights, 40, score=score), weights, strict=True):
        assert share == pytest.approx(weight / sum(weights), abs=0.04)


def test_in_light_traffic_the_heaviest_come_first() -> None:
    assert shares([1.0, 3.0], 1) == [0.0, 1.0]


def test_idle_instances_rotate_in_a_mode_in_which_they_cost_nothing() -> None:
    assert shares([1.0, 3.0], 1, score="inflight_kv") == pytest.approx([0.5, 0.5], abs=0.01)


def busy(weights: list[float], score: str) -> FakeTable:
    """A table after some polls, dispatches, a failure and a removal."""
    configured = with_each(config("a", "b", "c", score=score), weight=weights)
    rig = Rig(configured)
    for step in range(30):
        rig.table.dispatch(step % 3, 2, prompt_tokens=700)
        rig.sample("a", load=step, throughput=50.0 * step, kv_usage=0.3, kv_capacity=30_000.0, slots=9.0)
        rig.sample("b", load=9, throughput=300.0)
        if step == 20:
            rig.fail("c")
        rig.tick(0.7)
    return rig.table


@pytest.mark.parametrize("score", ["token_aware", "inflight_kv"])
@pytest.mark.parametrize("weight", [0.01, 0.3, 7.0, 100.0])
def test_equal_weights_change_nothing_at_all(weight: float, score: str) -> None:
    usual, weighted = busy([1.0] * 3, score), busy([weight] * 3, score)
    assert weighted.base.tolist() == usual.base.tolist()
    assert weighted.rest.tolist() == usual.rest.tolist()
    assert weighted.identities == usual.identities
    assert weighted.details == usual.details


def test_score_rest_and_prices_are_divided_by_the_share() -> None:
    plain = Rig(config("a", "b"))
    weighted = Rig(with_each(config("a", "b"), weight=[0.5, 2.0]))
    for rig in (plain, weighted):
        rig.table.dispatch(0, 2, prompt_tokens=1000)
        rig.tick()
        for name in ("a", "b"):
            rig.sample(name, load=6)
        rig.tick()
    assert weighted.detail("a").score == pytest.approx(4 * plain.detail("a").score)
    assert weighted.live("a") == pytest.approx(4 * plain.live("a"), abs=2 / UNITS)
    assert weighted.table.rest[0] == 4 * plain.table.rest[0]
    assert weighted.live("b") == plain.live("b")
    price, usual = (rig.table.identities[0].prices for rig in (weighted, plain))
    assert price == Prices(4 * usual.request, 4 * usual.prompt_token, 4 * usual.kv_token).bounded()
    # A dispatch moves it by its price, and the next tick makes it exact.
    before = weighted.live("a")
    weighted.table.dispatch(0, 1)
    assert weighted.live("a") - before == pytest.approx(4.0, abs=2 / UNITS)


def test_a_new_weight_shows_at_the_next_tick_in_score_and_prices() -> None:
    base = config("a", "b")
    rig = Rig(base)
    rig.table.dispatch(0, 3)
    rig.tick()
    before, prices = rig.live("a"), rig.table.identities[0].prices
    changes = rig.apply(with_each(base, weight=[1.0, 2.0]))
    assert (changes.started, changes.stopped) == ([], [])
    rig.tick()
    assert rig.live("a") == pytest.approx(2 * before, abs=2 / UNITS)
    assert rig.table.identities[0].prices.request == 2 * prices.request
    rig.fleet.changed.add(0)
    rig.tick()
    assert rig.live("a") == pytest.approx(rig.detail("a").score, abs=2 / UNITS)
    rig.apply(base)
    rig.tick()
    assert rig.live("a") == before
    assert rig.table.identities[0].prices == prices


def test_the_lightest_against_the_heaviest_stays_within_the_bounds_of_a_price() -> None:
    rig = Rig(with_each(config("a", "b"), weight=[0.01, 100.0]))
    prices = rig.table.identities[0].prices
    assert prices.request <= DISPATCH_LIMIT
    assert max(prices.prompt_token, prices.kv_token) <= PRICE_LIMIT
    rig.table.dispatch(0, 3)
    rig.tick()
    assert abs(int(rig.table.base[0])) < 2**29
    assert rig.live("a") > 1000 * rig.live("b")


def test_a_restarted_monitor_goes_on_from_a_weighted_rest() -> None:
    configured = with_instance(config("a", "b"), 1, weight=4.0)
    first = Rig(configured)
    for name in ("a", "b"):
        first.sample(name, load=12)
    first.tick()
    second = Rig(configured, first.table, start_s=first.table.heartbeat / 1e9)
    assert second.detail("a").others == second.detail("b").others == 12.0
    assert second.table.rest.tolist()[:2] == [48 * UNITS, 12 * UNITS]


def test_a_restart_with_other_weights_reads_rest_as_it_was_written() -> None:
    base = config("a", "b")
    first = Rig(with_each(base, weight=[1.0, 10.0]))
    for name in ("a", "b"):
        first.sample(name, load=12)
    first.tick()
    second = Rig(with_each(base, weight=[10.0, 1.0]), first.table, start_s=first.table.heartbeat / 1e9)
    assert [second.detail(name).others for name in "ab"] == [pytest.approx(12.0, abs=0.01)] * 2


def test_shares_are_relative_to_the_heaviest_instance_of_the_same_pool() -> None:
    pools = [{"tags": {"role": "decode"}}]
    base = config("a", "b", "c", pools=pools)
    tags = [{}, {"role": "decode"}, {"role": "decode"}]
    rig = Rig(with_each(base, tags=tags, weight=[1.0, 2.0, 4.0]))
    assert [rig.live(name) for name in "abc"] == [1.0, 2.0, 1.0]
    # The heaviest leaves: the other one is all that its pool has.
    rig.apply(with_each(config("a", "b", pools=pools), tags=tags[:2], weight=[1.0, 2.0]))
    rig.tick()
    assert [rig.live(name) for name in "ab"] == [1.0, 1.0]
