"""What is marked, not in the table, or under a silent monitor: what rotation and power of two make of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from proxy_adapter import PowerOfTwoStrategy, RoundRobinStrategy
from score_table.lane import Lane
from score_table.layout import State
from score_table.pick.rules import Mark
from score_table.writer import TableWriter
from tests.tables import make_table, publish
from tests.unit.proxy_adapter.instances import Load, Loaded, Plain, plain

pytestmark = pytest.mark.usefixtures("each_core")

SECOND = 10**9


class Fixture:
    """6 instances in a table; the clock stands."""

    def __init__(self, name: str) -> None:
        self.now = 10**12
        self.writer: TableWriter = make_table(name, 6)
        self.publish()
        self.lane = Lane(name, clock=lambda: self.now)
        self.lane.attach()
        self.instances = plain(6)
        self.rotation = RoundRobinStrategy(lane=self.lane, rng=random.Random(1))
        self.two = PowerOfTwoStrategy(lane=self.lane, rng=random.Random(1))

    def publish(self, requests: list[float] | None = None, marks: list[Mark] | None = None) -> None:
        publish(self.writer, requests, marks, requests, now_ns=self.now)


@pytest.fixture
def on(table_name: str) -> Iterator[Fixture]:
    fixture = Fixture(table_name)
    yield fixture
    fixture.lane.close()
    fixture.writer.close()


def counted(
    strategy: RoundRobinStrategy | PowerOfTwoStrategy, instances: Sequence[Plain], count: int
) -> Counter[str]:
    """Instances of that many requests, one after the other."""
    chosen: Counter[str] = Counter()
    for _ in range(count):
        with strategy.dispatch(instances, prompt_tokens=1) as guard:
            chosen[guard.instance.instance_id] += 1
    return chosen


UNREACHABLE, DRAINING, AVOIDED, NONE = Mark.UNREACHABLE, Mark.DRAINING, Mark.AVOIDED, Mark.NONE


def test_rotation_passes_over_marked_ones_and_shares_evenly_among_the_others(on: Fixture) -> None:
    on.publish(marks=[UNREACHABLE, NONE, DRAINING, AVOIDED, NONE, NONE])
    assert counted(on.rotation, on.instances, 30) == {"i1": 10, "i4": 10, "i5": 10}
    on.publish()
    assert set(counted(on.rotation, on.instances, 30).values()) == {5}
    assert on.rotation.status()["degraded_picks"] == {}


def test_rotation_among_marked_ones_takes_the_mildest_in_turn_and_counts_it(on: Fixture) -> None:
    on.publish(marks=[UNREACHABLE, DRAINING, UNREACHABLE, DRAINING, UNREACHABLE, UNREACHABLE])
    assert counted(on.rotation, on.instances, 10) == {"i1": 5, "i3": 5}
    assert on.rotation.status()["degraded_picks"] == {"marked": 10}


def test_rotation_does_not_believe_the_marks_of_a_silent_monitor(on: Fixture) -> None:
    on.publish(marks=[UNREACHABLE] * 5 + [NONE])
    on.now += 2 * SECOND
    assert set(counted(on.rotation, on.instances, 12).values()) == {2}
    on.publish(marks=[UNREACHABLE] * 5 + [NONE])
    assert counted(on.rotation, on.instances, 3) == {"i5": 3}
    on.writer.set_state(State.STOPPED)
    assert set(counted(on.rotation, on.instances, 12).values()) == {2}


def test_rotation_takes_one_without_a_slot_in_turn(on: Fixture) -> None:
    stranger = Plain("stranger", "10.0.0.9", 1)
    on.publish(marks=[UNREACHABLE] + [NONE] * 5)
    assert counted(on.rotation, [*on.instances[:3], stranger], 9) == {"i1": 3, "i2": 3, "stranger": 3}


def test_power_of_two_draws_two_different_ones_and_takes_the_better(on: Fixture) -> None:
    """Of 15 pairs the k-th best wins 5 - k: 3000 draws are 200 for each win, and binomial(3000, p) has a deviation of
    at most 26, so 130 are five of them. The worst never wins, or it would have been drawn against itself."""
    on.publish([10.0 * slot for slot in range(6)])
    chosen = counted(on.two, on.instances, 3000)
    for slot in range(6):
        assert abs(chosen[f"i{slot}"] - 200 * (5 - slot)) <= (130 if slot < 5 else 0), chosen


def test_power_of_two_takes_either_of_a_tie(on: Fixture) -> None:
    """Binomial(1200, 1/6): mean 200, deviation 12.9; five of them."""
    chosen = counted(on.two, on.instances, 1200)
    assert all(abs(chosen[each.instance_id] - 200) <= 65 for each in on.instances), chosen


def test_power_of_two_never_takes_a_marked_one_while_another_lives(on: Fixture) -> None:
    on.publish([0.0] * 5 + [500.0], marks=[UNREACHABLE, DRAINING, AVOIDED, UNREACHABLE, DRAINING, NONE])
    assert counted(on.two, on.instances, 60) == {"i5": 60}
    assert on.two.status()["degraded_picks"] == {}
    on.publish(marks=[UNREACHABLE] * 5 + [DRAINING])
    assert counted(on.two, on.instances, 20) == {"i5": 20}
    assert on.two.status()["degraded_picks"] == {"marked": 20}


def test_power_of_two_under_a_silent_monitor_goes_on_by_what_is_outstanding(on: Fixture) -> None:
    on.publish([0.0] * 5 + [40.0])
    on.now += 2 * SECOND
    guards = [on.two.dispatch(on.instances, prompt_tokens=1) for _ in range(100)]
    chosen = Counter(guard.instance.instance_id for guard in guards)
    assert chosen["i5"] == 0, "the last known load of others keeps it out"
    assert max(chosen.values()) - min(chosen[f"i{slot}"] for slot in range(5)) <= 6, (
        "the better of two keeps 20 requests each within log log n of each other"
    )
    assert on.two.status()["degraded_picks"] == {"outstanding": 100}


def test_power_of_two_compares_one_without_a_slot_by_what_it_has_there(on: Fixture) -> None:
    """4 equal ones of which one has no slot share evenly. Each pair with it, half of all, is counted: binomial(400,
    1/2) has a deviation of 10."""
    on.publish([1.0] * 6)
    instances = [*on.instances[:3], Plain("stranger", "10.0.0.9", 1)]
    guards = [on.two.dispatch(instances, prompt_tokens=0) for _ in range(400)]
    chosen = Counter(guard.instance.instance_id for guard in guards)
    assert all(90 <= count <= 110 for count in chosen.values()), chosen
    assert 150 <= on.two.status()["degraded_picks"]["unmatched"] <= 250


def test_power_of_two_before_the_first_scores_compares_the_two_objects(table_name: str) -> None:
    """As without a table: the best of 4 by its own load wins each pair it is in, the worst none."""
    writer = TableWriter.open(f"{table_name}-init", slots=16, lanes=2)
    lane = Lane(f"{table_name}-init", clock=lambda: 10**12)
    try:
        lane.attach()
        objects = [Loaded(f"i{load}", load=Load(load)) for load in range(4)]
        for strategy, reason in (
            (PowerOfTwoStrategy(lane=lane, rng=random.Random(1)), "round_robin"),
            (PowerOfTwoStrategy(rng=random.Random(1)), "no_table"),
        ):
            chosen = counted(strategy, objects, 200)
            assert chosen["i3"] == 0
            assert chosen["i0"] > chosen["i1"] > chosen["i2"] > 0, chosen
            assert strategy.status()["degraded_picks"] == {reason: 200}
    finally:
        lane.close()
        writer.close()
