"""Strategies on a table: bursts spread, unknown ones are not free, degraded modes are named and counted."""

from __future__ import annotations

import logging
import os
import random
from collections import Counter
from collections.abc import Iterator

import pytest

from proxy_adapter import LeastLoadStrategy, PowerOfTwoStrategy, RoundRobinStrategy
from score_table.identity import Identity
from score_table.lane import Lane
from score_table.layout import State
from score_table.pick.rules import Mark
from score_table.reader import TableReader
from score_table.records import Detail
from score_table.writer import TableWriter
from tests.tables import PRICES, make_table, publish
from tests.unit.proxy_adapter.instances import Plain, plain

pytestmark = pytest.mark.usefixtures("each_core")


class Fixture:
    """One table of 8 equal instances, one lane, a clock that stands."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.now = 10**12
        self.writer: TableWriter = make_table(name, 8)
        self.lane = Lane(name, clock=lambda: self.now)
        self.publish()
        self.lane.attach()
        self.instances = plain(8)

    def publish(
        self,
        requests: list[float] | None = None,
        marks: list[Mark] | None = None,
        rest: list[float] | None = None,
    ) -> None:
        publish(self.writer, requests, marks, rest, now_ns=self.now)

    def least_load(self) -> LeastLoadStrategy:
        return LeastLoadStrategy(lane=self.lane, rng=random.Random(1))

    def outstanding(self) -> list[int]:
        result: list[int] = self.writer.naturals().outstanding[:8].tolist()
        return result


@pytest.fixture
def on(table_name: str) -> Iterator[Fixture]:
    fixture = Fixture(table_name)
    yield fixture
    fixture.lane.close()
    fixture.writer.close()


def test_a_burst_of_1000_between_two_polls_gives_each_of_8_equal_instances_125(on: Fixture) -> None:
    strategy = on.least_load()
    guards = [strategy.dispatch(on.instances, prompt_tokens=100) for _ in range(1000)]
    counts = Counter(guard.instance.instance_id for guard in guards)
    assert all(124 <= count <= 126 for count in counts.values()), counts
    assert sum(on.outstanding()) == 1000
    for guard in guards:
        guard.release()
    assert on.outstanding() == [0] * 8


def test_a_burst_by_select_alone_spreads_as_well(on: Fixture) -> None:
    strategy = on.least_load()
    counts = Counter(strategy.select(on.instances).instance_id for _ in range(1000))
    assert all(124 <= count <= 126 for count in counts.values()), counts


def test_the_smallest_score_wins_until_it_has_caught_up(on: Fixture) -> None:
    on.publish([5, 5, 5, 2, 5, 5, 5, 5])
    strategy = on.least_load()
    picks = [strategy.dispatch(on.instances, prompt_tokens=0).instance.instance_id for _ in range(3)]
    assert set(picks) == {"i3"}
    on.lane.housekeep()
    guards = [strategy.dispatch(on.instances, prompt_tokens=0) for _ in range(11)]
    counts = Counter(guard.instance.instance_id for guard in guards)
    assert counts.pop("i3") == 4, "3 until it has 5 as the others, then one each"
    assert set(counts.values()) == {1}


def test_paced_traffic_on_an_idle_fleet_rotates(on: Fixture) -> None:
    strategy = on.least_load()
    counts: Counter[str] = Counter()
    for _ in range(448):
        with strategy.dispatch(on.instances) as d:
            counts[d.instance.instance_id] += 1
    assert set(counts.values()) == {56}


def test_a_filtered_list_is_chosen_from_alone_and_a_changed_one_is_noticed(on: Fixture) -> None:
    on.publish([0, 1, 2, 3, 4, 5, 6, 7])
    strategy = on.least_load()
    some = [on.instances[7], on.instances[5]]
    assert strategy.select(some).instance_id == "i5"
    some[1] = on.instances[3]
    assert strategy.select(some).instance_id == "i3"
    assert strategy.select(on.instances).instance_id == "i0"


def test_objects_are_matched_by_address_where_the_id_is_another(on: Fixture) -> None:
    on.publish([3, 0, 3, 3, 3, 3, 3, 3])
    strategy = on.least_load()
    others = [Plain("a", "127.0.0.1", 9000), Plain("b", "127.0.0.1", 9001)]
    with strategy.dispatch(others, prompt_tokens=10) as d:
        assert d.instance.instance_id == "b"
        assert on.outstanding()[1] == 1
    assert on.outstanding()[1] == 0


def test_a_removed_instance_is_never_taken_from_a_cached_map(on: Fixture) -> None:
    strategy = on.least_load()
    strategy.dispatch(on.instances).release()
    on.writer.release_slot(3)
    on.writer.assign(3, Identity("newcomer", "http://127.0.0.1:9999", 2, PRICES))
    on.publish([9, 9, 9, 0, 10, 9, 9, 9])
    assert strategy.select([on.instances[3], on.instances[4]], None) is on.instances[3], "by its own count, 0"
    assert on.outstanding()[3] == 0, "the newcomer in its slot is not charged"
    assert strategy.status()["degraded_picks"]["unmatched"] == 1
    newcomer = Plain("newcomer")
    assert strategy.select([*on.instances[:3], newcomer]) is newcomer


def test_a_list_that_lacks_a_newcomer_is_still_picked_from_by_score(on: Fixture) -> None:
    strategy = on.least_load()
    strategy.select(on.instances)
    on.writer.assign(8, Identity("newcomer", "http://127.0.0.1:9999", 1, PRICES))
    between = [strategy.select(on.instances).instance_id for _ in range(4)]
    on.publish([1, 1, 1, -3, 1, 1, 1, 1, -9])
    on.lane.attached.segment.store("membership", on.lane.attached.directory.membership)  # type: ignore[union-attr]
    assert strategy.select(on.instances).instance_id == "i3", "the map says all slots, the table has one more"
    assert len(set(between)) == 4
    assert "error" not in strategy.status()["degraded_picks"]


def test_workers_start_their_rotation_at_different_instances(on: Fixture) -> None:
    """40 workers over 8 ties: fewer than 4 different first picks has a probability below 1e-10."""
    firsts = {
        LeastLoadStrategy(lane=on.lane, rng=random.Random(seed)).dispatch(on.instances).instance.instance_id
        for seed in range(40)
        for _ in [on.lane.housekeep()]
    }
    assert len(firsts) >= 4, firsts


def test_an_instance_without_a_slot_is_neither_free_nor_shut_out(
    on: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    """It scores own outstanding x lanes in use on top of the typical head, so a burst shares evenly with it.

    An idle instance scores 1 in ``token_aware``: the request that is to be placed.
    """
    on.publish([1.0] * 8)
    strategy = on.least_load()
    stranger = Plain("stranger", "10.0.0.9", 1)
    instances = [*on.instances[:3], stranger]
    with caplog.at_level(logging.WARNING, "loadboard"):
        guards = [strategy.dispatch(instances, prompt_tokens=0) for _ in range(400)]
    counts = Counter(guard.instance.instance_id for guard in guards)
    assert all(99 <= count <= 101 for count in counts.values()), counts
    assert sum("stranger" in record.message for record in caplog.records) == 1, "logged once"
    assert strategy.status()["degraded_picks"]["unmatched"] == 400
    for guard in guards:
        guard.release()
    assert on.lane.outstanding() == 0


def test_paced_traffic_rotates_over_instances_with_and_without_a_slot(on: Fixture) -> None:
    on.publish([1.0] * 8)
    strategy = on.least_load()
    instances = [*on.instances[:3], Plain("stranger", "10.0.0.9", 1)]
    counts: Counter[str] = Counter()
    for _ in range(400):
        with strategy.dispatch(instances, prompt_tokens=0) as d:
            counts[d.instance.instance_id] += 1
    assert set(counts.values()) == {100}, counts


def test_a_silent_monitor_leaves_outstanding_counts_plus_rest(on: Fixture) -> None:
    on.publish([0.0] * 8, rest=[0, 4, 4, 4, 4, 4, 4, 4])
    strategy = on.least_load()
    on.now += 2 * 10**9
    guards = [strategy.dispatch(on.instances[:2], prompt_tokens=0) for _ in range(8)]
    counts = Counter(guard.instance.instance_id for guard in guards)
    assert counts == {"i0": 6, "i1": 2}
    assert strategy.status()["degraded"] == "outstanding"
    assert strategy.status()["degraded_picks"]["outstanding"] == 8
    with TableReader.open(on.name) as reader:
        snapshot = reader.snapshot(now_ns=on.now)
    assert snapshot.degraded == "outstanding"
    assert snapshot.lanes[0].degraded_picks["outstanding"] == 8
    on.publish()
    assert strategy.status()["degraded"] is None


def test_a_stopped_monitor_is_a_silent_one(on: Fixture) -> None:
    on.writer.set_state(State.STOPPED)
    strategy = on.least_load()
    strategy.select(on.instances)
    assert strategy.status()["degraded"] == "outstanding"


def test_marked_instances_get_nothing_while_another_lives(on: Fixture) -> None:
    marks = [Mark.UNREACHABLE] * 8
    marks[6] = Mark.NONE
    on.publish([0.0] * 6 + [500.0, 0.0], marks=marks)
    strategy = on.least_load()
    assert {strategy.select(on.instances).instance_id for _ in range(20)} == {"i6"}


def test_with_only_marked_ones_the_mildest_mark_answers_and_it_is_counted(on: Fixture) -> None:
    marks = [Mark.UNREACHABLE] * 4 + [Mark.DRAINING] * 3 + [Mark.AVOIDED]
    on.publish(marks=marks)
    strategy = on.least_load()
    assert strategy.select(on.instances).instance_id == "i7"
    assert strategy.select(on.instances[:7]).instance_id in ("i4", "i5", "i6")
    assert {strategy.select(on.instances[:4]).instance_id for _ in range(4)} == {"i0", "i1", "i2", "i3"}
    assert strategy.status()["degraded_picks"]["marked"] == 6


def test_a_failed_request_keeps_its_price_so_fast_failures_attract_no_more_than_a_share(on: Fixture) -> None:
    """One of 8 fails at once. It ends no earlier than the others' requests count, so it gets its share."""
    strategy = on.least_load()
    failed = 0
    others = []
    for _ in range(800):
        d = strategy.dispatch(on.instances, prompt_tokens=0)
        if d.instance.instance_id == "i0":
            d.fail(ConnectionResetError())
            failed += 1
        else:
            others.append(d)
    assert failed <= 101
    assert on.writer.naturals().held[0] == failed
    on.now += 11 * 10**9
    on.lane.housekeep()
    assert on.outstanding()[0] == 0


