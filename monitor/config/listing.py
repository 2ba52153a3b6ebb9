"""What a configuration says, key by key, and what another one says otherwise: for people, so without any secret."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, SecretStr

from monitor.config.address import shown
from monitor.config.fields import key_of
from monitor.config.joint import MonitorConfig
from monitor.config.problems import shown_value
from monitor.config.scoring import PoolConfig

_HIDDEN = "***"
#: Keys of a mode of another package whose text may be a secret: nobody here knows what they are.
_SECRET = re.compile("token|secret|passw|credential|key|auth", re.IGNORECASE)


def values_of(model: BaseModel, *, given: bool = False) -> dict[str, Any]:
    """The values by key path (``expected_wait.throughput``), sections and ``score_options`` taken apart, instances and
    pools left out. ``given``: only those that were given."""
    found: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        if name in ("instances", "pools") or (given and name not in model.model_fields_set):
            continue
        key, value = key_of(name, field), getattr(model, name)
        if isinstance(value, BaseModel):
            found.update({f"{key}.{below}": each for below, each in values_of(value, given=given).items()})
        elif name == "score_options":
            found.update({f"{key}.{below}": each for below, each in value.items()})
        else:
            found[key] = value
    return found


def written(key: str, value: Any) -> str:
    """``value`` of ``key`` as a person may read it."""
    if isinstance(value, SecretStr) or (
        key.startswith("score_options.") and isinstance(value, str) and _SECRET.search(key.partition(".")[2])
    ):
        return _HIDDEN
    if value is None or value == "":
        return "nothing"
    if key == "tags":
        return tags_text(value) or "none"
    return shown(value) if isinstance(value, str) else shown_value(value)


def tags_text(tags: Mapping[str, str]) -> str:
    """``role=decode+model=m``."""
    return "+".join(f"{key}={value}" for key, value in sorted(tags.items()))


def changes(before: MonitorConfig, after: MonitorConfig) -> list[str]:
    """One line for each option, pool and instance that is another one in ``after``."""
    found = list(_changed("", values_of(before), values_of(after)))
    pools = [{tags_text(pool.tags): pool for pool in config.pools} for config in (before, after)]
    found += _members("pool", *pools)
    if list(pools[0]) != list(pools[1]) and sorted(pools[0]) == sorted(pools[1]):
        found.append(f"pools: in the order {', '.join(pools[1])}")
    found += _members(
        "instance", *({each.id: each for each in config.instances} for config in (before, after))
    )
    return found


def _members(what: str, before: Mapping[str, BaseModel], after: Mapping[str, BaseModel]) -> Iterator[str]:
    for name in before:
        if name not in after:
            yield f"{what} {name}: removed"
    for name, member in after.items():
        if name not in before:
            url = getattr(member, "url", None)
            yield f"{what} {name}: added{f', {shown(url)}' if url else ''}"
        else:
            # Of a pool only what it was given: the rest is as the common options say.
            given = isinstance(member, PoolConfig)
            yield from _changed(
                f"{what} {name}: ", values_of(before[name], given=given), values_of(member, given=given)
            )


def _changed(prefix: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for key in {**before, **after}:
        old, new = before.get(key), after.get(key)
        if old != new or type(old) is not type(new):
            was, becomes = written(key, old), written(key, new)
            yield f"{prefix}{key}: " + ("changed" if _HIDDEN in (was, becomes) else f"{was} -> {becomes}")
