"""The way of a request in C and in Python: the same steps on two tables leave the same choices and the same rows."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from proxy_adapter import Dispatch, LeastLoadStrategy
from score_table.identity import Identity
from score_table.lane import Lane
from score_table.layout import Natural
from score_table.pick import CORES
from score_table.pick.rules import Mark
from score_table.records import Detail
from score_table.removal import remove_table
from score_table.writer import TableWriter
from tests.tables import PRICES, instance_id, make_table, publish
from tests.unit.proxy_adapter.instances import Plain, plain

pytestmark = pytest.mark.skipif("native" not in CORES, reason="the native core was not built")

SLOTS = 12


class Side:
    """One table, one lane, one strategy, with one of the implementations."""

    def __init__(self, name: str, core: str, clock: list[int]) -> None:
        self.writer: TableWriter = make_table(name, SLOTS, slots=32)
        for slot in range(SLOTS // 2):  # two kinds of instances
            identity = Identity(
                instance_id(slot), f"http://127.0.0.1:{9000 + slot}", 1, PRICES, {"role": "decode"}
            )
            self.writer.assign(slot, identity)
        self.lane = Lane(name, clock=lambda: clock[0], core=CORES[core])
        publish(self.writer, now_ns=clock[0])
        self.lane.attach()
        self.strategy = LeastLoadStrategy(lane=self.lane, rng=random.Random(7))
        self.guards: list[Dispatch[Plain]] = []

    def rows(self) -> dict[str, list[int]]:
        """Everything this worker has written about its requests."""
        attached = self.lane.attached
        assert attached is not None
        claim = attached.claim
        return {
            "cells": claim.cells.tolist(),
            **{kind.name: claim.naturals[kind].tolist() for kind in Natural},
            "block": claim.block.tolist()[3:],
        }

    def expected(self) -> dict[str, list[tuple[int, float, bool]]]:
        """What is expected of requests at each seat."""
        seats = sorted(self.lane._all_seats(), key=lambda seat: seat.key)
        return {"seats": [(seat.hold_ns, seat.prompt_tokens, seat.guessed) for seat in seats]}


@pytest.fixture
def sides(table_name: str) -> Iterator[tuple[list[int], Side, Side]]:
    clock = [10**12]
    both = Side(f"{table_name}-c", "native", clock), Side(f"{table_name}-python", "plain", clock)
    yield clock, *both
    for side in both:
        side.guards.clear()
        side.lane.close()
        side.writer.close()
        remove_table(side.lane.location.text, force=True)


@pytest.mark.parametrize("seed", range(12))
def test_random_steps_choose_and_count_the_same(sides: tuple[list[int], Side, Side], seed: int) -> None:
    """2,000 steps: dispatch and select with full, filtered, doubled and partly unknown lists; first tokens,
    failures, releases and drops; time, ticks with random scores and marks, a silent monitor, slots that come
    and go."""
    clock, in_c, in_python = sides
    rng = random.Random(seed)
    everyone = plain(SLOTS + 2)  # two of them join the table later, or never
    lists: list[Sequence[Plain]] = [everyone[:SLOTS], list(everyone[:SLOTS]), tuple(everyone[:SLOTS])]
    lists += [rng.sample(everyone[:SLOTS], rng.randint(1, SLOTS)) for _ in range(6)]
    lists += [everyone, [everyone[0]] * 3 + everyone[:4]]
    # Kept, so that both read the expected time of a request there at the same moments.
    seats = [
        side.lane.seat(each.instance_id, each.host, each.port)
        for each in everyone
        for side in (in_c, in_python)
    ]
    generation = 1
    for step in range(2000):
        what = rng.random()
        if what < 0.45:
            instances = rng.choice(lists)
            hint: Any = rng.choice([None, {"stream": True}, {"stream": False}, {}, "no mapping"])
            tokens: Any = rng.choice([None, 0, 100, 5000, 10**9, -3, "many", 12.5])
            for side in (in_c, in_python):
                side.guards.append(side.strategy.dispatch(instances, hint, prompt_tokens=tokens))
            assert in_c.guards[-1].instance is in_python.guards[-1].instance, step
        elif what < 0.55:
            instances = rng.choice(lists)
            assert in_c.strategy.select(instances) is in_python.strategy.select(instances), step
        elif what < 0.85 and in_c.guards:
            index, way = rng.randrange(len(in_c.guards)), rng.random()
            for side in (in_c, in_python):
                guard = side.guards[index]
                if way < 0.2:
                    guard.first_token()
                elif way < 0.4:
                    guard.fail(ConnectionRefusedError() if way < 0.3 else None)
                elif way < 0.5:
                    side.guards.pop(index)  # dropped
                else:
                    side.guards.pop(index).release()
                del guard
                side.lane.outstanding()  # works off what finalizers have queued in Python
        elif what < 0.93:
            clock[0] += rng.randrange(int(3e9))
            scores = [rng.choice([0.0, 1.0, 5.0 * rng.random()]) for _ in range(in_c.writer.n)]
            marks = [rng.choice([0] * 8 + [1, 2, 3]) for _ in scores]
            for slot in range(len(scores)):
                if in_c.writer.identity(slot) is None:
                    marks[slot] = Mark.UNUSED
            silent = rng.random() < 0.2
            for side in (in_c, in_python):
                if not silent:
                    publish(side.writer, scores, [Mark(mark) for mark in marks], scores[::-1], clock[0])
                side.lane.housekeep()
        elif what < 0.95:
            generation += 1
            newcomer = SLOTS + rng.randrange(2)
            for side in (in_c, in_python):
                if side.writer.identity(newcomer) is None:
                    identity = Identity(instance_id(newcomer), f"http://h:{newcomer}", generation, PRICES)
                    side.writer.assign(newcomer, identity)
                else:
                    side.writer.release_slot(newcomer)
        else:
            slot = rng.randrange(SLOTS)
            length = rng.choice([0.0, 1700.9 * rng.random(), 1e300])
            detail = Detail(
                1,
                "up",
                inflight=rng.random() * 9,
                qps_1m=rng.choice([None, rng.random()]),
                prompt_tokens=length,
            )
            for side in (in_c, in_python):
                side.writer.write_detail(slot, detail)
        assert in_c.rows() == in_python.rows(), step
        assert in_c.expected() == in_python.expected(), step
    status = [side.strategy.status() for side in (in_c, in_python)]
    for key in ("picks", "degraded_picks", "outstanding", "degraded"):
        assert status[0][key] == status[1][key], key
    assert len(seats) == 2 * len(everyone)
    assert in_c.lane.ledger.mean_prompt_tokens == in_python.lane.ledger.mean_prompt_tokens
    picker = in_c.strategy._picker
    assert picker is not None
    assert picker.picks > 200, "the way through C was taken"


def test_a_list_that_changes_in_place_is_noticed(sides: tuple[list[int], Side, Side]) -> None:
    _, in_c, _ = sides
    instances = plain(4)
    seen = set()
    for _ in range(8):
        with in_c.strategy.dispatch(instances) as guard:
            seen.add(guard.instance.instance_id)
    assert len(seen) == 4
    del instances[1:]
    for _ in range(4):
        with in_c.strategy.dispatch(instances) as guard:
            assert guard.instance is instances[0]
    instances[0] = plain(4)[2]
    with in_c.strategy.dispatch(instances) as guard:
        assert guard.instance is instances[0]
        assert in_c.writer.naturals().outstanding[:4].tolist() == [0, 0, 1, 0]


def test_more_objects_than_are_kept_are_all_chosen_from(sides: tuple[list[int], Side, Side]) -> None:
    """Proxies that make new objects for every request: what was seen is forgotten, and nothing is lost."""
    _, in_c, _ = sides
    kept = weakref.WeakSet[Plain]()
    for _ in range(2500):
        instances = plain(SLOTS)
        kept.update(instances)
        in_c.strategy.dispatch(instances, prompt_tokens=1).release()
    del instances
    gc.collect()
    assert len(kept) < 20_000, "of 30,000"
    assert in_c.writer.naturals().outstanding.sum() == 0
    assert in_c.strategy.status()["picks"] == 2500


def test_objects_that_die_while_lists_change_may_dispatch(sides: tuple[list[int], Side, Side]) -> None:
    """A finalizer of an instance runs where the last reference goes, which may be inside of a pick."""
    _, in_c, _ = sides
    calm, died = plain(SLOTS), []

    class Dying(Plain):
        def __del__(self) -> None:
            died.append(in_c.strategy.dispatch(calm, prompt_tokens=1).instance)

    for _ in range(2000):
        instances = [Dying(f"i{slot}") for slot in range(SLOTS)]
        in_c.strategy.dispatch(instances, prompt_tokens=1).release()
    del instances
    gc.collect()
    assert len(died) > 4000
    assert in_c.writer.naturals().outstanding.sum() == 0


@pytest.mark.parametrize("sequence", [list, tuple, lambda items: dict.fromkeys(items).keys(), iter])
def test_any_sequence_is_chosen_from(sides: tuple[list[int], Side, Side], sequence: Any) -> None:
    _, in_c, _ = sides
    instances = plain(3)
    for _ in range(3):
        with in_c.strategy.dispatch(sequence(instances)) as guard:
            assert guard.instance in instances
    assert in_c.writer.naturals().outstanding.sum() == 0


def test_the_picker_is_asked_wrongly(sides: tuple[list[int], Side, Side]) -> None:
    _, in_c, _ = sides
    picker: Any = in_c.strategy._picker
    with pytest.raises(TypeError, match="instances, hint and prompt_tokens"):
        picker.dispatch([])
    assert picker.dispatch([], None, None) is None
    assert picker.select([]) is None
    assert picker.select(5) is None
    with pytest.raises(ValueError, match="negative"):
        picker.set_cursor(0, -1)
    with pytest.raises(IndexError):
        picker.cursor(64)
    with pytest.raises(TypeError):
        in_c.lane.ledger.dispatch(None, "no seat", 1, True)


class Alike(Plain):
    """Two of them are equal, whatever they are."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


