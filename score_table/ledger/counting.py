"""The steps of a charge's life on the rows of a claim. Only one of them may run at a time per claim."""

from __future__ import annotations

from collections.abc import Iterable

from score_table.claim import Claim
from score_table.identity import Prices
from score_table.layout import DISPATCH_LIMIT, NATURAL_LEVELS, Natural
from score_table.ledger.charge import Charge, Phase


def price(charge: Charge, prices: Prices, room: int = DISPATCH_LIMIT) -> None:
    """Set what ``charge`` adds in its phase: its parts, cut off where together they exceed ``room`` units."""
    tokens = charge.prompt_tokens
    charge.added_request = min(room, round(prices.request))
    room -= charge.added_request
    charge.added_prefill = (
        min(room, round(prices.prompt_token * tokens)) if charge.phase == Phase.PREFILL else 0
    )
    room -= charge.added_prefill
    charge.added_kv = min(room, round(prices.kv_token * tokens))


def add(rows: Claim, charge: Charge, slot: int) -> None:
    """Count ``charge`` at ``slot``, all of what its phase asks for; remembers what was really added.

    Cells first, natural units second. The totals of dispatches count a charge once, however often it moves.
    """
    room = max(0, rows.cell_limit - rows.cells[slot])
    price(charge, charge.seat.prices, min(room, DISPATCH_LIMIT))
    if charge.added >= room:
        rows.bump("saturations")
    rows.cells[slot] += charge.added
    _raise(rows, Natural.OUTSTANDING, slot, 1)
    _raise(rows, Natural.KV_TOKENS, slot, charge.prompt_tokens)
    if charge.guessed:
        _raise(rows, Natural.GUESSED, slot, charge.prompt_tokens)
    if charge.phase == Phase.PREFILL:
        _raise(rows, Natural.PROMPT_TOKENS, slot, charge.prompt_tokens)
    if charge.held:
        _raise(rows, Natural.HELD, slot, 1)
    if not charge.dispatched:
        charge.dispatched = True
        _raise(rows, Natural.DISPATCHED, slot, 1)
        if charge.reason:
            _raise(rows, charge.reason.row, slot, 1)


def end_prefill(rows: Claim, charge: Charge, slot: int) -> None:
    """Take back the prefill part."""
    _take_units(rows, slot, charge.added_prefill)
    _lower(rows, Natural.PROMPT_TOKENS, slot, charge.prompt_tokens)


def hold(rows: Claim, slot: int, *, suspect: bool) -> None:
    """Mark one request as held; ``suspect`` asks the monitor to look at the instance at once."""
    _raise(rows, Natural.HELD, slot, 1)
    if suspect:
        _raise(rows, Natural.SUSPECTS, slot, 1)


def take_back(rows: Claim, charge: Charge, slot: int) -> None:
    """Undo exactly what ``charge`` still has at ``slot``."""
    _take_units(rows, slot, charge.added)
    _lower(rows, Natural.OUTSTANDING, slot, 1)
    if charge.guessed:
        _lower(rows, Natural.GUESSED, slot, charge.prompt_tokens)
    _lower(rows, Natural.KV_TOKENS, slot, charge.prompt_tokens)
    if charge.phase == Phase.PREFILL:
        _lower(rows, Natural.PROMPT_TOKENS, slot, charge.prompt_tokens)
    if charge.held:
        _lower(rows, Natural.HELD, slot, 1)
    _raise(rows, Natural.ENDED, slot, 1)


def repair(rows: Claim, charges: Iterable[Charge]) -> bool:
    """Make the levels in ``rows`` those of the open ``charges``; whether there was anything to repair.

    Natural units and cells of slots without an open charge become 0. Totals are left alone.
    """
    slots = len(rows.cells)
    cells, levels = [0] * slots, [[0] * slots for _ in range(NATURAL_LEVELS)]
    for charge in charges:
        if (
            charge.home is not rows
            or charge.slot is None
            or charge.phase not in (Phase.PREFILL, Phase.DECODE)
        ):
            continue
        slot = charge.slot
        in_prefill = charge.phase == Phase.PREFILL
        charge.added_prefill = charge.added_prefill if in_prefill else 0
        cells[slot] += charge.added
        levels[Natural.OUTSTANDING][slot] += 1
        levels[Natural.KV_TOKENS][slot] += charge.prompt_tokens
        levels[Natural.GUESSED][slot] += charge.prompt_tokens if charge.guessed else 0
        levels[Natural.PROMPT_TOKENS][slot] += charge.prompt_tokens if in_prefill else 0
        levels[Natural.HELD][slot] += charge.held
    wrong = False
    for row, right in ((rows.cells, cells), *zip(rows.naturals, levels, strict=False)):
        if row.tolist() != right:
            wrong = True
            for slot, value in enumerate(right):
                row[slot] = value
    if wrong:
        rows.bump("count_errors")
    return wrong


def _take_units(rows: Claim, slot: int, units: int) -> None:
    left = rows.cells[slot] - units
    if left < 0:
        rows.bump("count_errors")
        left = 0
    rows.cells[slot] = left


def _lower(rows: Claim, kind: Natural, slot: int, by: int) -> None:
    row = rows.naturals[kind]
    left = row[slot] - by
    if left < 0:
        rows.bump("count_errors")
        left = 0
    row[slot] = left


def _raise(rows: Claim, kind: Natural, slot: int, by: int) -> None:
    # A word that somebody else wrote nonsense into stops at its end: a pick goes on whatever it finds.
    row = rows.naturals[kind]
    row[slot] = min(row[slot] + by, 2**63 - 1)
