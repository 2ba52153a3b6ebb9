"""How pools are written, what is refused by name, and what the environment says of them."""

from __future__ import annotations

import pytest

from proxy_adapter import LeastLoadStrategy, build_instance_strategy
from proxy_adapter.factory import canonical_pools
from proxy_adapter.pools import Pool, read_pools, read_tags, written
from proxy_adapter.strategies.by_tag import ByTagStrategy


def pool(strategy: str, **tags: str) -> Pool:
    return Pool(frozenset(tags.items()), strategy)


@pytest.mark.parametrize(
    ("text", "pools"),
    [
        ("", ()),
        ("  ", ()),
        ("role=decode:p2c", (pool("p2c", role="decode"),)),
        (
            " role = prefill : ll , role=decode+model=m:rr ",
            (pool("ll", role="prefill"), pool("rr", role="decode", model="m")),
        ),
        ("model=org/m:7b:least_load", (pool("least_load", model="org/m:7b"),)),
        ("Role=Decode:LL", (pool("LL", Role="Decode"),)),
    ],
)
def test_a_text_names_pools_with_their_strategies(text: str, pools: tuple[Pool, ...]) -> None:
    assert read_pools(text) == pools
    assert read_pools(written(pools)) == pools


def test_a_mapping_names_the_same_pools_as_a_text() -> None:
    mapping = {"role=prefill": "ll", "model=m+role=decode": "rr"}
    assert read_pools(mapping) == read_pools("role=prefill:ll,role=decode+model=m:rr")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("least_load", "pool 'least_load' is not written as tags and strategy, as in role=decode:least_load"),
        ("a=1:ll,role=decode", "pool 'role=decode' is not written as tags and strategy"),
        ("role=decode:", "pool 'role=decode:' is not written as tags and strategy"),
        (":ll", "pool ':ll' is not written as tags and strategy"),
        ("decode:ll", "pool 'decode': tag 'decode' is not written as key=value"),
        ("=decode:ll", "pool '=decode': tag '=decode' is not written as key=value"),
        ("role=a+:ll", r"pool 'role=a\+': tag '' is not written as key=value"),
        ("role=a+role=b:ll", r"pool 'role=a\+role=b': tag 'role' is given twice, as 'a' and as 'b'"),
        ("a=1:ll,,b=1:ll", "pool 2 of 'a=1:ll,,b=1:ll' is empty"),
        ("a=1+b=2:ll,b=2+a=1:rr", r"pool 'b=2\+a=1' is named twice"),
        (
            "role=prefil:least_load;role=decod:p2c",
            "pool 'role=prefil:least_load;role=decod': tag 'prefil:least_load;role=decod' holds ';': separate pools by commas",
        ),
        ("a=1:ll;", "pool 'a=1': strategy 'll;' holds ';': separate pools by commas"),
        ("a=1:ll b=1:rr", "pool 'a=1:ll b=1': tag '1:ll b=1' holds '=': separate pools by commas"),
        ("a=1:ll\nb=1:rr", r"pool 'a=1:ll\\nb=1': tag '1:ll\\nb=1' holds '\\n': separate pools by commas"),
        ("'a=1:ll'", r"""pool "'a=1": strategy "ll'" holds "'": separate pools by commas"""),
        ("a=1:ll,b=1:fastest", "pool 'b=1': unknown instance strategy: fastest"),
    ],
)
def test_a_malformed_part_is_refused_by_name(text: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        canonical_pools(text)
    monkeypatch.setenv("PROXY_TAG_STRATEGIES", text)
    with pytest.raises(ValueError, match=f"^PROXY_TAG_STRATEGIES: {said}"):
        build_instance_strategy("ll", table=None)


def test_pools_of_another_type_are_refused() -> None:
    for pools in (["role=decode:ll"], 5, {"role=decode": 5}, {("role", "decode"): "ll"}):
        with pytest.raises(
            TypeError, match=r"^pools .*: give a text as 'role=decode:least_load' or a mapping"
        ):
            build_instance_strategy("ll", pools=pools, table=None)  # type: ignore[arg-type]


def test_names_of_pools_may_be_aliases() -> None:
    assert written(canonical_pools("role=decode: P2C ,role=prefill:ll")) == (
        "role=decode:power_of_two,role=prefill:least_load"
    )


def test_pools_come_from_the_argument_then_from_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PROXY_TAG_STRATEGIES", raising=False)
    assert type(build_instance_strategy("ll", table=None)) is LeastLoadStrategy
    monkeypatch.setenv("PROXY_TAG_STRATEGIES", "role=decode:p2c")
    by_variable = build_instance_strategy("ll", table=None)
    assert isinstance(by_variable, ByTagStrategy)
    assert by_variable.name == "by_tag"
    assert {name: said["strategy"] for name, said in by_variable.status()["pools"].items()} == {
        "role=decode": "power_of_two",
        "default": "least_load",
    }
    by_argument = build_instance_strategy(table=None, pools={"role=prefill": "rr"})
    assert list(by_argument.status()["pools"]) == ["role=prefill", "default"]
    for none in ("", None, {}):
        assert type(build_instance_strategy("ll", table=None, pools=none)) is LeastLoadStrategy


def test_the_name_stays_what_it_was_whatever_the_pools() -> None:
    for name in ("role=decode:ll", "role=decode:ll,rr", "by_tag", "ll,"):
        with pytest.raises(ValueError, match=f"^unknown instance strategy: {name}$"):
            build_instance_strategy(name, table=None, pools="role=decode:ll")


def test_tags_of_a_header_are_read_as_those_of_a_pool() -> None:
    assert read_tags(" role = decode , model=m ", ",") == {"role": "decode", "model": "m"}
    assert read_tags("role=decode,role=decode", ",") == {"role": "decode"}
    with pytest.raises(ValueError, match=r"^tag 'decode' is not written as key=value$"):
        read_tags("decode", ",")
