"""``why`` says of every pick what it will be, and a copy of the table says it again afterwards."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.board import Board
from monitor.config import InstanceConfig, MonitorConfig
from monitor.discovery.static import StaticSource
from monitor.polling.failure import FailureKind
from monitor.sample import Reading
from proxy_adapter import Dispatch, LeastLoadStrategy, PowerOfTwoStrategy, RoundRobinStrategy
from proxy_adapter.pools import Pool
from proxy_adapter.strategies.base import CountingStrategy
from proxy_adapter.strategies.by_tag import ByTagStrategy
from score_table.explanation import Explanation
from score_table.lane import Lane
from score_table.layout import Reason, State
from score_table.pick import CORES
from score_table.pick.rules import Mark
from score_table.reader import TableReader
from score_table.writer import TableWriter
from tests.recording import Picked, Recorder, replayed
from tests.tables import make_table, publish
from tests.unit.proxy_adapter.instances import Load, Loaded, Plain, plain

INSTANCES, LANES, WORKERS = 7, 3, 4


class Run:
    """A monitor's board on a real table, and workers that pick from it, in virtual time. One worker finds no lane."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.rng = rng
        self.now = 10**12
        ids = [f"i{number}" for number in range(INSTANCES)]
        configured = MonitorConfig(
            instances=tuple(InstanceConfig(id=each, url=f"http://{each}.test:8000") for each in ids),
            unknown=rng.choice(["estimate", "avoid"]),
        )
        self.writer = TableWriter.open(name, slots=16, lanes=LANES)
        self.board = Board(self.writer, configured)
        self.keys = {
            instance.id: key
            for key, instance in self.board.start(
                StaticSource(configured.instances).current(), self.now
            ).started
        }
        everyone = [Plain(each, f"{each}.test", 8000) for each in ids]
        stranger = Plain("stranger", "elsewhere", 1)
        self.lists: list[Sequence[Plain]] = [everyone, tuple(everyone), everyone[2:5], [stranger]]
        self.lists += [rng.sample(everyone, rng.randint(1, INSTANCES)) for _ in range(4)]
        self.lists += [[*everyone, stranger], [everyone[3]] * 2 + everyone[:5]]
        self.recorder = Recorder(name)
        cores = [CORES[rng.choice(sorted(CORES))] for _ in range(WORKERS)]
        self.lanes = [Lane(name, clock=lambda: self.now, core=core) for core in cores]
        self.workers: list[tuple[Lane, CountingStrategy]] = []
        for lane in self.lanes:
            lane.attach()
            self.workers += [
                (lane, LeastLoadStrategy(lane=lane, rng=rng)),
                (lane, RoundRobinStrategy(lane=lane, rng=rng)),
            ]
        self.guards: list[Dispatch[Plain]] = []
        self.silent_until = 0
        self.counted: Counter[tuple[str, str]] = Counter()
        for _ in range(20):  # before there are scores
            self.pick(select=False)
        # What ends before its instance has a slot is counted nowhere.
        while self.guards:
            self.guards.pop().release()
        self.counted.clear()
        self.board.tick(self.now, self.now)

    def pick(self, *, select: bool) -> None:
        lane, strategy = self.rng.choice(self.workers)
        instances = self.rng.choice(self.lists)

        def dispatch(instances: Sequence[Plain]) -> tuple[Plain, Dispatch[Plain] | None]:
            if select:
                return strategy.select(instances), None
            guard = strategy.dispatch(instances, prompt_tokens=self.rng.choice([None, 0, 90, 4000]))
            return guard.instance, guard

        guard = self.recorder.pick(lane, strategy, instances, dispatch)
        if guard is not None:
            self.guards.append(guard)
        pick = self.recorder.picks[-1]
        counts = lane.attached is not None and not lane.attached.claim.private
        if counts and not (select and isinstance(strategy, RoundRobinStrategy)):
            self.counted[pick.chosen, pick.said.decided_by] += 1

    def step(self) -> None:
        what, rng = self.rng.random(), self.rng
        if what < 0.5:
            self.pick(select=rng.random() < 0.3)
        elif what < 0.7 and self.guards:
            guard = self.guards.pop(rng.randrange(len(self.guards)))
            rng.choice([guard.release, guard.first_token, guard.fail])()
            guard.release()
        elif what < 0.9:
            self.now += rng.choice([20_000_000, 20_000_000, 400_000_000])
            for lane in self.lanes:
                lane.housekeep()
            if rng.random() < 0.03:
                self.silent_until = self.now + rng.randrange(int(40e9))
                if rng.random() < 0.3:
                    self.writer.set_state(State.STOPPED)
            if self.now >= self.silent_until:
                self.board.tick(self.now, self.now)
        else:
            key = self.keys[rng.choice(sorted(self.keys))]
            if rng.random() < 0.25:
                self.board.fleet.failed(key, FailureKind.REFUSED, "refused", self.now)
            else:
                reading = Reading(running=float(rng.randrange(9)), waiting=0.0, kv_usage=rng.random())
                self.board.fleet.sampled(key, reading, "vllm", self.now, self.now)

    def close(self) -> None:
        self.guards.clear()
        for lane in self.lanes:
            lane.close()
        self.writer.close()


