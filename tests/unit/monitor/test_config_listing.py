"""What a reload changes, in words: old and new values, and never a secret."""

from __future__ import annotations

from typing import Any

from monitor.config import InstanceConfig, MonitorConfig, PoolConfig, changes
from monitor.config.listing import values_of
from tests.unit.monitor.rig import config, with_instance

PREFILL, DECODE = {"role": "prefill"}, {"role": "decode"}


def pools(*given: dict[str, Any]) -> MonitorConfig:
    return config("a", pools=tuple(PoolConfig(**each) for each in given))


def test_nothing_changed_is_nothing_said() -> None:
    assert changes(config("a", score_options={"x": 1}), config("a", score_options={"x": 1})) == []


def test_options_have_their_old_and_new_values() -> None:
    before = config("a", interval=1.0, inflight_kv={"lambda": 0.0})
    after = config("a", interval=0.5, score="weighted_sum", inflight_kv={"lambda": 2.0})
    assert changes(before, after) == [
        "interval: 1.0 -> 0.5",
        "score: token_aware -> weighted_sum",
        "inflight_kv.lambda: 0.0 -> 2.0",
    ]


def test_instances_are_added_removed_and_changed() -> None:
    before = config("a", "b", "c")
    after = with_instance(config("b", "c", "d"), 0, weight=2.0, draining=True, tags=DECODE)
    assert changes(before, after) == [
        "instance a: removed",
        "instance b: tags: none -> role=decode",
        "instance b: weight: 1.0 -> 2.0",
        "instance b: draining: false -> true",
        "instance d: added, http://d.test:8000",
    ]


def test_pools_are_known_by_their_tags() -> None:
    before = pools({"tags": PREFILL}, {"tags": DECODE, "expected_wait": {"throughput": 1000.0}})
    after = pools(
        {"tags": DECODE, "expected_wait": {"throughput": 2500.0}, "score": "expected_wait"},
        {"tags": {"x": "y"}},
    )
    assert changes(before, after) == [
        "pool role=prefill: removed",
        "pool role=decode: expected_wait.throughput: 1000.0 -> 2500.0",
        "pool role=decode: score: nothing -> expected_wait",
        "pool x=y: added",
    ]
    turned = pools({"tags": DECODE}, {"tags": PREFILL})
    assert changes(pools({"tags": PREFILL}, {"tags": DECODE}), turned) == [
        "pools: in the order role=decode, role=prefill"
    ]


def test_secrets_are_never_told() -> None:
    def secret(token: str, password: str) -> MonitorConfig:
        instance = InstanceConfig(id="a", url="http://a", bearer_token=token)
        return MonitorConfig(
            instances=(instance,),
            score_options={"api_key": password, "scale": 1, "inner": {"password": password}},
        )

    said = changes(secret("s3cret", "h1dden"), secret("s4cret", "h2dden"))
    assert said == [
        "score_options.api_key: changed",
        "score_options.inner: a table -> a table",
        "instance a: bearer_token: changed",
    ]


def test_only_what_was_given_to_a_pool_is_listed() -> None:
    pool = PoolConfig(tags=PREFILL, inflight_kv={"lambda": 2.0}, score_options={"scale": 2})
    assert values_of(pool, given=True) == {
        "tags": PREFILL,
        "inflight_kv.lambda": 2.0,
        "score_options.scale": 2,
    }
