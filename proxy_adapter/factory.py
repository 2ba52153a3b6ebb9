"""Strategies by name."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping

from proxy_adapter.contract import Strategy
from proxy_adapter.pools import Pool, read_pools
from proxy_adapter.strategies.base import CountingStrategy
from proxy_adapter.strategies.by_tag import ByTagStrategy
from proxy_adapter.strategies.least_load import LeastLoadStrategy
from proxy_adapter.strategies.power_of_two import PowerOfTwoStrategy
from proxy_adapter.strategies.round_robin import RoundRobinStrategy
from score_table.location import default_table

STRATEGY_VARIABLE = "PROXY_INSTANCE_STRATEGY"
DEFAULT_STRATEGY = "round_robin"
#: Pools with strategies of their own, as :mod:`proxy_adapter.pools` reads them.
POOLS_VARIABLE = "PROXY_TAG_STRATEGIES"

STRATEGIES: dict[str, type[CountingStrategy]] = {
    strategy.name: strategy for strategy in (RoundRobinStrategy, LeastLoadStrategy, PowerOfTwoStrategy)
}
ALIASES = {
    "rr": "round_robin",
    "round-robin": "round_robin",
    "ll": "least_load",
    "least-load": "least_load",
    "p2c": "power_of_two",
    "power-of-two": "power_of_two",
}

#: Stands for what the environment says: the table (else /loadboard), the pools (else none).
FROM_ENVIRONMENT = "<environment>"


def canonical_name(name: str) -> str:
    """The canonical name. ``ValueError("unknown instance strategy: <name>")`` for any other."""
    key = name.strip().lower()
    key = ALIASES.get(key, key)
    if key not in STRATEGIES:
        raise ValueError(f"unknown instance strategy: {name}")
    return key


def canonical_pools(written: str | Mapping[str, str]) -> tuple[Pool, ...]:
    """The pools of a text or mapping, with canonical names. ``ValueError`` names the part that is wrong."""
    pools = []
    for pool in read_pools(written):
        try:
            pools.append(pool._replace(strategy=canonical_name(pool.strategy)))
        except ValueError as error:
            raise ValueError(f"pool {pool.text!r}: {error}") from None
    return tuple(pools)


def build_instance_strategy(
    name: str | None = None,
    *,
    pools: str | Mapping[str, str] | None = FROM_ENVIRONMENT,
    table: str | None = FROM_ENVIRONMENT,
    rng: random.Random | None = None,
) -> Strategy:
    """The strategy of that name or alias (stripped, case-insensitive).

    ``None`` takes ``PROXY_INSTANCE_STRATEGY``, else ``round_robin``. ``pools`` name strategies for instances of
    certain tags, as ``"role=prefill:least_load,role=decode:power_of_two"`` or as a mapping of tags to names: with any,
    the answer is a :class:`.ByTagStrategy` whose default has that name. By default ``PROXY_TAG_STRATEGIES``, else
    none. ``table`` is a table's name or path, ``None`` to work without one; by default ``LOADBOARD_TABLE``, else
    ``/loadboard``. The table need not exist. ``ValueError`` for an unknown strategy, malformed pools or a malformed table
    name; ``TypeError`` for pools of another type.
    """
    if name is None:
        name = os.environ.get(STRATEGY_VARIABLE) or DEFAULT_STRATEGY
    strategy = STRATEGIES[canonical_name(name)]
    if table == FROM_ENVIRONMENT:
        table = default_table()
    known = (
        _pools_of_environment()
        if pools == FROM_ENVIRONMENT
        else canonical_pools("" if pools is None else pools)
    )
    if not known:
        return strategy(table=table, rng=rng)
    return ByTagStrategy(
        [(pool, STRATEGIES[pool.strategy]) for pool in known], strategy, table=table, rng=rng
    )


def _pools_of_environment() -> tuple[Pool, ...]:
    try:
        return canonical_pools(os.environ.get(POOLS_VARIABLE, ""))
    except ValueError as error:
        raise ValueError(f"{POOLS_VARIABLE}: {error}") from None
