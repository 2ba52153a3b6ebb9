"""Who gets which slot, and that no incarnation inherits anything of another."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from monitor.config import MonitorConfig
from monitor.membership import GRACE_NS
from monitor.reclaim import reclaim
from monitor.sample import Reading
from score_table.layout import UNITS, Mark
from score_table.pick.rules import band_of
from score_table.writer import Reclaimed
from tests.unit.monitor.fake_table import FakeTable
from tests.unit.monitor.rig import Rig, config, with_instance

GRACE_S = GRACE_NS / 1e9


def test_instances_get_slots_in_the_order_of_the_configuration() -> None:
    rig = Rig(config("a", "b", "c"))
    assert [rig.slot(name) for name in "abc"] == [0, 1, 2]
    identity = rig.table.identities[1]
    assert (identity.id, identity.url, identity.generation) == ("b", "http://b.test:8000", 1)


def test_prices_are_those_of_the_mode_and_of_the_instance() -> None:
    base = config("a", "b")
    rig = Rig(with_instance(base, 1, kv_capacity=50_000))
    assert rig.table.identities[0].prices.kv_token == pytest.approx(20 / 400_000 * UNITS)
    assert rig.table.identities[1].prices.kv_token == pytest.approx(20 / 50_000 * UNITS)


def test_prices_of_a_tiny_capacity_are_bounded_and_the_ticks_go_by_the_bounded_ones() -> None:
    rig = Rig(with_instance(config("a"), 0, kv_capacity=1))
    rig.table.dispatch(0, 1, prompt_tokens=2**18)
    rig.tick()
    assert abs(int(rig.table.base[0])) < 2**29
    rig.fleet.changed.add(0)
    rig.tick()
    assert rig.live("a") == pytest.approx(rig.detail("a").score, abs=2 / UNITS)


def test_a_removed_instance_is_marked_unused_at_once() -> None:
    rig = Rig(config("a", "b"))
    changes = rig.apply(config("b"))
    assert changes.stopped == [rig.keys["a"]]
    assert band_of(int(rig.table.base[0])) == Mark.UNUSED
    rig.tick()
    assert band_of(int(rig.table.base[0])) == band_of(int(rig.table.rest[0])) == Mark.UNUSED


def test_an_added_instance_is_polled_and_takes_a_fresh_slot() -> None:
    rig = Rig(config("a"))
    changes = rig.apply(config("a", "b"))
    assert [instance.id for _, instance in changes.started] == ["b"]
    assert (rig.slot("b"), changes.stopped) == (1, [])


def test_a_slot_is_reused_only_after_the_grace_time() -> None:
    rig = Rig(config("a", "b"))
    rig.apply(config("b"))
    rig.after(GRACE_S - 0.1)
    rig.apply(config("b", "c"))
    assert rig.slot("c") == 2
    rig.after(0.2)
    rig.apply(config("b", "c", "d"))
    assert rig.slot("d") == 0


def test_a_slot_is_reused_only_when_no_lane_counts_there_any_more() -> None:
    rig = Rig(config("a", "b"))
    rig.table.dispatch(0, 1)
    rig.apply(config("b"))
    rig.after(60.0)
    rig.apply(config("b", "c"))
    assert rig.slot("c") == 2
    rig.table.end(0, 1)
    rig.apply(config("b", "c", "d"))
    assert rig.slot("d") == 0


def test_a_reused_slot_has_a_higher_generation() -> None:
    rig = Rig(config("a", "b"))
    rig.apply(config("b"))
    rig.after(GRACE_S)
    rig.apply(config("b", "a"))
    assert rig.slot("a") == 0
    assert rig.table.identities[0].generation == 2
    rig.tick()
    assert rig.detail("a").generation == 2


def test_the_same_id_at_another_url_is_another_incarnation() -> None:
    base = config("a", "b")
    rig = Rig(base)
    rig.sample("a", load=90)
    rig.sample("b", load=1)
    rig.tick()
    old_key = rig.keys["a"]
    changes = rig.apply(with_instance(base, 0, url="http://elsewhere.test:8000"))
    rig.tick()
    assert changes.stopped == [old_key]
    assert rig.slot("a") == 2
    assert band_of(int(rig.table.base[0])) == Mark.UNUSED
    assert rig.live("a") == pytest.approx(2.0, abs=0.1)


def test_an_instance_that_comes_back_gets_its_slot_back_with_what_runs_there() -> None:
    rig = Rig(config("a", "b"))
    rig.table.dispatch(0, 18)
    rig.apply(config("b"))
    rig.tick()
    changes = rig.apply(config("b", "a"))
    rig.tick()
    assert (rig.slot("a"), rig.table.n) == (0, 2)
    assert rig.table.identities[0].generation == 2
    assert [instance.id for _, instance in changes.started] == ["a"]
    assert rig.live("a") == pytest.approx(19.0, abs=0.1), "its own streams, and the request to be sent"
    rig.table.end(0, 18)
    rig.tick()
    assert rig.live("a") == pytest.approx(1.0, abs=0.1)


def test_one_that_stays_or_returns_has_the_prices_of_the_configuration_at_once() -> None:
    base = config("a", "b")
    smaller = with_instance(base, 0, kv_capacity=50_000)
    rig = Rig(base)
    rig.table.dispatch(0, 1, prompt_tokens=1000)
    rig.apply(smaller)
    rig.tick()
    assert rig.table.identities[0].generation == 1
    assert rig.table.identities[0].prices.kv_token == pytest.approx(20 / 50_000 * UNITS)
    assert rig.live("a") == pytest.approx(rig.detail("a").score, abs=2 / UNITS)
    rig.apply(config("b"))
    rig.apply(base)
    rig.tick()
    assert rig.table.identities[0].generation == 2
    assert rig.table.identities[0].prices.kv_token == pytest.approx(20 / 400_000 * UNITS)


def test_what_was_priced_higher_makes_it_look_busier_until_it_ends_and_never_idler() -> None:
    rig = Rig(config("a"))
    rig.table.dispatch(0, 2, prompt_tokens=1000)
    cells = rig.table.naturals().cells[0]
    for weight in (0.5, 30.0):
        rig.apply(config("a", token_aware={"prefill_weight": weight}))
        with rig.table.cells_as(0, cells):
            rig.tick()
            rig.fleet.changed.add(0)
            rig.tick()
            assert (rig.table.base[0] + cells) / UNITS >= rig.detail("a").score - 4 / UNITS


@pytest.mark.parametrize("change", [{"url": "http://elsewhere.test:8000"}, {"id": "c"}])
def test_another_instance_never_gets_a_slot_in_which_something_runs(change: dict[str, Any]) -> None:
    base = config("a", "b")
    rig = Rig(base)
    rig.table.dispatch(0, 18)
    rig.apply(config("b"))
    rig.after(60.0)
    other = with_instance(base, 0, **change)
    rig.apply(other)
    assert rig.slot(other.instances[0].id) == 2


def test_the_same_configuration_changes_nothing() -> None:
    rig = Rig(config("a", "b"))
    changes = rig.apply(config("a", "b"))
    assert (changes.started, changes.stopped) == ([], [])


def test_other_tags_are_written_and_nothing_else_happens() -> None:
    base = config("a")
    rig = Rig(base)
    rig.sample("a", load=5)
    changes = rig.apply(with_instance(base, 0, tags={"model": "m"}))
    rig.tick()
    assert (changes.started, changes.stopped) == ([], [])
    assert rig.table.identities[0].tags == {"model": "m"}
    assert rig.table.identities[0].generation == 1
    assert rig.detail("a").inflight == 5.0


@pytest.mark.parametrize(
    "change",
    [
        {"interval": 0.5},
        {"timeout": 0.5},
        {"metrics_url": "http://a.test:9000"},
        {"bearer_token": "secret"},
        {"engine": "sglang"},
        {"kv_capacity": 5000},
        {"slots": 3},
    ],
)
def test_another_way_to_poll_makes_a_new_poller_and_keeps_what_is_known(change: dict[str, Any]) -> None:
    base = config("a", "b")
    rig = Rig(base)
    rig.sample("a", load=5)
    old_key = rig.keys["a"]
    changes = rig.apply(with_instance(base, 0, **change))
    assert changes.stopped == [old_key]
    assert [instance.id for _, instance in changes.started] == ["a"]
    rig.fleet.sampled(old_key, *_nonsense(rig))
    rig.tick()
    assert rig.slot("a") == 0
    assert rig.detail("a").inflight == 5.0
    assert rig.detail("a").generation == 1


def _nonsense(rig: Rig) -> tuple[Any, ...]:
    return Reading(running=1000.0, waiting=0.0), "vllm", rig.now_ns, rig.now_ns


def test_a_configured_capacity_counts_where_the_engine_tells_none() -> None:
    rig = Rig(with_instance(config("a"), 0, kv_capacity=5000, slots=3))
    rig.sample("a", load=1)
    rig.tick()
    assert (rig.detail("a").kv_capacity, rig.detail("a").slots) == (5000.0, 3.0)
    rig.sample("a", load=1, kv_capacity=9000.0, slots=7.0)
    rig.tick()
    assert (rig.detail("a").kv_capacity, rig.detail("a").slots) == (9000.0, 7.0)


@pytest.mark.parametrize(
    "options",
    [{"interval": 0.5}, {"timeout": 0.5}, {"jitter": 0.3}, {"concurrency": 3}, {"max_body_bytes": 70_000}],
)
def test_common_options_of_polling_reach_every_poller(options: dict[str, Any]) -> None:
    rig = Rig(config("a", "b"))
    changes = rig.apply(config("a", "b", **options))
    assert len(changes.stopped) == len(changes.started) == 2


# -- a full table


def full() -> tuple[Rig, list[str]]:
    names = [f"i{number}" for number in range(16)]
    return Rig(config(*names)), names


def test_an_instance_without_a_slot_is_refused_clearly_and_waits(caplog: pytest.LogCaptureFixture) -> None:
    rig, names = full()
    with caplog.at_level(logging.ERROR):
        changes = rig.apply(config(*names, "late"))
        rig.apply(config(*names, "late"))
    assert changes.started == []
    assert list(rig.board.waiting) == ["late"]
    assert len(caplog.records) == 1
    assert "late: not admitted" in caplog.text
    assert "all 16 slots" in caplog.text


def test_a_waiting_instance_is_admitted_as_soon_as_a_slot_is_free() -> None:
    rig, names = full()
    wanted = config(*names[1:], "late")
    rig.apply(config(*names, "late"))
    rig.apply(wanted)
    assert "late" in rig.board.waiting
    rig.after(GRACE_S)
    changes = rig.follow(rig.board.retry(rig.now_ns))
    assert [instance.id for _, instance in changes.started] == ["late"]
    assert rig.board.waiting == {}
    assert rig.slot("late") == 0


# -- adoption


def adopted(table: FakeTable, configured: MonitorConfig, **options: Any) -> Rig:
    """Another monitor takes over what the last one left, at once unless told otherwise."""
    options.setdefault("start_s", table.heartbeat / 1e9)
    return Rig(configured, table, **options)


def test_a_restarted_monitor_keeps_slots_and_generations_and_prices_by_its_own_configuration() -> None:
    first = Rig(config("a", "b"))
    second = adopted(first.table, config("b", "a", score="inflight_kv"))
    assert (second.slot("a"), second.slot("b")) == (0, 1)
    assert second.table.identities[1].prices.prompt_token == 0.0
    assert second.table.identities[1].generation == 1


def test_a_restarted_monitor_goes_on_from_the_rest_of_the_last_one() -> None:
    first = Rig(config("a", "b", "c"))
    for name, load in (("a", 12), ("b", 4), ("c", 30)):
        first.sample(name, load=load)
    first.fail("c")
    first.tick()
    second = adopted(first.table, config("a", "b", "c"))
    # "c" was unreachable, so the typical others were what was used for it.
    assert second.table.rest[:3].tolist() == [12 * UNITS, 4 * UNITS, 8 * UNITS]
    second.sample("a", load=12)
    second.tick()
    assert second.live("a") == pytest.approx(first.live("a"), abs=0.5)


def test_slots_of_instances_that_are_no_longer_configured_are_released() -> None:
    first = Rig(config("a", "b"))
    second = adopted(first.table, config("b", "c"))
    assert band_of(int(second.table.base[0])) == Mark.UNUSED
    assert (second.slot("b"), second.slot("c")) == (1, 2)


def test_an_adopted_slot_whose_url_is_another_one_is_released() -> None:
    base = config("a")
    first = Rig(base)
    second = adopted(first.table, with_instance(base, 0, url="http://elsewhere.test:8000"))
    assert second.slot("a") == 1


def test_after_an_adoption_an_instance_that_comes_back_gets_its_slot_back() -> None:
    first = Rig(config("a", "b"))
    first.table.dispatch(0, 18)
    second = adopted(first.table, config("b"))
    second.apply(config("b", "a"))
    second.tick()
    assert second.slot("a") == 0
    assert second.table.identities[0].generation == 2
    assert second.live("a") == pytest.approx(19.0, abs=0.1)


def test_an_unused_slot_of_an_adopted_table_is_reused_with_a_generation_never_used_before() -> None:
    first = Rig(config("a", "b"))
    first.apply(config("b"))
    first.after(GRACE_S)
    first.apply(config("b", "c"))
    assert first.table.identities[0].generation == 2
    first.apply(config("b"))
    second = adopted(first.table, config("b"))
    second.after(GRACE_S)
    second.apply(config("b", "d"))
    assert second.slot("d") == 0
    assert second.table.identities[0].generation == 3


def test_what_a_monitor_left_long_ago_counts_less_the_longer_nobody_has_kept_it() -> None:
    first = Rig(config("a"))
    first.sample("a", load=12)
    first.tick()
    start_s = first.now_ns / 1e9 + 20.5
    second = adopted(first.table, config("a"), start_s=start_s)
    assert second.table.rest[0] == 3 * UNITS, "halved every 10 s, as picks do meanwhile"


def test_after_an_adoption_a_new_instance_is_a_newcomer_among_the_known_ones() -> None:
    first = Rig(config("a", "b"))
    for name in ("a", "b"):
        first.sample(name, load=10)
    first.tick()
    second = adopted(first.table, config("a", "b", "c"))
    assert second.table.rest[2] == 10 * UNITS


# -- lanes that end


def test_when_a_worker_dies_its_requests_do_not_become_others() -> None:
    rig = Rig(config("a", "b"))
    rig.table.dispatch(0, 6)
    rig.tick()
    rig.sample("a", load=6)
    rig.tick()
    rig.table.dead_lanes = [Reclaimed(0, 4711, np.array([0]), 6)]
    assert reclaim(rig.table, rig.fleet, rig.now_ns, rig.now_ns) == 6
    # The engine noticed that the client is gone.
    rig.sample("a", load=0)
    rig.tick()
    assert rig.others("a") == 0.0
    assert rig.live("a") == 1.0


def test_when_a_worker_dies_its_tokens_are_not_taken_off_the_polled_usage() -> None:
    rig = Rig(config("a"))
    rig.table.dispatch(0, 6, prompt_tokens=2000)
    rig.tick()
    rig.sample("a", load=6, kv_usage=0.5, kv_capacity=40_000.0)
    rig.table.dead_lanes = [Reclaimed(0, 4711, np.array([0]), 6)]
    rig.table.lanes["kv_tokens"][0] = 0
    reclaim(rig.table, rig.fleet, rig.now_ns, rig.now_ns)
    rig.fleet.changed.add(0)
    rig.tick()
    assert rig.detail("a").kv_demand == pytest.approx(0.5), "until a poll has seen them go"


def test_a_dead_worker_is_named(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(config("a"))
    rig.table.dead_lanes = [Reclaimed(3, 4711, np.array([0]), 2)]
    with caplog.at_level(logging.WARNING):
        assert reclaim(rig.table, rig.fleet, rig.now_ns, rig.now_ns) == 2
    assert "lane 3: its worker (pid 4711) is gone, 2 requests" in caplog.text
    assert reclaim(rig.table, rig.fleet, rig.now_ns, rig.now_ns) == 0