class Refusing(Plain):
    """Not to be compared."""

    def __eq__(self, other: object) -> bool:
        raise ZeroDivisionError

    __hash__ = object.__hash__


class Picking(Plain):
    """Comparing them picks, forgets, and changes the list."""

    act: Any = None

    def __eq__(self, other: object) -> bool:
        if Picking.act is not None:
            act, Picking.act = Picking.act, None
            act()
        return False

    __hash__ = object.__hash__


@pytest.mark.parametrize("kind", [Plain, Alike, Refusing, Picking])
def test_only_the_very_objects_of_the_list_are_chosen_and_counted(
    sides: tuple[list[int], Side, Side], kind: type[Plain]
) -> None:
    """Whatever their class says of equality: lists that differ between their first, middle and last."""
    _, in_c, _ = sides
    first = [kind(f"i{slot}") for slot in range(8)]
    second = [first[0], *(kind(f"i{slot}") for slot in range(8, 11)), first[4], first[6], first[5], first[7]]
    for turn in range(64):
        instances = second if turn % 3 else first
        if kind is Picking and turn > 20:
            Picking.act = lambda: [in_c.strategy.dispatch(plain(SLOTS)).release() for _ in range(3)]
        with in_c.strategy.dispatch(instances, prompt_tokens=1) as guard:
            assert any(guard.instance is each for each in instances)
            expected = [0] * SLOTS
            expected[int(guard.instance.instance_id[1:])] = 1
            assert in_c.writer.naturals().outstanding[:SLOTS].tolist() == expected
    Picking.act = None


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(),
    reason="without the GIL a list is copied first, and nothing is compared",
)
def test_a_list_that_is_emptied_while_it_is_compared_is_still_chosen_from(
    sides: tuple[list[int], Side, Side],
) -> None:
    _, in_c, _ = sides
    first = [Picking(f"i{slot}") for slot in range(8)]
    for _ in range(4):
        in_c.strategy.dispatch(first).release()
    other = [first[0], Picking("i1"), *first[2:]]
    in_c.strategy.dispatch(other).release()
    Picking.act = lambda: other.__delitem__(slice(1, None))
    guard = in_c.strategy.dispatch(other)
    assert guard.instance is first[0]
    guard.release()
    assert in_c.writer.naturals().outstanding.sum() == 0