def test_a_refused_connection_asks_the_monitor_to_look(on: Fixture) -> None:
    strategy = on.least_load()
    d = strategy.dispatch(on.instances[:1])
    d.fail(ConnectionRefusedError())
    d.release()
    assert on.writer.naturals().suspects[0] == 1
    assert on.outstanding()[0] == 1, "held"


def test_select_holds_its_price_for_the_expected_time_there(on: Fixture) -> None:
    on.writer.write_detail(0, Detail(generation=1, state="up", inflight=6.0, qps_1m=2.0))
    on.writer.write_detail(1, Detail(generation=1, state="up", inflight=0.0, qps_1m=2.0))
    strategy = on.least_load()
    strategy.select(on.instances[:1])
    strategy.select(on.instances[1:2])
    assert on.outstanding()[:2] == [1, 1]
    on.now += int(2.2e9)
    on.lane.housekeep()
    assert on.outstanding()[:2] == [1, 1], "6 requests at 2 per second are 3 s, less a quarter at most"
    on.now += int(1.6e9)
    on.lane.housekeep()
    assert on.outstanding()[:2] == [0, 1], "and a quarter more at most; 10 s where unknown"
    on.now += int(8.8e9)
    on.lane.housekeep()
    assert on.outstanding()[:2] == [0, 0]


