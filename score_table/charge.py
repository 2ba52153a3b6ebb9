"""What one request counts, and where it is counted now."""

from __future__ import annotations

from enum import IntEnum


class Phase(IntEnum):
    """How far a charge has come; it only goes forward."""

    NEW = 0  #: not counted yet
    PREFILL = 1  #: counted with its prefill part
    DECODE = 2  #: counted without it
    CLOSED = 3  #: taken back


class Charge:
    """One request's count. Made by the caller of a pick, moved and taken back by its lane alone.

    ``key`` is the instance id, ``address`` its host and port, by which it is found where the id is not known, and
    ``slot`` the slot picked under it (``None``: it has no slot). What was
    really added stands in the ``added_*`` fields, so that exactly that is taken back.
    """

    __slots__ = (
        "added_kv",
        "added_prefill",
        "added_request",
        "address",
        "dispatched",
        "epoch",
        "held",
        "home",
        "key",
        "phase",
        "prefill_ends",
        "prompt_tokens",
        "slot",
    )

    def __init__(
        self,
        key: str,
        slot: int | None,
        prompt_tokens: int,
        epoch: int,
        address: tuple[object, object] = (None, None),
    ) -> None:
        self.key = key
        self.address = address
        self.slot = slot
        self.prompt_tokens = prompt_tokens
        self.epoch = epoch
        self.phase = Phase.NEW
        self.held = False
        self.dispatched = False  #: counted in the running total of dispatches, which happens once
        self.home: object | None = None  #: the claim whose rows hold the count
        self.added_request = 0
        self.added_prefill = 0
        self.added_kv = 0
        self.prefill_ends = 0  #: monotonic ns at which the prefill part goes, 0 = when the first token comes
