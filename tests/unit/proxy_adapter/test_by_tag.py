"""A strategy per tag: requests go to their pool, each pool by its own strategy, whatever happens to the table."""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from proxy_adapter import build_instance_strategy, process_lane
from proxy_adapter.factory import STRATEGIES
from proxy_adapter.pools import read_pools
from proxy_adapter.strategies.by_tag import ByTagStrategy
from score_table.identity import Identity
from score_table.lane import Lane
from score_table.pick.rules import Mark
from score_table.writer import TableWriter
from tests.tables import PRICES, make_table, publish
from tests.unit.proxy_adapter.instances import Plain, plain

pytestmark = pytest.mark.usefixtures("each_core")

PREFILL, DECODE = {"tags": {"role": "prefill"}}, {"tags": {"role": "decode"}}
POOLS = "role=prefill:least_load,role=decode:power_of_two"


class Tagged(Plain):
    """An instance that says its tags itself."""

    def __init__(self, instance_id: str, **tags: str) -> None:
        super().__init__(instance_id, "10.0.0.9", 1)
        self.tags = tags


def tag(writer: TableWriter, slot: int, **tags: str) -> None:
    """What a reload does: the same holder with other tags."""
    writer.assign(slot, Identity(f"i{slot}", f"http://127.0.0.1:{9000 + slot}", 1, PRICES, tags))


