"""Instance objects as a proxy has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Load:
    """The optional ``load`` of an instance."""

    inflight: Any = None
    qps_1m: Any = None


@dataclass(eq=False)
class Plain:
    """An instance without ``load``."""

    instance_id: str
    host: str = "127.0.0.1"
    port: int = 0


@dataclass(eq=False)
class Loaded(Plain):
    """An instance with ``load``."""

    load: Any = None


def plain(count: int) -> list[Plain]:
    """Instances as :func:`tests.tables.make_table` names them."""
    return [Plain(f"i{slot}", "127.0.0.1", 9000 + slot) for slot in range(count)]
