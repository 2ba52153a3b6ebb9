"""Choices are repeatable by a seed, the same in C and in Python; workers and forked children choose apart."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proxy_adapter.factory import STRATEGIES
from proxy_adapter.pools import read_pools
from proxy_adapter.strategies.base import CountingStrategy
from proxy_adapter.strategies.by_tag import ByTagStrategy
from score_table.identity import Identity
from score_table.lane import Lane
from score_table.pick import CORES
from score_table.removal import remove_table
from tests.tables import PRICES, instance_id, make_table, publish
from tests.unit.proxy_adapter.instances import plain

NOW = 10**12
Build = Callable[..., Any]


def _by_tag(strategy: type[CountingStrategy]) -> Build:
    """That strategy for one pool, and for the rest."""

    def build(**given: Any) -> ByTagStrategy:
        pools = [(pool, strategy) for pool in read_pools("role=decode:-")]
        return ByTagStrategy(pools, strategy, **given)

    return build


BUILDS: dict[str, Build] = {
    **STRATEGIES,
    **{f"{name} by tag": _by_tag(strategy) for name, strategy in STRATEGIES.items()},
}
HINTS = [None, {"tags": {"role": "decode"}}, {"tags": {"role": "prefill"}}]


class Worker:
    """A table of 8 equal instances, half of them tagged ``role=decode``, and a strategy on it."""

    def __init__(self, name: str, build: Build, seed: int | None, core: str) -> None:
        self.writer = make_table(name, 8)
        for slot in range(8):
            tags = {"role": "prefill" if slot < 4 else "decode"}
            identity = Identity(instance_id(slot), f"http://127.0.0.1:{9000 + slot}", 1, PRICES, tags)
            self.writer.assign(slot, identity)
        publish(self.writer, now_ns=NOW)
        self.lane = Lane(name, clock=lambda: NOW, core=CORES[core])
        self.lane.attach()
        self.instances = plain(8)
        self.strategy = build(lane=self.lane, rng=None if seed is None else random.Random(seed))

    def choices(self, count: int) -> str:
        """By select and by dispatch, of all and of either pool, some released at once."""
        chosen, held = [], []
        for step in range(count):
            hint = HINTS[step % 3]
            if step % 4 == 3:
                chosen.append(self.strategy.select(self.instances, hint).instance_id)
                continue
            guard = self.strategy.dispatch(self.instances, hint, prompt_tokens=step * 37 % 500)
            chosen.append(guard.instance.instance_id)
            if step % 4 == 1:
                guard.release()
            else:
                held.append(guard)
        for guard in held:
            guard.release()
        return "".join(chosen)

    def close(self) -> None:
        self.strategy.close()
        self.lane.close()
        self.writer.close()
        remove_table(self.lane.location.text, force=True)


@pytest.fixture
def workers(table_name: str) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(build: Build, seed: int | None, core: str = "numpy") -> Worker:
        made.append(Worker(f"{table_name}-{len(made)}", build, seed, core))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_the_same_seed_gives_the_same_choices_in_every_implementation(
    workers: Callable[..., Worker], build: Build
) -> None:
    said = {workers(build, 7, core).choices(120) for core in CORES for _ in range(2)}
    assert len(said) == 1


@pytest.mark.parametrize("build", BUILDS.values(), ids=BUILDS)
def test_workers_of_different_seeds_do_not_move_in_step(workers: Callable[..., Worker], build: Build) -> None:
    """A start in a rotation of 8 is all that a seed decides where nothing is drawn: fewer than 3 different ones of 16
    are less likely than 28 x (1/4)^16, below 1 in 10^8. By tag there is one start more for each pool."""
    said = {workers(build, seed).choices(24) for seed in range(16)}
    assert len(said) >= 3, said
    if build is STRATEGIES["power_of_two"]:
        assert len(said) == 16, "two alike of 24 draws of a pair of 8: below 1 in 10^12"


def test_what_is_asked_of_one_pool_does_not_change_the_choices_in_another(
    workers: Callable[..., Worker],
) -> None:
    build, decode = BUILDS["power_of_two by tag"], HINTS[1]
    alone, beside = workers(build, 5), workers(build, 5)
    for _ in range(40):
        beside.strategy.select(beside.instances[:4])
        one, other = (each.strategy.select(each.instances, decode).instance_id for each in (alone, beside))
        assert one == other


@pytest.mark.parametrize("seed", [None, 11])
@pytest.mark.parametrize("name", ["power_of_two", "power_of_two by tag"])
def test_forked_children_choose_apart_whether_seeded_or_not(
    workers: Callable[..., Worker], name: str, seed: int | None
) -> None:
    """Of 4 the better of a pair is the best, second or third with 1/2, 1/3, 1/6: two choices are alike with at most
    0.39, so two of the 7 sequences of 24 with less than 21 x 0.39^24, below 1 in 10^8."""
    worker = workers(BUILDS[name], seed)
    said = set()
    for _ in range(6):
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                os.write(write_end, worker.choices(24).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        said.add(os.read(read_end, 1000).decode())
        os.close(read_end)
        os.close(write_end)
    said.add(worker.choices(24))
    assert len(said) == 7
    assert all(len(each) == 48 for each in said), said
