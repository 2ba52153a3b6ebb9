"""What others have in the engines' queues."""

from __future__ import annotations

import math

import numpy as np
import pytest

from monitor.estimate.queues import Queues
from monitor.scores.base import FloatArray, Loads
from monitor.scores.token_aware import TokenAware
from tests.unit.monitor.rig import Rig, config

NS = 1_000_000_000
ALL, BOTH = slice(0, 2), np.array([True, True])


def at(second: float, cold: bool = True) -> tuple[int, float, float, bool]:
    return (round(1000 + second) * NS, 1.0, 5.0, cold)


def test_the_own_part_of_a_queue_is_no_part_of_it() -> None:
    queues = Queues(2)
    queues.sampled(0, 1000.0, 5.0, 300.0, 150.0, at(0))
    queues.sampled(1, 200.0, 1.0, 300.0, 150.0, at(0))
    queued, waiting = queues.now(ALL, BOTH, 0)
    assert queued.tolist() == [700.0, 0.0]
    assert waiting.tolist() == [3.0, 0.0]


def test_a_queue_is_low_passed_over_ten_seconds() -> None:
    queues = Queues(2)
    queues.sampled(0, 0.0, 0.0, 0.0, 150.0, at(0))
    queues.sampled(0, 1000.0, 10.0, 0.0, 150.0, at(1))
    queued, waiting = queues.now(ALL, BOTH, 0)
    assert queued[0] == pytest.approx(1000 * -math.expm1(-0.1))
    assert waiting[0] == pytest.approx(10 * -math.expm1(-0.1))


def test_what_the_last_poll_lacked_is_unknown_and_so_is_a_slot_that_is_not_believed() -> None:
    queues = Queues(2)
    queues.sampled(0, 1000.0, 10.0, 0.0, 150.0, at(0))
    queues.sampled(1, 1000.0, None, 0.0, 150.0, at(0))
    queued, waiting = queues.now(ALL, np.array([False, True]), 0)
    np.testing.assert_array_equal(queued, [math.nan, 1000.0])
    np.testing.assert_array_equal(waiting, [math.nan, math.nan])
    queues.sampled(1, None, 4.0, 0.0, 150.0, at(1))
    queued, waiting = queues.now(ALL, BOTH, 0)
    np.testing.assert_array_equal(queued, [1000.0, math.nan])
    np.testing.assert_array_equal(waiting, [10.0, 4.0])


def test_a_newcomer_starts_at_the_median_of_the_fleet() -> None:
    queues = Queues(2)
    queues.sampled(0, 1000.0, 10.0, 0.0, 150.0, at(0))
    queues.now(ALL, BOTH, 0)
    queues.clear(1)
    queues.begin(1, ALL)
    queues.sampled(1, 0.0, 0.0, 0.0, 150.0, at(1, cold=False))
    queued, _ = queues.now(ALL, BOTH, 0)
    assert queued[1] == pytest.approx(1000 * math.exp(-0.1))


def test_after_a_jump_of_the_own_counts_the_next_poll_is_taken_as_it_is() -> None:
    queues = Queues(2)
    queues.sampled(0, 1000.0, 10.0, 0.0, 150.0, at(0))
    queues.reseed([0])
    queues.sampled(0, 100.0, 1.0, 0.0, 150.0, at(1))
    assert queues.now(ALL, BOTH, 0)[0][0] == 100.0


# -- in the loads of a tick


class _Seen(TokenAware):
    def score(self, loads: Loads) -> FloatArray:
        _Seen.loads = loads
        return super().score(loads)

    loads: Loads


def loads_of(rig: Rig) -> Loads:
    rig.fleet.pools.at(0).mode = _Seen()
    rig.tick(0.0)
    return _Seen.loads


POLL = {
    "running": 4.0,
    "waiting": 3.0,
    "kv_usage": 0.25,
    "queued_tokens": 1000.0,
    "throughput": 90.0,
    "counters": {"finished": {b"": 5.0}},
}


def test_loads_hold_what_was_polled_less_the_own_queue() -> None:
    rig = Rig(config("a", "b"))
    rig.table.dispatch(rig.slot("a"), 2, prompt_tokens=220)
    rig.tick()
    rig.sample("a", **POLL)
    rig.tick(1.0)
    rig.sample("a", **POLL | {"counters": {"finished": {b"": 8.0}}})
    loads, a, b = loads_of(rig), rig.slot("a"), rig.slot("b")
    assert loads.known.tolist() == [True, False]
    assert (loads.queued[a], loads.waiting[a]) == (560.0, 1.0)
    assert (loads.running[a], loads.throughput[a], loads.usage[a]) == (4.0, 90.0, 0.25)
    assert loads.qps_1m[a] == pytest.approx(3.0)
    assert loads.prompt.tolist() == [220.0, 220.0]
    for name in ("queued", "waiting", "running", "throughput", "qps_1m", "usage"):
        assert math.isnan(getattr(loads, name)[b]), name


def test_loads_hold_nothing_of_a_stale_sample() -> None:
    rig = Rig(config("a"))
    rig.sample("a", **POLL)
    rig.tick(6.0)
    loads = loads_of(rig)
    assert loads.known.tolist() == [False]
    for name in ("queued", "waiting", "running", "throughput", "qps_1m", "usage"):
        assert math.isnan(getattr(loads, name)[0]), name


def test_held_requests_are_no_part_of_the_own_queue() -> None:
    rig = Rig(config("a"))
    slot = rig.slot("a")
    rig.table.dispatch(slot, 4, prompt_tokens=250)
    rig.table.lanes["held"][slot] = 3
    rig.tick()
    rig.sample("a", running=0.0, waiting=3.0, queued_tokens=1000.0)
    assert loads_of(rig).queued[slot] == 750.0
