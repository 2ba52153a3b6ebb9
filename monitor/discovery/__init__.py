"""Where instances come from. One source per module; each only says which instances there are now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from monitor.config import InstanceConfig


@dataclass(frozen=True)
class Discovered:
    """One instance that a source knows. Two are the same instance if their ``id`` is the same."""

    id: str
    url: str  #: base URL for proxies, with its port
    tags: Mapping[str, str]
    config: InstanceConfig  #: how it is polled


class Source(Protocol):
    """A source of instances."""

    @property
    def name(self) -> str:
        """The source's name in logs."""

    def current(self) -> Sequence[Discovered]:
        """The instances there are now, each id once. Never blocks and never raises."""
