"""The whole configuration, and the rules between its parts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from monitor.config.model import InstanceConfig, Settings
from monitor.config.problems import Problem
from monitor.config.scoring import PoolConfig, Scoring

#: The options from which the least staleness follows.
_PACE = frozenset({"interval", "timeout", "jitter", "staleness"})
_ROUNDING = 1e-9


class MonitorConfig(Settings):
    """All options and the instances, checked against each other. Immutable; a reload makes a new one."""

    instances: tuple[InstanceConfig, ...] = Field(strict=False)
    pools: tuple[PoolConfig, ...] = Field(default=(), strict=False)

    def pool_of(self, instance: InstanceConfig) -> int | None:
        """The place of the pool that has ``instance``; ``None`` for the one of all the rest."""
        return next((index for index, pool in enumerate(self.pools) if pool.matches(instance.tags)), None)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> MonitorConfig:
        found = conflicts(self, dict(enumerate(self.instances)), dict(enumerate(self.pools)))
        if found:
            sentence = "; ".join(f"{problem.key_path}: {problem.message}" for problem in found)
            raise PydanticCustomError("fault", "{sentence}", {"sentence": sentence})
        return self


def conflicts(
    settings: Settings,
    instances: Mapping[int, InstanceConfig],
    pools: Mapping[int, PoolConfig],
    bad: Collection[str] = (),
) -> list[Problem]:
    """What does not fit together. ``instances`` and ``pools`` are those without faults of their own, by their
    place in the list; ``bad`` are the keys of ``settings`` that had a fault and hold their default instead."""
    found = _same_ids(instances) + _same_tags(pools) + _first_tokens_that_count_against(settings, pools, bad)
    if instances and max(instances) + 1 > settings.slots and "slots" not in bad:
        count = max(instances) + 1
        found.append(
            Problem(
                "slots",
                f"a table of {settings.slots} slots cannot hold {count} instances: "
                f"set slots to at least {math.ceil(count / 16) * 16}",
            )
        )
    if not _PACE & set(bad):
        found += _too_short_staleness(settings, instances)
    return found


def _same_ids(instances: Mapping[int, InstanceConfig]) -> list[Problem]:
    found = []
    first: dict[str, int] = {}
    for index, instance in instances.items():
        other = first.setdefault(instance.id, index)
        if other != index:
            found.append(
                Problem(
                    f"instances[{index}].id",
                    f"{instance.id!r} is already the id of instances[{other}]: give each its own id, "
                    "or remove one if they are the same server",
                )
            )
    return found


def _same_tags(pools: Mapping[int, PoolConfig]) -> list[Problem]:
    found = []
    first: dict[frozenset[tuple[str, str]], int] = {}
    for index, pool in pools.items():
        other = first.setdefault(frozenset(pool.tags.items()), index)
        if other != index:
            found.append(
                Problem(f"pools[{index}].tags", f"are those of pools[{other}] too: put both pools into one")
            )
    return found


def _first_tokens_that_count_against(
    settings: Settings, pools: Mapping[int, PoolConfig], bad: Collection[str]
) -> list[Problem]:
    """Weights with which an instance would look the better, the more prompts wait there."""
    section = "weighted_sum"
    if any(key.startswith(section) for key in bad):
        return []
    chosen: dict[str, Scoring] = {section: settings}
    chosen |= {f"pools[{index}].{section}": pool.over(settings) for index, pool in pools.items()}
    found: list[Problem] = []
    for path, scoring in chosen.items():
        weights = scoring.weighted_sum
        # What the common options have wrong is told once.
        if weights.decode_weight > weights.prefill_weight and (path == section or not found):
            found.append(
                Problem(
                    f"{path}.decode_weight",
                    f"{weights.decode_weight:g} is above prefill_weight, {weights.prefill_weight:g}: an instance "
                    "would look better the more prompts wait there; lower it, or raise prefill_weight",
                )
            )
    return found


def _too_short_staleness(settings: Settings, instances: Mapping[int, InstanceConfig]) -> list[Problem]:
    """A healthy instance may be sampled as rarely as every interval*(1+jitter), plus one slow answer."""
    found = []
    checked = {"staleness": (settings.interval, settings.timeout)}
    for index, instance in instances.items():
        if instance.interval is not None or instance.timeout is not None:
            key = "timeout" if instance.interval is None else "interval"
            checked[f"instances[{index}].{key}"] = (
                settings.interval_of(instance),
                settings.timeout_of(instance),
            )
    for key_path, (interval, timeout) in checked.items():
        least = interval * (1 + settings.jitter) + timeout
        if settings.staleness + _ROUNDING < least:
            found.append(
                Problem(
                    key_path,
                    f"staleness = {settings.staleness:g} s is shorter than interval*(1+jitter) + timeout = "
                    f"{interval:g}*(1+{settings.jitter:g}) + {timeout:g} = {least:g} s, so healthy instances "
                    f"would count as stale: set staleness to at least {math.ceil(least * 1000) / 1000:g}, "
                    "or lower interval or timeout",
                )
            )
    return found
