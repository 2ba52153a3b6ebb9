"""The guard of the ledger in Python."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from score_table.ledger.charge import Charge
from score_table.ledger.failures import is_failure, was_refused

Picked = TypeVar("Picked")


def _judged(judge: Callable[[Any], bool], error: BaseException | None) -> bool:
    """What ``judge`` says of ``error``. Attributes of exceptions may raise; then nothing is known."""
    try:
        return error is not None and judge(error)
    except Exception:
        return False


class Charges(Protocol):
    """What a guard does with its charge."""

    def first_token(self, charge: Charge) -> None: ...
    def fail(self, charge: Charge, *, suspect: bool) -> None: ...
    def close(self, charge: Charge) -> None: ...
    def close_later(self, charge: Charge) -> None: ...


class PlainGuard(Generic[Picked]):
    """See :class:`score_table.ledger.rules.Guard`."""

    # ``_over`` is set after the change is on its way: an exception out of a signal handler in between leaves a
    # guard that will release again, and to release twice is harmless.
    __slots__ = ("__weakref__", "_charge", "_charges", "_over", "instance")

    def __init__(self, instance: Picked, charges: Charges, charge: Charge) -> None:
        self.instance = instance
        self._charges = charges
        self._charge = charge
        self._over = False

    def __reduce__(self) -> NoReturn:
        raise TypeError("a guard cannot be copied or pickled: a request ends once")

    def first_token(self) -> None:
        if not self._over:
            self._charges.first_token(self._charge)

    def fail(self, error: BaseException | None = None) -> None:
        if not self._over:
            self._charges.fail(self._charge, suspect=_judged(was_refused, error))
            self._over = True

    def release(self) -> None:
        if not self._over:
            self._charges.close(self._charge)
            self._over = True

    def _leave(self, error: BaseException | None) -> None:
        if error is not None and _judged(is_failure, error):
            self.fail(error)
        else:
            self.release()

    def __enter__(self) -> PlainGuard[Picked]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    async def __aenter__(self) -> PlainGuard[Picked]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    def __del__(self) -> None:
        # May run in any thread, inside any other step: it only appends.
        if not getattr(self, "_over", True):
            self._charges.close_later(self._charge)
            self._over = True
