"""Pools: what is scored together, and that pools say nothing about each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from monitor import loads as loads_module
from monitor.config import MonitorConfig
from monitor.pools import joined
from score_table.layout import UNITS, Mark
from score_table.pick.rules import band_of
from tests.unit.monitor import loads
from tests.unit.monitor.rig import Rig, config, with_each

PREFILL, DECODE = {"role": "prefill"}, {"role": "decode"}
#: Two prefill machines, two decode machines, and one without a role.
IDS = ("p0", "p1", "d0", "d1", "x")
TAGS = [PREFILL, PREFILL, DECODE, DECODE, {}]


def pooled(*pools: dict[str, Any], **options: Any) -> MonitorConfig:
    """The five instances with these pools, counting requests unless told otherwise."""
    options.setdefault("score", "inflight_kv")
    options.setdefault("inflight_kv", {"lambda": 0.0})
    return with_each(config(*IDS, pools=list(pools), **options), tags=TAGS)


def both(**options: Any) -> MonitorConfig:
    return pooled({"tags": PREFILL}, {"tags": DECODE}, **options)


def mark(rig: Rig, name: str) -> int:
    return band_of(int(rig.table.base[rig.slot(name)]))


def fresh(rig: Rig) -> None:
    """A tick that writes every detail record."""
    rig.fleet.changed.update(rig.fleet.books)
    rig.tick()


def drive(rig: Rig) -> None:
    for step in range(20):
        for number, name in enumerate(IDS[:4]):
            rig.sample(name, load=number + step, throughput=90.0 * (number + 1), kv_usage=0.1 * number)
        rig.table.dispatch(step % 5, 1, prompt_tokens=100 * step)
        rig.tick(0.7)


@pytest.mark.parametrize("score", ["token_aware", "expected_wait"])
def test_a_pool_that_has_all_instances_is_as_good_as_none(score: str) -> None:
    def tables(*pools: dict[str, Any]) -> tuple[Any, ...]:
        configured = config(*IDS, score=score, pools=list(pools))
        rig = Rig(with_each(configured, tags=[{"model": "m", "rack": str(at)} for at in range(5)]))
        drive(rig)
        details = {slot: detail._replace(pool="") for slot, detail in rig.table.details.items()}
        return rig.table.base.tolist(), rig.table.rest.tolist(), details

    assert tables({"tags": {"model": "m"}}) == tables()


def test_the_parts_of_all_pools_land_in_their_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    # The host's share of all requests is that of each pool; it is not what this is about.
    monkeypatch.setattr(loads_module, "share_of_own", lambda own, slow: 1.0)
    rig = Rig(both())
    drive(rig)
    plain = Rig(pooled())
    drive(plain)
    for name in IDS[:4]:
        assert rig.detail(name).own == plain.detail(name).own
        assert rig.live(name) == plain.live(name), "by requests, known ones are alone anyway"


def test_an_unknown_instance_is_estimated_by_its_own_pool() -> None:
    rig = Rig(both())
    rig.sample("p0", load=40)
    rig.sample("d0", load=4)
    rig.tick()
    assert [rig.live(name) for name in IDS] == [40.0, 40.0, 4.0, 4.0, 0.0]


def test_a_newcomer_starts_at_the_median_of_its_pool() -> None:
    fewer = with_each(config("p0", "d0", pools=[{"tags": PREFILL}], **COUNTS), tags=[PREFILL, DECODE])
    rig = Rig(fewer)
    rig.sample("p0", load=40)
    rig.sample("d0", load=4)
    rig.tick()
    rig.apply(
        with_each(
            config("p0", "d0", "p1", "d1", pools=[{"tags": PREFILL}], **COUNTS),
            tags=[PREFILL, DECODE, PREFILL, DECODE],
        )
    )
    for name, start in (("p1", 40.0), ("d1", 4.0)):
        # Its first answer comes before the next tick; a poll later a tenth of the way is gone.
        rig.sample(name, load=0)
        rig.tick(0.0)
        assert rig.live(name) == pytest.approx(0.905 * start, rel=0.01)


COUNTS: dict[str, Any] = {"score": "inflight_kv", "inflight_kv": {"lambda": 0.0}}


def test_speed_is_relative_to_the_pool() -> None:
    rig = Rig(both())
    for second in range(60):
        rig.tick(1.0)
        for name, rate in (("p0", 100.0), ("p1", 100.0), ("d0", 1000.0), ("d1", 500.0)):
            rig.sample(name, load=10 + second % 2, throughput=rate)
    fresh(rig)
    assert [rig.detail(name).speed for name in ("p0", "p1", "x")] == [1.0, 1.0, 1.0]
    # Means per token of 10 and 20 ms: 15 ms.
    assert rig.detail("d0").speed == pytest.approx(2 / 3, abs=0.1)
    assert rig.detail("d1").speed == pytest.approx(4 / 3, abs=0.1)


def test_lengths_of_prompts_and_answers_are_those_of_the_pool() -> None:
    rig = Rig(both())
    for second in range(300):
        rig.tick(1.0)
        for name, length in (("p0", 8000.0), ("d0", 50.0)):
            rates = {"finished": 2.0, "prompt_tokens": 2.0 * length, "generated_tokens": 200.0}
            counters = {kind: {b"": rate * second} for kind, rate in rates.items()}
            rig.sample(name, load=1, counters=counters)
    means = {name: rig.fleet.pools.at(rig.slot(name)).means.prompt_tokens for name in IDS}
    assert means["p1"] == pytest.approx(8000.0, rel=0.05)
    assert means["d1"] == pytest.approx(50.0, rel=0.05)
    assert means["x"] == 220.0


def test_kv_of_an_instance_that_tells_none_is_that_of_its_pool() -> None:
    rig = Rig(both())
    rig.sample("p0", load=0, kv_usage=0.8, kv_capacity=10_000.0)
    rig.sample("d0", load=0, kv_usage=0.2, kv_capacity=90_000.0)
    rig.table.dispatch(rig.slot("p1"), 1, prompt_tokens=1000)
    fresh(rig)
    assert rig.detail("p1").kv_demand == pytest.approx(1000 / 10_000 + 0.8)
    assert rig.detail("d1").kv_demand == pytest.approx(0.2)
    assert rig.detail("x").kv_demand == 0.0


def test_each_pool_has_its_own_score_and_prices() -> None:
    rig = Rig(pooled({"tags": PREFILL, "score": "token_aware", "token_aware": {"kv_weight": 0.0}}))
    for name in IDS:
        rig.sample(name, load=3, slots=1.0)
    rig.tick()
    assert rig.live("p0") == 3 + 1 + 5 * 3
    assert rig.live("d0") == rig.live("x") == 3.0
    prices = [rig.table.identities[slot].prices for slot in range(5)]
    assert [price.prompt_token for price in prices] == [pytest.approx(3 * UNITS / 1000)] * 2 + [0.0] * 3


def test_what_a_pool_leaves_out_is_as_the_common_options_say() -> None:
    own = {"tags": PREFILL, "token_aware": {"slots_weight": 7.0}}
    rig = Rig(pooled(own, score="token_aware", token_aware={"kv_weight": 0.0, "slots_weight": 2.0}))
    for name in IDS:
        rig.sample(name, load=3, slots=1.0, kv_usage=0.9)
    rig.tick()
    assert rig.live("p0") == 4 + 7 * 3
    assert rig.live("d0") == 4 + 2 * 3


def test_unknown_is_a_choice_of_each_pool() -> None:
    rig = Rig(pooled({"tags": PREFILL, "unknown": "avoid"}))
    assert [mark(rig, name) for name in IDS] == [Mark.AVOIDED, Mark.AVOIDED, 0, 0, 0]


def test_overload_is_a_matter_of_each_pool() -> None:
    rig = Rig(pooled({"tags": PREFILL, "overload_waiting": 2}, {"tags": DECODE, "overload_waiting": 50}))
    for name in IDS:
        rig.sample(name, load=9, slots=4.0)
    rig.tick()
    assert [mark(rig, name) for name in IDS] == [0, 0, 0, 0, 0], "nobody of its pool is below"
    rig.apply(pooled({"tags": {"role": "prefill"}, "overload_waiting": 2}))
    rig.table.dispatch(rig.slot("p0"), 9)
    rig.sample("p1", load=0, slots=4.0)
    for _ in range(60):
        rig.tick(1.0)
        for name in IDS:
            full = name != "p1"
            rig.sample(
                name,
                running=4.0 if full else 0.0,
                waiting=14.0 if full else 0.0,
                slots=4.0,
                kv_usage=rig.now_ns % 7 / 7,
            )
    rig.tick()
    assert [mark(rig, name) for name in IDS] == [Mark.AVOIDED, 0, 0, 0, 0]
    assert rig.detail("p0").reason == "waiting 14 >= 2"


def test_the_first_pool_that_matches_has_an_instance() -> None:
    fast = {"tags": {"role": "prefill", "gpu": "h"}, "unknown": "avoid"}
    tags = [{**PREFILL, "gpu": "h"}, PREFILL, {"gpu": "h"}, DECODE, {}]
    rig = Rig(with_each(pooled(fast, {"tags": PREFILL}), tags=tags))
    assert [mark(rig, name) for name in IDS] == [Mark.AVOIDED, 0, 0, 0, 0]
    pools = [rig.fleet.pools.at(rig.slot(name)) for name in IDS]
    assert [sorted(pool.tags) for pool in pools] == [
        [("gpu", "h"), ("role", "prefill")],
        [("role", "prefill")],
        [],
        [],
        [],
    ]


def test_an_instance_whose_tags_change_moves_to_its_new_pool_with_what_is_known_of_it() -> None:
    rig = Rig(both())
    for name, load in (("p0", 40), ("d0", 4), ("d1", 4)):
        rig.sample(name, load=load)
    rig.tick()
    changes = rig.apply(with_each(both(), tags=[PREFILL, DECODE, DECODE, PREFILL, {}]))
    assert (changes.started, changes.stopped) == ([], [])
    rig.tick()
    assert rig.live("d1") == 4.0
    assert rig.live("p1") == 4.0, "unknown, and a decode machine from now on"
    assert rig.table.identities[rig.slot("p1")].tags == DECODE


def test_pools_follow_a_reload_and_keep_what_they_know() -> None:
    rig = Rig(pooled())
    for name, load in (("p0", 40), ("d0", 4)):
        rig.sample(name, load=load)
    rig.tick()
    assert rig.live("x") == 22.0
    rig.apply(both())
    rig.tick()
    assert [rig.live(name) for name in IDS] == [40.0, 40.0, 4.0, 4.0, 0.0]
    prefill = rig.fleet.pools.at(rig.slot("p0")).means
    rig.apply(pooled({"tags": DECODE, "unknown": "avoid"}, {"tags": PREFILL}))
    assert rig.fleet.pools.at(rig.slot("p0")).means is prefill
    rig.tick()
    assert [mark(rig, name) for name in IDS] == [0, 0, 0, Mark.AVOIDED, 0]
    rig.apply(pooled({"tags": PREFILL, "token_aware": {"prompt_tokens": 9000}}))
    assert rig.fleet.pools.at(rig.slot("p0")).means.prompt_tokens == 9000.0
    rig.apply(pooled())
    rig.tick()
    assert rig.live("x") == 22.0


def test_removed_instances_leave_their_pool() -> None:
    rig = Rig(both())
    rig.sample("p0", load=40)
    rig.tick()
    left = with_each(config("p1", pools=[{"tags": PREFILL}], **COUNTS), tags=[PREFILL])
    rig.apply(left)
    rig.tick()
    assert rig.live("p1") == 0.0, "nobody is left to take it from"
    assert band_of(int(rig.table.base[0])) == Mark.UNUSED


def test_an_unused_slot_is_in_no_pool_of_tags_however_pools_come_and_go() -> None:
    rig = Rig(both())
    rig.apply(with_each(config("p0", "d0", pools=[{"tags": DECODE}], **COUNTS), tags=[PREFILL, DECODE]))
    rig.tick()
    assert [pool.at.tolist() for pool in rig.fleet.pools.present(5)] == [[2], [0, 1, 3, 4]]  # type: ignore[union-attr]
    rig.apply(with_each(config("p0", "d0", **COUNTS), tags=[PREFILL, DECODE]))
    rig.tick()
    assert [pool.at for pool in rig.fleet.pools.present(5)] == [slice(0, 5)]


def test_a_table_without_instances_has_a_heartbeat_with_pools_as_well() -> None:
    rig = Rig(config(pools=[{"tags": PREFILL}]))
    rig.tick()
    assert rig.table.heartbeat == rig.now_ns


def test_joined_loads_are_in_the_order_of_the_slots_and_of_the_types_of_their_parts() -> None:
    rig = Rig(with_each(both(), tags=[PREFILL, DECODE, PREFILL, DECODE, {}]))
    parts = [
        (pool, loads.fleet(*({"own": float(slot), "known": slot % 2 == 0} for slot in np.arange(5)[pool.at])))
        for pool in rig.fleet.pools.present(5)
    ]
    assert len(parts) == 3
    whole = joined(parts, 5)
    assert whole.own.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert whole.known.tolist() == [True, False, True, False, True]


def test_the_record_says_by_which_mode_in_which_pool_and_of_what_share_it_is_scored() -> None:
    configured = pooled(
        {"tags": PREFILL, "score": "expected_wait"}, {"tags": DECODE, "score": "weighted_sum"}
    )
    rig = Rig(with_each(configured, weight=[4.0, 1.0, 1.0, 1.0, 1.0]))
    fresh(rig)
    said = {name: (rig.detail(name).mode, rig.detail(name).pool, rig.detail(name).share) for name in IDS}
    assert said == {
        "p0": ("expected_wait", "role=prefill", 1.0),
        "p1": ("expected_wait", "role=prefill", 0.25),
        "d0": ("weighted_sum", "role=decode", 1.0),
        "d1": ("weighted_sum", "role=decode", 1.0),
        "x": ("inflight_kv", "", 1.0),
    }


def told(rig: Rig, name: str) -> tuple[float | None, ...]:
    detail = rig.detail(name)
    return detail.others_queued, detail.others_waiting, detail.scored_qps


def test_the_record_has_the_parts_that_only_some_modes_take_in() -> None:
    """And with them the parts add up to the score, as the modes write them down."""
    rig = Rig(
        pooled(
            {"tags": PREFILL, "score": "expected_wait"},
            {"tags": DECODE, "score": "weighted_sum", "weighted_sum": {"qps_weight": 2.0}},
        )
    )
    for name in IDS:
        rig.sample(name, running=3.0, waiting=2.0, kv_usage=0.0, queued_tokens=900.0)
    fresh(rig)
    assert told(rig, "x") == (None, None, None)
    assert told(rig, "p0") == (pytest.approx(900.0), None, None)
    prefill = rig.detail("p0")
    parts = (200.0 * (prefill.requests + 1.0) + (prefill.others_queued or 0.0)) / 200.0
    barrier = 0.15 * 2000.0 / 200.0 * prefill.kv_demand / (1.0 - prefill.kv_demand)
    assert prefill.score == pytest.approx(prefill.speed * parts + barrier)
    assert told(rig, "d0")[:2] == (pytest.approx(900.0), pytest.approx(2.0))
    decode = rig.detail("d0")
    waiting, queued = decode.others_waiting or 0.0, decode.others_queued or 0.0
    assert decode.score == pytest.approx(
        decode.requests
        + waiting
        + 0.5 * (decode.requests - waiting)
        + 0.25 * waiting
        + queued / 7500.0
        + 2.0 * (decode.scored_qps or 0.0)
    )


def test_a_part_that_not_all_tell_is_no_part_of_anyone_s_record() -> None:
    rig = Rig(pooled({"tags": PREFILL, "score": "weighted_sum"}))
    rig.sample("p0", running=3.0, waiting=2.0, queued_tokens=900.0)
    rig.sample("p1", running=3.0, waiting=1.0)
    fresh(rig)
    assert (told(rig, "p0"), told(rig, "p1")) == ((None, 2.0, None), (None, 1.0, None))
