"""Ways to use the product, by the name of the policy that they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.virtual.product import Setting
from monitor.config.score_sections import TokenAware
from monitor.scores import MODES

USUAL = "token_aware"

_COUNT: Mapping[str, Any] = {"score": "inflight_kv", "inflight_kv": {"lambda": 0.0}}

#: Score modes other than the usual one, with their usual options.
OTHER_MODES = tuple(mode for mode in MODES if mode != USUAL)

_NAMED: dict[str, Setting] = {
    USUAL: Setting(),
    **{mode: Setting(options={"score": mode}) for mode in OTHER_MODES},
    "count": Setting(options=_COUNT),
    "blind": Setting(tells=False),
    "select": Setting(selects=True),
    "exact": Setting(exact=True),
    "power_of_two": Setting(strategy="power_of_two"),
    "rotation": Setting(strategy="round_robin"),
    "tick_50ms": Setting(tick=0.05),
    "avoid": Setting(options={"unknown": "avoid"}),
    "weighed": Setting(weighs=True),
    "limit_waiting": Setting(options={"overload_waiting": 4}),
    "limit_kv": Setting(options={"overload_kv": 0.9}),
}

#: Values of the usual score's weights to try, its start values among them.
WEIGHTS: dict[str, tuple[float, ...]] = {
    "prefill_weight": (1.0, 3.0, 10.0, 30.0),
    "kv_weight": (1.5, 5.0, 15.0, 50.0),
    "slots_weight": (0.0, 5.0, 20.0),
}


def _weighted() -> dict[str, Setting]:
    """One weight away from its start value at a time, then all at their smallest and all at their largest."""
    usual = TokenAware()
    tried = [
        {weight: value}
        for weight, values in WEIGHTS.items()
        for value in values
        if value != getattr(usual, weight)
    ]
    tried += [{weight: extreme(values) for weight, values in WEIGHTS.items()} for extreme in (min, max)]
    return {
        " ".join([USUAL, *(f"{weight}={value:g}" for weight, value in weights.items())]): Setting(
            options={"token_aware": weights}
        )
        for weights in tried
    }


#: The usual score with other weights, by name.
WEIGHTED = _weighted()

SETTINGS: dict[str, Setting] = {**_NAMED, **WEIGHTED}
