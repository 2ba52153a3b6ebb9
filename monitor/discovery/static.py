"""The instances that the configuration lists."""

from __future__ import annotations

from collections.abc import Sequence

from monitor.config import InstanceConfig
from monitor.discovery import Discovered


class StaticSource:
    """A :class:`monitor.discovery.Source` that never changes; a reload makes a new one."""

    name = "static"

    def __init__(self, instances: Sequence[InstanceConfig]) -> None:
        self._current = tuple(
            Discovered(instance.id, instance.url, instance.tags, instance) for instance in instances
        )

    def current(self) -> Sequence[Discovered]:
        """The configured instances in the configuration's order."""
        return self._current
