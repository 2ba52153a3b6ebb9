"""What a strategy is asked and what it asks of an instance: the contract of CacheRoute, kept exactly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from proxy_adapter.dispatch import Dispatch
from score_table.explanation import Explanation


@runtime_checkable
class InstanceLike(Protocol):
    """One inference instance as the proxy knows it.

    ``load`` may exist, with ``inflight`` and ``qps_1m``, each a number or ``None``; it is only read.
    """

    @property
    def instance_id(self) -> str:
        """Its id; the same as in the monitor's configuration, where it is configured there."""

    @property
    def host(self) -> str:
        """Name or address without brackets."""

    @property
    def port(self) -> int:
        """TCP port."""


Instance = TypeVar("Instance", bound=InstanceLike)

NO_INSTANCES = "no instances"


class Strategy(Protocol):
    """Chooses instances. Thread-safe, never blocks, may be called on the event loop."""

    name: str

    def select(self, instances: Sequence[Instance], hint: Any = None) -> Instance:
        """One of ``instances``. ``RuntimeError("no instances")`` if there is none; otherwise never raises.

        ``hint`` may be a mapping; ``hint["queue_depths"]["per_instance"]`` maps ids to waiting requests.
        """

    def dispatch(
        self, instances: Sequence[Instance], hint: Any = None, *, prompt_tokens: int | None = None
    ) -> Dispatch[Instance]:
        """As :meth:`select`, and count the request in the same step until the guard is released.

        ``prompt_tokens``: length of the prompt; ``None`` counts the mean of those in the instance's pool.
        ``hint["stream"]`` true says that ``first_token()`` will be called.
        """

    def why(self, instances: Sequence[Instance], hint: Any = None) -> Explanation:
        """Which of ``instances`` :meth:`select` would take now, and why. Neither picks nor counts."""

    def status(self) -> dict[str, Any]:
        """What the strategy works with now: table, mode, problem, picks and degraded picks by reason."""

    def close(self) -> None:
        """Give back what this process holds of the table. The strategy goes on without a table."""