class Fixture:
    """Slots 0 to 3 are prefill machines, 4 to 7 decode machines; the clock stands."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.writer = self.make(slots=64)
        self.lane = Lane(name, clock=lambda: 10**12)
        self.lane.attach()
        self.instances = plain(8)

    def make(self, *, slots: int, roles: tuple[str, str] = ("prefill", "decode")) -> TableWriter:
        writer = make_table(self.name, 8, slots=slots)
        for slot in range(8):
            tag(writer, slot, role=roles[slot >= 4], rack=f"r{slot % 2}")
        self.publish(writer)
        return writer

    def publish(self, writer: TableWriter, requests: list[float] | None = None, **more: Any) -> None:
        publish(writer, requests, now_ns=10**12, **more)

    def strategy(
        self, pools: str | Mapping[str, str] = POOLS, default: str = "rr", seed: int = 1
    ) -> ByTagStrategy:
        known = [(pool, STRATEGIES[pool.strategy]) for pool in read_pools(pools)]
        rule = {"rr": "round_robin", "ll": "least_load"}[default]
        return ByTagStrategy(known, STRATEGIES[rule], lane=self.lane, rng=random.Random(seed))

    def outstanding(self) -> list[int]:
        result: list[int] = self.writer.naturals().outstanding[:8].tolist()
        return result


@pytest.fixture
def on(table_name: str) -> Iterator[Fixture]:
    fixture = Fixture(table_name)
    yield fixture
    fixture.lane.close()
    fixture.writer.close()


def picks(strategy: Any) -> dict[str, int]:
    """Of each pool."""
    return {name: status["picks"] for name, status in strategy.status()["pools"].items()}


def test_the_asked_tags_leave_their_instances_and_the_pool_of_these_chooses(on: Fixture) -> None:
    """Least load always takes the best. Power of two has the best of 4 in half of its pairs: binomial(400, 1/2) has
    a deviation of 10, so 150 to 250 is five of them; the worst never wins."""
    on.publish(on.writer, [10.0 * slot for slot in range(8)])
    strategy = on.strategy()
    assert {
        strategy.dispatch(on.instances, PREFILL, prompt_tokens=0).instance.instance_id for _ in range(50)
    } == {"i0"}
    decode = Counter(
        strategy.dispatch(on.instances, DECODE, prompt_tokens=0).instance.instance_id for _ in range(400)
    )
    assert set(decode) == {"i4", "i5", "i6"}
    assert 150 <= decode["i4"] <= 250, decode
    assert picks(strategy) == {"role=prefill": 50, "role=decode": 400, "default": 0}


def test_pools_are_loaded_apart(on: Fixture) -> None:
    """Least load shares evenly, to one request; decode requests neither land on prefill machines nor count there."""
    strategy = on.strategy("role=prefill:least_load,role=decode:least_load")
    guards = [strategy.dispatch(on.instances, DECODE, prompt_tokens=10) for _ in range(400)]
    assert on.outstanding() == [0] * 4 + [100] * 4
    guards += [strategy.dispatch(on.instances, PREFILL, prompt_tokens=10) for _ in range(40)]
    assert on.outstanding() == [10] * 4 + [100] * 4
    for guard in guards:
        guard.release()
    assert on.outstanding() == [0] * 8


def test_a_list_of_one_pool_needs_no_hint_and_a_mixed_one_goes_to_the_default(on: Fixture) -> None:
    strategy = on.strategy()
    strategy.select(on.instances[4:])
    assert picks(strategy) == {"role=prefill": 0, "role=decode": 1, "default": 0}
    strategy.select(on.instances[3:])
    assert picks(strategy) == {"role=prefill": 0, "role=decode": 1, "default": 1}
    assert strategy.status()["picks"] == 2


def test_tags_without_a_pool_leave_their_instances_for_the_default(on: Fixture) -> None:
    strategy = on.strategy()
    chosen = [strategy.select(on.instances, {"tags": {"rack": "r1"}}).instance_id for _ in range(8)]
    assert set(chosen) == {"i1", "i3", "i5", "i7"}
    assert picks(strategy)["default"] == 8
    assert strategy.select(on.instances, {"tags": {"rack": "r1", "role": "decode"}}).instance_id in (
        "i5",
        "i7",
    )
    assert picks(strategy)["role=decode"] == 1


def test_of_several_pools_that_fit_the_first_answers(on: Fixture) -> None:
    strategy = on.strategy("rack=r1+role=decode:least_load,role=decode:least_load,rack=r1:least_load")
    strategy.select(on.instances, {"tags": {"role": "decode", "rack": "r1"}})
    strategy.select(on.instances, DECODE)
    assert picks(strategy) == {"rack=r1+role=decode": 1, "role=decode": 1, "rack=r1": 0, "default": 0}


def test_tags_that_nobody_carries_are_answered_by_all_counted_and_logged_once(
    on: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = on.strategy()
    with caplog.at_level(logging.WARNING, "loadboard"):
        chosen = {strategy.select(on.instances, {"tags": {"role": "encode"}}).instance_id for _ in range(8)}
        strategy.dispatch(on.instances[:4], DECODE).release()
        strategy.dispatch(on.instances[:4], DECODE).release()
    assert len(chosen) == 8
    assert strategy.status()["degraded_picks"] == {"untagged": 10}
    assert picks(strategy)["default"] == 10
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "none of the instances given carries the tags role=encode",
        "none of the instances given carries the tags role=decode",
    ]


def test_a_pool_that_nobody_carries_is_warned_of_once_and_again_when_that_changes(
    on: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = on.strategy("role=prefil:least_load,role=decode:least_load")

    def told() -> list[str]:
        for _ in range(3):
            strategy.select(on.instances, DECODE)
        said = [record.message.split(",")[0] for record in caplog.records]
        caplog.clear()
        return said

    caplog.set_level(logging.INFO, "loadboard.proxy_adapter")
    assert told() == ["no instance of the table carries the tags of pool role=prefil"]
    pools = strategy.status()["pools"]
    assert (pools["role=prefil"]["instances"], pools["role=decode"]["instances"]) == (0, 4)
    assert "instances" not in pools["default"]
    tag(on.writer, 0, role="prefill", rack="r9")
    assert told() == [], "the same pools are empty"
    for slot in range(4, 8):
        tag(on.writer, slot, role="other")
    assert told()[0] == "no instance of the table carries the tags of pool role=decode"
    tag(on.writer, 0, role="prefil")
    tag(on.writer, 1, role="decode")
    assert told() == ["pool role=decode has instances now", "pool role=prefil has instances now"]


def test_a_pool_of_objects_outside_of_the_table_is_not_warned_of(
    on: Fixture, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = on.strategy("role=encode:least_load")
    strategy.select([*on.instances, Tagged("e", role="encode")], {"tags": {"role": "encode"}})
    assert not [record for record in caplog.records if "pool" in record.message]


def test_a_pool_of_which_all_are_out_of_service_is_not_left(on: Fixture) -> None:
    on.publish(on.writer, marks=[Mark.NONE] * 4 + [Mark.UNREACHABLE] * 3 + [Mark.DRAINING])
    strategy = on.strategy()
    assert {strategy.select(on.instances, DECODE).instance_id for _ in range(8)} == {"i7"}
    assert strategy.status()["degraded_picks"] == {"marked": 8}


def test_an_instance_that_changes_its_tags_is_in_its_new_pool_with_the_next_pick(on: Fixture) -> None:
    strategy = on.strategy("role=prefill:least_load,role=decode:least_load")
    for _ in range(3):
        strategy.dispatch(on.instances, DECODE).release()
    tag(on.writer, 0, role="decode")
    on.publish(on.writer, [0.0] + [5.0] * 7)
    assert strategy.select(on.instances, DECODE).instance_id == "i0"
    assert strategy.select(on.instances, PREFILL).instance_id != "i0"
    for slot in range(4, 8):
        tag(on.writer, slot)
    assert {strategy.select(on.instances, DECODE).instance_id for _ in range(4)} == {"i0"}


def test_a_newcomer_and_a_removed_instance_are_noticed(on: Fixture) -> None:
    strategy = on.strategy("role=decode:least_load")
    strategy.select(on.instances, DECODE)
    on.writer.release_slot(4)
    on.publish(on.writer, marks=[Mark.NONE] * 4 + [Mark.UNUSED] + [Mark.NONE] * 3)
    chosen = {strategy.select(on.instances, DECODE).instance_id for _ in range(30)}
    assert chosen == {"i5", "i6", "i7"}, "one that left the table has no tags any more"
    tag(on.writer, 8, role="decode")
    on.publish(on.writer, [9.0] * 8 + [0.0], marks=[Mark.NONE] * 4 + [Mark.UNUSED] + [Mark.NONE] * 4)
    newcomer = Plain("i8")
    assert strategy.select([*on.instances, newcomer], DECODE) is newcomer


def test_another_table_of_that_name_has_its_own_tags(on: Fixture) -> None:
    strategy = on.strategy()
    held = strategy.dispatch(on.instances, DECODE)
    on.writer.close()
    on.writer = on.make(slots=128, roles=("decode", "prefill"))
    on.lane.housekeep()
    assert {strategy.select(on.instances, DECODE).instance_id for _ in range(40)} == {"i0", "i1", "i2", "i3"}
    held.release()
    assert on.outstanding()[4:] == [0] * 4


def test_without_a_slot_or_a_table_the_tags_of_the_object_count(on: Fixture) -> None:
    stranger = Tagged("stranger", role="decode")
    strategy = on.strategy("role=decode:least_load")
    assert {strategy.select([*on.instances[:4], stranger], DECODE) for _ in range(3)} == {stranger}
    assert strategy.status()["degraded_picks"] == {"unmatched": 3}
    alone = build_instance_strategy("ll", pools=POOLS, table=None)
    objects = [Tagged("a", role="prefill"), Tagged("b", role="decode"), Plain("c")]
    assert {alone.select(objects, DECODE).instance_id for _ in range(6)} == {"b"}
    assert {alone.select(objects).instance_id for _ in range(6)} == {"a", "b", "c"}
    assert picks(alone) == {"role=prefill": 0, "role=decode": 6, "default": 6}
    assert alone.select(on.instances, DECODE) in on.instances
    assert alone.status()["degraded_picks"]["untagged"] == 1


def test_the_table_says_the_tags_of_those_it_has_whatever_their_objects_say(on: Fixture) -> None:
    liar = Tagged("i0", role="decode")
    assert on.strategy().select([liar, on.instances[5]], DECODE) is on.instances[5]


@pytest.mark.parametrize("tags", ["role=decode", 7, ["role"]])
def test_tags_that_are_no_mapping_are_an_error_that_is_counted_and_logged_once(
    on: Fixture, tags: object, caplog: pytest.LogCaptureFixture
) -> None:
    strategy = on.strategy()
    with caplog.at_level(logging.ERROR, "loadboard"):
        for _ in range(3):
            assert strategy.select(on.instances, {"tags": tags}) in on.instances
    assert strategy.status()["degraded_picks"]["error"] == 3
    assert picks(strategy)["default"] == 3
    assert len(caplog.records) == 1
    assert 'hint["tags"] is' in str(caplog.records[0].exc_info)


@pytest.mark.parametrize("hint", [None, 7, "x", {}, {"tags": None}, {"tags": {}}, {"stream": True}])
def test_a_hint_without_tags_leaves_all(on: Fixture, hint: object) -> None:
    strategy = on.strategy()
    assert len({strategy.dispatch(on.instances, hint).instance.instance_id for _ in range(8)}) == 8
    assert strategy.status()["degraded_picks"] == {}


def test_numbers_as_tags_are_compared_as_texts(on: Fixture) -> None:
    tag(on.writer, 2, gpus="8")
    assert on.strategy().select(on.instances, {"tags": {"gpus": 8}}).instance_id == "i2"


def test_an_empty_list_raises_no_instances_and_objects_that_raise_do_not_break_a_pick(on: Fixture) -> None:
    class Broken:
        @property
        def tags(self) -> dict[str, str]:
            raise ZeroDivisionError

    strategy = on.strategy()
    for call in (strategy.select, strategy.dispatch):
        with pytest.raises(RuntimeError, match=r"^no instances$"):
            call([], DECODE)
    broken = [Broken(), Broken()]
    assert strategy.select(broken, DECODE) in broken  # type: ignore[type-var]
    assert strategy.status()["degraded_picks"]["error"] >= 1


@pytest.mark.parametrize("sequence", [list, tuple, iter, lambda items: dict.fromkeys(items).keys()])
def test_any_sequence_is_chosen_from(on: Fixture, sequence: Any) -> None:
    strategy = on.strategy()
    for _ in range(4):
        with strategy.dispatch(sequence(on.instances), DECODE) as guard:
            assert guard.instance in on.instances[4:]
    assert on.outstanding() == [0] * 8


def test_only_the_very_objects_given_are_chosen(on: Fixture) -> None:
    class Alike(Plain):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = object.__hash__

    strategy = on.strategy("role=decode:least_load")
    for turn in range(200):
        instances = [Alike(f"i{slot}") for slot in range(turn % 3, 8)]
        chosen = strategy.select(instances, DECODE)
        assert any(chosen is each for each in instances)
        changed = instances[:5]
        changed[4:] = [Alike("i7")]
        assert any(strategy.select(changed, DECODE) is each for each in changed)


def test_all_pools_share_the_lane_of_the_process_and_give_it_back(table_name: str, on: Fixture) -> None:
    publish(on.writer)
    strategy = build_instance_strategy("ll", pools=POOLS, table=table_name)
    with (
        strategy.dispatch(on.instances, DECODE, prompt_tokens=1),
        strategy.dispatch(on.instances, PREFILL, prompt_tokens=1),
    ):
        status = strategy.status()
        assert (status["strategy"], status["lane"], status["outstanding"]) == ("by_tag", 1, 2)
        assert sum(on.outstanding()) == 2
    assert list(process_lane._lanes) == [table_name]
    strategy.close()
    assert not process_lane._lanes
    assert strategy.select(on.instances, DECODE) in on.instances, "it goes on without a table"
    strategy.close()


def test_why_tells_of_the_pool_alone_and_counts_nothing(on: Fixture) -> None:
    on.publish(on.writer, [10.0 * slot for slot in range(8)])
    strategy = on.strategy("role=decode:least_load")
    explanation = strategy.why(on.instances, DECODE)
    assert [each.id for each in explanation.instances] == ["i4", "i5", "i6", "i7"]
    assert explanation.picked == 0
    assert len(strategy.why(on.instances, {"tags": {"role": "encode"}}).instances) == 8
    assert len(strategy.why(on.instances, {"tags": "decode"}).instances) == 8
    assert strategy.status()["picks"] == 0
    assert strategy.status()["degraded_picks"] == {}
    assert strategy.select(on.instances, DECODE).instance_id == "i4"


def test_threads_pick_from_changing_lists_while_tags_change(on: Fixture) -> None:
    """Each pick is one of the objects given, and what is counted is taken back."""
    strategy = on.strategy("role=prefill:least_load,role=decode:least_load")
    wrong: list[object] = []

    def work(seed: int) -> None:
        own = random.Random(seed)
        try:
            for _ in range(300):
                instances = own.sample(on.instances, own.randint(1, 8))
                with strategy.dispatch(
                    instances, own.choice([PREFILL, DECODE, None]), prompt_tokens=1
                ) as guard:
                    if guard.instance not in instances:
                        wrong.append(guard.instance)
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(40):
        tag(on.writer, turn % 8, role="decode" if turn % 3 else "prefill")
        on.publish(on.writer)
        on.lane.housekeep()
    for thread in threads:
        thread.join()
    assert not wrong
    assert set(strategy.status()["degraded_picks"]) <= {"untagged"}, "lists that have none of a role"
    assert on.outstanding() == [0] * 8
