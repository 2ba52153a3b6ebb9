"""The strategy contract: names, messages, and the rule without a table."""

from __future__ import annotations

import logging
import math
from collections import Counter

import pytest

from proxy_adapter import (
    InstanceLike,
    LeastLoadStrategy,
    PowerOfTwoStrategy,
    RoundRobinStrategy,
    build_instance_strategy,
)
from proxy_adapter.factory import ALIASES, STRATEGIES
from tests.unit.proxy_adapter.instances import Load, Loaded, plain

NAMES = {
    "round_robin": RoundRobinStrategy,
    "rr": RoundRobinStrategy,
    "round-robin": RoundRobinStrategy,
    "least_load": LeastLoadStrategy,
    "ll": LeastLoadStrategy,
    "least-load": LeastLoadStrategy,
    "power_of_two": PowerOfTwoStrategy,
    "p2c": PowerOfTwoStrategy,
    "power-of-two": PowerOfTwoStrategy,
}


@pytest.mark.parametrize("name", sorted(NAMES))
@pytest.mark.parametrize("spelling", [str, str.upper, lambda name: f"  {name}\n"])
def test_names_and_aliases_lead_to_the_canonical_strategy(name: str, spelling: object) -> None:
    strategy = build_instance_strategy(spelling(name), table=None)  # type: ignore[operator]
    assert type(strategy) is NAMES[name]
    assert strategy.name in STRATEGIES
    assert strategy.name == NAMES[name].name


def test_the_aliases_are_exactly_these() -> None:
    assert set(ALIASES) | set(STRATEGIES) == set(NAMES)


@pytest.mark.parametrize("name", ["kv_aware", "random", "", "least load"])
def test_an_unknown_name_is_refused_by_name(name: str) -> None:
    with pytest.raises(ValueError, match=f"^unknown instance strategy: {name}$"):
        build_instance_strategy(name, table=None)


def test_the_environment_chooses_and_the_default_stays_round_robin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROXY_INSTANCE_STRATEGY", raising=False)
    assert build_instance_strategy(table=None).name == "round_robin"
    monkeypatch.setenv("PROXY_INSTANCE_STRATEGY", "LL")
    assert build_instance_strategy(table=None).name == "least_load"
    assert build_instance_strategy("p2c", table=None).name == "power_of_two"


@pytest.fixture(params=sorted(STRATEGIES))
def any_strategy(request: pytest.FixtureRequest) -> object:
    return build_instance_strategy(request.param, table=None)


def test_an_empty_list_raises_no_instances(any_strategy: RoundRobinStrategy) -> None:
    with pytest.raises(RuntimeError, match=r"^no instances$"):
        any_strategy.select([])
    with pytest.raises(RuntimeError, match=r"^no instances$"):
        any_strategy.dispatch([])


def test_a_lone_instance_is_chosen(any_strategy: RoundRobinStrategy) -> None:
    lone = plain(1)
    assert any_strategy.select(lone) is lone[0]
    assert isinstance(lone[0], InstanceLike)


def test_nothing_known_rotates_evenly_over_all(any_strategy: RoundRobinStrategy) -> None:
    instances = plain(5)
    counts = Counter(any_strategy.select(instances).instance_id for _ in range(1000))
    assert set(counts) == {"i0", "i1", "i2", "i3", "i4"}
    if any_strategy.name == "power_of_two":
        # Binomial(1000, 1/5): mean 200, sigma 12.6; five sigma.
        assert all(137 <= count <= 263 for count in counts.values()), counts
    else:
        assert set(counts.values()) == {200}


def test_two_workers_do_not_start_at_the_same_instance() -> None:
    """40 strategies over 5 instances: all at one start has probability 5^-39."""
    instances = plain(5)
    firsts = {build_instance_strategy("ll", table=None).select(instances).instance_id for _ in range(40)}
    assert len(firsts) > 1


def loaded(*inflights: object) -> list[Loaded]:
    return [Loaded(f"i{n}", load=Load(inflight)) for n, inflight in enumerate(inflights)]


