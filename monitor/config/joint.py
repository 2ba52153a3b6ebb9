"""The whole configuration, and the rules between its parts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from monitor.config.model import InstanceConfig, Settings
from monitor.config.problems import Problem

#: The options from which the least staleness follows.
_PACE = frozenset({"interval", "timeout", "jitter", "staleness"})
_ROUNDING = 1e-9


class MonitorConfig(Settings):
    """All options and the instances, checked against each other. Immutable; a reload makes a new one."""

    instances: tuple[InstanceConfig, ...] = Field(strict=False)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> MonitorConfig:
        found = conflicts(self, dict(enumerate(self.instances)))
        if found:
            sentence = "; ".join(f"{problem.key_path}: {problem.message}" for problem in found)
            raise PydanticCustomError("fault", "{sentence}", {"sentence": sentence})
        return self


def conflicts(
    settings: Settings, instances: Mapping[int, InstanceConfig], bad: Collection[str] = ()
) -> list[Problem]:
    """What does not fit together. ``instances`` are those without faults of their own, by their place in the
    list; ``bad`` are the keys of ``settings`` that had a fault and hold their default instead."""
    found = _same_ids(instances)
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
