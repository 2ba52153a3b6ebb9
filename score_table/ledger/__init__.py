"""What a process has open, and how it counts it; see :mod:`score_table.ledger.rules`."""

from __future__ import annotations

from score_table.ledger.plain import PlainLedger
from score_table.ledger.rules import Guard, Ledger, Picker, Seat
from score_table.pick import NATIVE_MISSING, PickCore

__all__ = ["Guard", "Ledger", "Picker", "Seat", "ledger_class"]


def ledger_class(core: type[PickCore]) -> type[Ledger]:
    """The ledger that goes with a pick: the one in C with the pick in C, else the one in Python."""
    if core.name == "native" and not NATIVE_MISSING:
        from score_table.ledger.native import NativeLedger

        return NativeLedger
    return PlainLedger
