"""The guard of one dispatched request: counted from before the send to the end, taken back exactly once."""

from __future__ import annotations

from types import TracebackType
from typing import Generic, TypeVar

from proxy_adapter.failures import is_failure, was_refused
from score_table.charge import Charge
from score_table.lane import Lane

Picked = TypeVar("Picked")


class Dispatch(Generic[Picked]):
    """Made by ``strategy.dispatch``. Use it with ``with`` or ``async with``, or call :meth:`release`.

    Leaving the block normally, by a cancellation or by an exception that is not the instance's fault releases
    it; by a transport error, a time-out or a 5xx it counts as :meth:`fail`. A guard that is dropped releases
    itself. Every call after the first release or failure does nothing.
    """

    # ``_over`` is set after the change is on its way: an exception out of a signal handler in between leaves a
    # guard that will release again, and to release twice is harmless.
    __slots__ = ("__weakref__", "_charge", "_lane", "_over", "instance")

    def __init__(self, instance: Picked, lane: Lane | None, charge: Charge | None) -> None:
        self.instance = instance
        self._lane = lane
        self._charge = charge
        self._over = lane is None or charge is None

    def first_token(self) -> None:
        """The first token came back: the prefill part of the price is taken back. Later calls do nothing."""
        if not self._over and self._lane is not None and self._charge is not None:
            self._lane.first_token(self._charge)

    def fail(self, error: BaseException | None = None) -> None:
        """The instance failed the request: its price is kept for the hold time (10 s), then taken back.

        Where ``error`` is a refused connection the monitor is asked to look at the instance at once.
        """
        if not self._over and self._lane is not None and self._charge is not None:
            self._lane.fail(self._charge, suspect=was_refused(error))
            self._over = True

    def release(self) -> None:
        """The request is over."""
        if not self._over and self._lane is not None and self._charge is not None:
            self._lane.close_charge(self._charge)
            self._over = True

    def _leave(self, error: BaseException | None) -> None:
        if error is not None and is_failure(error):
            self.fail(error)
        else:
            self.release()

    def __enter__(self) -> Dispatch[Picked]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    async def __aenter__(self) -> Dispatch[Picked]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)

    def __del__(self) -> None:
        # May run in any thread, inside any other step: it only appends.
        if not self._over and self._lane is not None and self._charge is not None:
            self._lane.close_charge_later(self._charge)
            self._over = True