def chosen_by(pick: Picked, why: Explanation) -> str | None:
    return None if why.picked is None else pick.ids[why.picked]


@pytest.mark.parametrize("seed", range(5))
def test_why_explains_every_pick_of_a_recorded_run(table_name: str, tmp_path: Path, seed: int) -> None:
    """5 x 500 picks: the strategy says before which one it will be, and the bytes of the table, read by the public
    reader from a file, say it afterwards."""
    run = Run(table_name, random.Random(seed))
    met: Counter[str] = Counter()
    try:
        while len(run.recorder.picks) < 500:
            run.step()
        for number, pick in enumerate(run.recorder.picks):
            assert chosen_by(pick, pick.said) == pick.chosen, number
            again = replayed(pick, tmp_path / "copy")
            met[pick.said.decided_by if pick.said.rule != "rotation" else "rotation"] += 1
            assert [each.score for each in again.instances] == [each.score for each in pick.said.instances]
            if pick.said.rule == "least":
                assert chosen_by(pick, again) == pick.chosen, number
                assert pick.chosen in {pick.ids[position] for position in again.tied}
                assert again.decided_by == pick.said.decided_by
            elif pick.said.rule == "objects":
                assert (again.rule, again.decided_by) == ("objects", "round_robin")
        assert set(met) >= {"score", "outstanding", "unmatched", "rotation"}, met
        with TableReader.open(table_name) as reader:
            snapshot = reader.snapshot()
        told = {
            (each.id, reason): count
            for each in snapshot.instances
            for reason, count in each.decisions.items()
            if count
        }
        # What went to the stranger is in no table.
        assert told == {key: count for key, count in run.counted.items() if key[0] != "stranger"}
        status = run.workers[0][1].status()
        assert {
            (name, reason): n for name, by in status["decisions"].items() for reason, n in by.items() if n
        } == told
    finally:
        run.close()


@pytest.fixture
def on(table_name: str, each_core: str) -> Iterator[tuple[TableWriter, Lane]]:
    writer = make_table(table_name, 4)
    lane = Lane(table_name, clock=lambda: 10**12)
    publish(writer, [1, 2, 3, 4], now_ns=10**12)
    lane.attach()
    yield writer, lane
    lane.close()
    writer.close()


def test_why_neither_picks_nor_counts(on: tuple[TableWriter, Lane]) -> None:
    writer, lane = on
    for kind in (LeastLoadStrategy, PowerOfTwoStrategy, RoundRobinStrategy):
        strategy = kind(lane=lane, rng=random.Random(1))
        assert [strategy.why(plain(4)) == strategy.why(plain(4)) for _ in range(3)] == [True] * 3
        assert strategy.status()["picks"] == 0
    assert writer.naturals().dispatched.sum() == 0
    with pytest.raises(RuntimeError, match="no instances"):
        strategy.why([])


def test_marked_ones_are_explained_among_those_of_their_mark(on: tuple[TableWriter, Lane]) -> None:
    writer, lane = on
    marks = [Mark.UNREACHABLE, Mark.DRAINING, Mark.DRAINING, Mark.UNREACHABLE]
    publish(writer, [0, 9, 3, 0], marks, now_ns=10**12)
    strategy = LeastLoadStrategy(lane=lane, rng=random.Random(1))
    why = strategy.why(plain(4))
    assert (why.decided_by, why.picked, why.least) == ("marked", 2, 3.0)
    assert [each.mark for each in why.instances] == ["unreachable", "draining", "draining", "unreachable"]
    assert strategy.select(plain(4)).instance_id == "i2"
    assert strategy.status()["decisions"]["i2"] == {
        "score": 0,
        "outstanding": 0,
        "marked": 1,
        "round_robin": 0,
        "unmatched": 0,
    }


def test_power_of_two_says_that_it_draws_and_counts_as_the_score(on: tuple[TableWriter, Lane]) -> None:
    _, lane = on
    strategy = PowerOfTwoStrategy(lane=lane, rng=random.Random(1))
    why = strategy.why(plain(4))
    assert (why.rule, why.picked, why.decided_by, why.tied) == ("two_at_random", None, "score", ())
    assert strategy.why(plain(2)).picked == 0, "of two, the better one"
    picked = strategy.dispatch(plain(4)).instance.instance_id
    assert strategy.status()["decisions"][picked]["score"] == 1