def test_round_robin_dispatches_are_counted_for_the_others_to_see(on: Fixture) -> None:
    strategy = RoundRobinStrategy(lane=on.lane)
    guards = [strategy.dispatch(on.instances) for _ in range(16)]
    assert on.outstanding() == [2] * 8
    strategy.select(on.instances)
    assert on.outstanding() == [2] * 8, "a bare select of a rotation counts nothing"
    del guards
    on.lane.housekeep()
    assert on.outstanding() == [0] * 8, "dropped guards release themselves"


def test_power_of_two_takes_the_better_of_its_two_and_never_a_marked_one(on: Fixture) -> None:
    """The worst of 8 is never better than its partner; the best is in a pair with probability 1/4."""
    on.publish([0, 1, 2, 3, 4, 5, 6, 7])
    strategy = PowerOfTwoStrategy(lane=on.lane, rng=random.Random(3))
    counts = Counter(
        strategy.dispatch(on.instances, prompt_tokens=0).instance.instance_id for _ in range(400)
    )
    on.lane.housekeep()
    assert counts["i7"] == 0
    assert 60 <= counts["i0"] <= 140, "binomial(400, 1/4): mean 100, sigma 8.7, more than four sigma"
    on.publish(marks=[Mark.UNREACHABLE] * 7 + [Mark.NONE])
    assert {strategy.dispatch(on.instances).instance.instance_id for _ in range(50)} == {"i7"}


