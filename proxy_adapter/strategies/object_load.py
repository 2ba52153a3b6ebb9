"""The rule without a table: what the instance objects themselves and the hint say, else rotation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from proxy_adapter.contract import InstanceLike

_LOAD_KNOWN, _RATE_KNOWN, _NOTHING_KNOWN = 0, 1, 2


def choose(instances: Sequence[InstanceLike], hint: Any, cursor: int, positions: Sequence[int]) -> int:
    """One of ``positions``: known before unknown, then the lowest inflight plus queue depth, then the lower
    qps_1m, then the first at or after ``cursor`` (cyclic by position)."""
    depths = _queue_depths(hint)
    keyed = [(_key(instances[position], depths), position) for position in positions]
    best = min(key for key, _ in keyed)
    tied = [position for key, position in keyed if key == best]
    return min(tied, key=lambda position: (position < cursor, position))


def _key(instance: InstanceLike, depths: Mapping[str, Any]) -> tuple[int, float, float]:
    load = getattr(instance, "load", None)
    inflight = _number(_part(load, "inflight"))
    depth = _number(depths.get(str(getattr(instance, "instance_id", None)))) if depths else None
    rate = _number(_part(load, "qps_1m"))
    if inflight is not None or depth is not None:
        return _LOAD_KNOWN, (inflight or 0.0) + (depth or 0.0), math.inf if rate is None else rate
    if rate is not None:
        return _RATE_KNOWN, 0.0, rate
    return _NOTHING_KNOWN, 0.0, 0.0


def _part(load: Any, name: str) -> Any:
    return load.get(name) if isinstance(load, Mapping) else getattr(load, name, None)


def _number(value: Any) -> float | None:
    """A finite, non-negative number; anything else is unknown, not zero."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _queue_depths(hint: Any) -> Mapping[str, Any]:
    if isinstance(hint, Mapping):
        depths = hint.get("queue_depths")
        if isinstance(depths, Mapping):
            per_instance = depths.get("per_instance")
            if isinstance(per_instance, Mapping):
                return per_instance
    return {}
