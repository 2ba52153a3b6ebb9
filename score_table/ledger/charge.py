"""What one request counts, and where; the instance it counts at. For the ledger in Python."""

from __future__ import annotations

from enum import IntEnum

from score_table.identity import Prices
from score_table.layout import Reason


class Phase(IntEnum):
    """How far a charge has come; it only goes forward."""

    NEW = 0  #: not counted yet
    PREFILL = 1  #: counted with its prefill part
    DECODE = 2  #: counted without it
    CLOSED = 3  #: taken back, or void


class PlainSeat:
    """See :class:`score_table.ledger.rules.Seat`."""

    __slots__ = (
        "__weakref__",
        "guessed",
        "hold_ns",
        "host",
        "incarnation",
        "key",
        "open",
        "port",
        "prices",
        "prompt_tokens",
        "slot",
        "turn",
        "units",
        "version",
    )

    def __init__(self, key: str, host: str | None, port: int | None, hold_ns: int) -> None:
        self.key = key
        self.host = host
        self.port = port
        self.hold_ns = hold_ns
        self.turn = 0  #: of picks that nobody ends
        self.version = 0
        self.slot: int | None = None
        self.incarnation = 0  #: grows when the id is given to another address
        self.prices = Prices(0.0, 0.0, 0.0)
        self.units = 0
        self.open = 0
        self.prompt_tokens = 0.0
        self.guessed = False

    def settle(
        self, version: int, slot: int | None, request: float, prompt_token: float, kv_token: float
    ) -> None:
        """See :meth:`score_table.ledger.rules.Seat.settle`."""
        self.slot = slot
        self.prices = Prices(request, prompt_token, kv_token)
        self.version = version


class Charge:
    """One request's count, at the instance of ``seat``, from phase ``begins`` on.

    ``slot`` is ``None`` where it has none, ``home`` the claim whose rows hold the count (``None``: no rows do).
    What was really added stands in the ``added_*`` fields, so that exactly that is taken back.
    """

    __slots__ = (
        "added_kv",
        "added_prefill",
        "added_request",
        "begins",
        "dispatched",
        "guessed",
        "held",
        "home",
        "incarnation",
        "phase",
        "prefill_ends",
        "prompt_tokens",
        "reason",
        "seat",
        "slot",
    )

    def __init__(
        self,
        seat: PlainSeat,
        prompt_tokens: int,
        prefill_ends: int,
        reason: Reason = Reason.SCORE,
        *,
        guessed: bool = False,
        begins: Phase = Phase.PREFILL,
    ) -> None:
        self.seat = seat
        self.reason = reason  #: by what it was decided to send it there
        self.incarnation = seat.incarnation
        self.prompt_tokens = prompt_tokens
        self.guessed = guessed  #: the request did not tell the length of its prompt
        self.prefill_ends = (
            prefill_ends  #: monotonic ns at which the prefill part goes, 0 = when the first token comes
        )
        self.begins = begins
        self.phase = Phase.NEW
        self.held = False
        self.dispatched = False  #: counted in a lane's running total of dispatches, which happens once
        self.slot: int | None = None
        self.home: object | None = None
        self.added_request = 0
        self.added_prefill = 0
        self.added_kv = 0

    @property
    def added(self) -> int:
        """Units it has added in all."""
        return self.added_request + self.added_prefill + self.added_kv