def test_rotation_says_whose_turn_it_is_and_counts_as_round_robin(on: tuple[TableWriter, Lane]) -> None:
    _, lane = on
    strategy = RoundRobinStrategy(lane=lane, rng=random.Random(1))
    instances = plain(4)
    for _ in range(6):
        why = strategy.why(instances)
        assert (why.rule, why.decided_by) == ("rotation", "round_robin")
        guard = strategy.dispatch(instances)
        assert guard.instance is instances[why.picked or 0]
    decided = strategy.status()["decisions"]
    assert sum(each["round_robin"] for each in decided.values()) == 6
    assert sum(sum(each.values()) for each in decided.values()) == 6


def test_without_a_table_the_objects_themselves_are_explained(tmp_path: Path) -> None:
    instances = [Loaded("a", load=Load(inflight=5)), Loaded("b", load=Load(inflight=1)), Loaded("c")]
    for table in (None, str(tmp_path / "absent")):
        strategy = LeastLoadStrategy(table=table, rng=random.Random(1))
        why = strategy.why(instances)
        assert (why.degraded, why.rule, why.picked, why.table) == ("no_table", "objects", 1, None)
        assert ("there is no table" in why.because) == (table is not None)
        assert strategy.select(instances).instance_id == "b"
        strategy.close()


def test_objects_whose_ids_cannot_be_read_are_explained_as_well(on: tuple[TableWriter, Lane]) -> None:
    class Broken:
        @property
        def instance_id(self) -> str:
            raise ZeroDivisionError

    _, lane = on
    why = LeastLoadStrategy(lane=lane).why([Broken(), Broken()])  # type: ignore[type-var]
    assert why.rule == "objects"
    assert why.picked in (0, 1)


def test_objects_found_by_their_address_are_told_by_their_id_in_the_table(
    on: tuple[TableWriter, Lane],
) -> None:
    _, lane = on
    why = LeastLoadStrategy(lane=lane).why([Plain("another", "127.0.0.1", 9001), Plain("i0")])
    assert [each.id for each in why.instances] == ["i1", "i0"]
    assert why.picked == 1


def test_decisions_of_a_slot_begin_anew_with_its_next_holder(on: tuple[TableWriter, Lane]) -> None:
    writer, lane = on
    strategy: Any = LeastLoadStrategy(lane=lane, rng=random.Random(1))
    strategy.dispatch(plain(1)).release()
    publish(writer, marks=[Mark.DRAINING] * 4, now_ns=10**12)
    strategy.dispatch(plain(1)).release()
    identity = writer.identity(0)
    assert identity is not None
    writer.assign(0, identity)
    assert strategy.status()["decisions"]["i0"]["score"] == 1, "the same holder, with other tags say"
    writer.release_slot(0)
    writer.assign(0, replace(identity, id="new", generation=2))
    publish(writer, now_ns=10**12)
    assert sum(strategy.status()["decisions"]["new"].values()) == 0
    strategy.dispatch([Plain("new")]).release()
    assert strategy.status()["decisions"]["new"]["score"] == 1
    assert set(strategy.status()["decisions"]["new"]) == {reason.name.lower() for reason in Reason}


def test_decisions_outlive_the_worker_that_made_them(on: tuple[TableWriter, Lane]) -> None:
    _, lane = on
    other = Lane(lane.location.text, clock=lambda: 10**12)
    other.attach()
    RoundRobinStrategy(lane=other).dispatch(plain(1)).release()
    other.close()
    assert LeastLoadStrategy(lane=lane).status()["decisions"]["i0"]["round_robin"] == 1


def test_a_strategy_of_pools_is_explained_by_the_member_that_is_asked(on: tuple[TableWriter, Lane]) -> None:
    writer, lane = on
    identity = writer.identity(2)
    assert identity is not None
    writer.assign(2, replace(identity, tags={"role": "decode"}))
    publish(writer, [1, 2, 3, 4], now_ns=10**12)
    pools = [(Pool(frozenset({("role", "decode")}), "round_robin"), RoundRobinStrategy)]
    strategy = ByTagStrategy(pools, LeastLoadStrategy, lane=lane, rng=random.Random(1))
    assert [each.id for each in strategy.why(plain(4)).instances] == ["i0", "i1", "i2", "i3"]
    assert strategy.why(plain(4)).rule == "least"
    decode = strategy.why(plain(4), {"tags": {"role": "decode"}})
    assert (decode.rule, [each.id for each in decode.instances]) == ("rotation", ["i2"])
    assert strategy.why(plain(4), {"tags": 5}).rule == "least", "what cannot be read asks for nothing"
    assert strategy.status()["degraded_picks"] == {}
    with pytest.raises(RuntimeError, match="no instances"):
        strategy.why([])
