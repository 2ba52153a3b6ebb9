"""The guard of one dispatched request, as strategies give it out."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

from score_table.ledger import Guard as Dispatch

__all__ = ["Dispatch", "Uncounted"]

Picked = TypeVar("Picked")


class Uncounted(Generic[Picked]):
    """A guard of a strategy that works without a table: there is nothing to count in."""

    __slots__ = ("__weakref__", "instance")

    def __init__(self, instance: Picked) -> None:
        self.instance = instance

    def first_token(self) -> None:
        """Nothing to take back."""

    def fail(self, error: BaseException | None = None) -> None:
        """Nothing to hold."""

    def release(self) -> None:
        """Nothing to take back."""

    def __enter__(self) -> Uncounted[Picked]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Nothing to take back."""

    async def __aenter__(self) -> Uncounted[Picked]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Nothing to take back."""
