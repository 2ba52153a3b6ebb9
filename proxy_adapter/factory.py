"""Strategies by name."""

from __future__ import annotations

import os
import random

from proxy_adapter.strategies.base import CountingStrategy
from proxy_adapter.strategies.least_load import LeastLoadStrategy
from proxy_adapter.strategies.power_of_two import PowerOfTwoStrategy
from proxy_adapter.strategies.round_robin import RoundRobinStrategy
from score_table.location import default_table

STRATEGY_VARIABLE = "PROXY_INSTANCE_STRATEGY"
DEFAULT_STRATEGY = "round_robin"

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

#: Stands for "the table named by the environment, else /loadboard".
FROM_ENVIRONMENT = "<environment>"


def canonical_name(name: str) -> str:
    """The canonical name. ``ValueError("unknown instance strategy: <name>")`` for any other."""
    key = name.strip().lower()
    key = ALIASES.get(key, key)
    if key not in STRATEGIES:
        raise ValueError(f"unknown instance strategy: {name}")
    return key


def build_instance_strategy(
    name: str | None = None,
    *,
    table: str | None = FROM_ENVIRONMENT,
    rng: random.Random | None = None,
) -> CountingStrategy:
    """The strategy of that name or alias (stripped, case-insensitive).

    ``None`` takes ``PROXY_INSTANCE_STRATEGY``, else ``round_robin``. ``table`` is a table's name or path,
    ``None`` to work without one; by default ``LOADBOARD_TABLE``, else ``/loadboard``. The table need not
    exist. ``ValueError`` for an unknown strategy or a malformed table name.
    """
    if name is None:
        name = os.environ.get(STRATEGY_VARIABLE) or DEFAULT_STRATEGY
    strategy = STRATEGIES[canonical_name(name)]
    return strategy(table=default_table() if table == FROM_ENVIRONMENT else table, rng=rng)
