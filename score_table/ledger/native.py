"""The ledger in C: each step is one call that nothing can come in between. Absent where it could not be built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from score_table import _native
from score_table.claim import Claim
from score_table.identity import Directory
from score_table.ledger.failures import is_failure, was_refused
from score_table.ledger.rules import FIRST_PROMPT_TOKENS, NOMINAL, Picker, Seat, Settled
from score_table.pick import PickCore
from score_table.pick.native import NativeCore


class NativeLedger:
    """See :class:`score_table.ledger.rules.Ledger`. The methods of requests are those of C, bound once."""

    def __init__(self, clock: Callable[[], int] | None, hold_ns: int) -> None:
        self.core = _native.Ledger(
            clock,
            hold_ns,
            is_failure,
            was_refused,
            FIRST_PROMPT_TOKENS,
            NOMINAL.request,
            NOMINAL.prompt_token,
            NOMINAL.kv_token,
        )
        self.seat = self.core.seat
        self.dispatch = self.core.dispatch
        self.hold = self.core.hold
        self.housekeep = self.core.housekeep
        self.audit = self.core.audit
        self.outstanding = self.core.outstanding

    @property
    def version(self) -> int:
        return self.core.version

    @property
    def mean_prompt_tokens(self) -> float:
        return self.core.mean_prompt_tokens

    def attach(self, claim: Claim, core: PickCore, directory: Directory, settled: list[Settled]) -> int:
        if not isinstance(core, NativeCore) or claim.mapped is None:
            raise TypeError(
                "the native ledger counts only with the native pick, on rows that are mapped for it"
            )
        return self.core.attach(
            claim.mapped,
            core.core,
            directory.membership,
            len(directory.holders),
            core.max_heartbeat_age_ns,
            settled,
        )

    def settle(self, directory: Directory, settled: list[Settled]) -> int:
        return self.core.settle(directory.membership, len(directory.holders), settled)

    def picker(self, seat_of: Callable[[Any], Seat]) -> Picker | None:
        return _native.Picker(self.core, seat_of)

    def void(self, *, forked: bool) -> None:
        self.core.void(forked)