def test_objects_without_a_readable_id_are_chosen_without_the_table_and_it_is_said_once(
    on: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        @property
        def instance_id(self) -> str:
            raise ZeroDivisionError

    strategy = on.least_load()
    instances = [Broken(), Broken()]
    with caplog.at_level(logging.ERROR, "loadboard"):
        picked = {id(strategy.select(instances)) for _ in range(4)}  # type: ignore[type-var]
    assert len(picked) == 2, "in rotation"
    assert strategy.status()["degraded_picks"]["error"] == 4
    assert len(caplog.records) == 1
    strategy.dispatch(instances).release()  # type: ignore[type-var]
    assert on.lane.outstanding() == 0


@pytest.mark.parametrize("length", [float("nan"), float("inf"), "many", -3, 10**30])
def test_an_absurd_prompt_length_never_breaks_a_dispatch(on: Fixture, length: object) -> None:
    with on.least_load().dispatch(on.instances, prompt_tokens=length) as d:  # type: ignore[arg-type]
        assert on.outstanding()[int(d.instance.instance_id[1:])] == 1
    assert on.outstanding() == [0] * 8


def test_long_prompts_do_not_all_go_to_the_instance_without_a_slot(on: Fixture) -> None:
    on.publish([1.0] * 8)
    strategy = on.least_load()
    instances = [*on.instances[:3], Plain("stranger", "10.0.0.9", 1)]
    guards = [strategy.dispatch(instances, prompt_tokens=4000) for _ in range(200)]
    counts = Counter(guard.instance.instance_id for guard in guards)
    assert all(49 <= count <= 51 for count in counts.values()), counts


class _Odd(dict[str, object]):
    def get(self, key: str, default: object = None) -> object:
        raise ZeroDivisionError


def test_a_hint_or_an_id_that_raises_never_breaks_a_dispatch(on: Fixture) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise ZeroDivisionError

    for strategy in (on.least_load(), RoundRobinStrategy(lane=on.lane), RoundRobinStrategy()):
        with strategy.dispatch(on.instances, _Odd()) as d:
            assert d.instance in on.instances
        odd = [Plain(Unprintable()), Plain(Unprintable())]  # type: ignore[arg-type]
        with strategy.dispatch(odd) as e:
            assert e.instance in odd
        assert strategy.select(odd) in odd


def test_a_list_that_another_thread_empties_meanwhile_does_not_break_a_pick(on: Fixture) -> None:
    class Shrinking(Plain):
        @property
        def load(self) -> None:
            instances.clear()

    instances: list[Plain] = [Shrinking("x"), Shrinking("y")]
    assert LeastLoadStrategy().select(instances).instance_id in ("x", "y")


@pytest.mark.parametrize("strategy", [LeastLoadStrategy, RoundRobinStrategy, PowerOfTwoStrategy])
@pytest.mark.parametrize(
    "lists",
    [((0, 1, 2, 3), (4, 5, 6, 7)), (range(8), (6, 7)), ((0, 2, 4, 6), (1, 3, 5, 7)), ((0, 1), (2, 3))],
)
def test_lists_that_are_asked_alternately_each_share_evenly(
    on: Fixture, strategy: type[LeastLoadStrategy], lists: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    """Paced traffic, equal instances: each list rotates over its own. Power of two is random: 200 picks of 4 are
    50 each with a deviation of 6.1, so 25 is more than 4 of them away."""
    chooser = strategy(lane=on.lane, rng=random.Random(3))
    pools = [[on.instances[slot] for slot in slots] for slots in lists]
    counts: list[Counter[str]] = [Counter(), Counter()]
    for _ in range(200):
        for pool, count in zip(pools, counts, strict=True):
            with chooser.dispatch(pool, prompt_tokens=1) as guard:
                count[guard.instance.instance_id] += 1
    for pool, count in zip(pools, counts, strict=True):
        share = 200 // len(pool)
        apart = 0.5 * share if strategy is PowerOfTwoStrategy else 1
        assert all(abs(count[each.instance_id] - share) <= apart for each in pool), count


def test_children_forked_with_one_strategy_do_not_choose_in_step(on: Fixture) -> None:
    """16 picks of 8 children: two alike by chance in power of two are less likely than 1 in 10^9."""
    for strategy in (LeastLoadStrategy(lane=on.lane), PowerOfTwoStrategy(lane=on.lane)):
        said = set()
        for _ in range(8):
            read_end, write_end = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    chosen = "".join(strategy.select(on.instances).instance_id for _ in range(16))
                    os.write(write_end, chosen.encode())
                finally:
                    os._exit(0)
            os.waitpid(child, 0)
            said.add(os.read(read_end, 1000))
            os.close(read_end)
            os.close(write_end)
        assert len(said) >= (
            8 if isinstance(strategy, PowerOfTwoStrategy) and strategy.name != "least_load" else 3
        )