def test_the_lower_inflight_wins() -> None:
    strategy = build_instance_strategy("least_load", table=None)
    instances = loaded(5, 2, 9)
    assert {strategy.select(instances).instance_id for _ in range(10)} == {"i1"}


def test_ties_rotate_and_are_not_always_the_first() -> None:
    strategy = build_instance_strategy("least_load", table=None)
    counts = Counter(strategy.select(loaded(3, 3, 7, 3)).instance_id for _ in range(300))
    assert counts == {"i0": 100, "i1": 100, "i3": 100}


@pytest.mark.parametrize("unknown", [None, math.nan, math.inf, -math.inf, -1, "many", True, object()])
def test_unknown_is_not_zero_known_come_first(unknown: object) -> None:
    strategy = build_instance_strategy("least_load", table=None)
    assert {strategy.select(loaded(unknown, 50)).instance_id for _ in range(6)} == {"i1"}


@pytest.mark.parametrize("unknown", [None, math.nan, "x"])
def test_all_unknown_rotates_over_all(unknown: object) -> None:
    strategy = build_instance_strategy("least_load", table=None)
    counts = Counter(strategy.select(loaded(unknown, unknown, unknown)).instance_id for _ in range(30))
    assert counts == {"i0": 10, "i1": 10, "i2": 10}


def test_qps_breaks_ties_of_inflight_only() -> None:
    strategy = build_instance_strategy("least_load", table=None)
    tied = [Loaded("a", load=Load(4, 9.0)), Loaded("b", load=Load(4, 1.0)), Loaded("c", load=Load(5, 0.0))]
    assert {strategy.select(tied).instance_id for _ in range(6)} == {"b"}


def test_instances_that_only_tell_qps_are_compared_by_it() -> None:
    strategy = build_instance_strategy("least_load", table=None)
    instances = [Loaded("a", load=Load(None, 9.0)), Loaded("b", load=Load(None, 1.0)), Loaded("c", load=None)]
    assert {strategy.select(instances).instance_id for _ in range(6)} == {"b"}


def test_queue_depths_of_the_hint_add_to_inflight_and_stand_in_for_it() -> None:
    strategy = build_instance_strategy("least_load", table=None)
    hint = {"queue_depths": {"per_instance": {"i0": 9, "i1": 0}}}
    assert {strategy.select(loaded(1, 5), hint).instance_id for _ in range(6)} == {"i1"}
    assert {strategy.select(plain(2), hint).instance_id for _ in range(6)} == {"i1"}


@pytest.mark.parametrize(
    "hint",
    [None, 7, "x", {}, {"queue_depths": None}, {"queue_depths": {"per_instance": 3}}, {"queue_depths": {}}],
)
def test_a_hint_of_any_shape_never_raises(any_strategy: RoundRobinStrategy, hint: object) -> None:
    assert any_strategy.select(plain(3), hint).instance_id in ("i0", "i1", "i2")


def test_load_may_be_a_mapping() -> None:
    strategy = build_instance_strategy("least_load", table=None)
    instances = [Loaded("a", load={"inflight": 3}), Loaded("b", load={"inflight": 1})]
    assert strategy.select(instances).instance_id == "b"


def test_objects_that_break_their_own_contract_do_not_break_a_pick(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        @property
        def load(self) -> object:
            raise ZeroDivisionError

    strategy = build_instance_strategy("least_load", table=None)
    with caplog.at_level(logging.ERROR, "loadboard"):
        picks = {id(strategy.select([Broken(), Broken()])) for _ in range(4)}  # type: ignore[type-var]
    assert picks
    assert strategy.status()["degraded_picks"]["error"] == 4
    assert len(caplog.records) == 1, "logged once"


def test_a_dispatch_without_a_table_is_a_guard_that_does_nothing() -> None:
    strategy = build_instance_strategy("least_load", table=None)
    with strategy.dispatch(plain(2)) as d:
        d.first_token()
        assert d.instance.instance_id in ("i0", "i1")
    d.fail()
    d.release()
    assert strategy.status()["table"] is None
