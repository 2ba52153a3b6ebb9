"""The steps of a charge's life on the rows of a claim. Only one of them may run at a time per claim."""

from __future__ import annotations

from score_table.charge import Charge, Phase
from score_table.claim import Claim
from score_table.identity import Prices
from score_table.layout import Natural


def add(rows: Claim, charge: Charge, slot: int, prices: Prices) -> None:
    """Count ``charge`` at ``slot``, all of what its phase asks for; remembers what was really added.

    Cells first, natural units second. The total of dispatches counts a charge once, however often it moves.
    """
    tokens, in_prefill = charge.prompt_tokens, charge.phase == Phase.PREFILL
    room = rows.cell_limit - rows.cells[slot]
    charge.added_request = min(room, round(prices.request))
    room -= charge.added_request
    charge.added_prefill = min(room, round(prices.prompt_token * tokens)) if in_prefill else 0
    room -= charge.added_prefill
    charge.added_kv = min(room, round(prices.kv_token * tokens))
    if room == charge.added_kv:
        rows.bump("saturations")
    rows.cells[slot] += charge.added_request + charge.added_prefill + charge.added_kv
    naturals = rows.naturals
    naturals[Natural.OUTSTANDING][slot] += 1
    naturals[Natural.KV_TOKENS][slot] += tokens
    if in_prefill:
        naturals[Natural.PROMPT_TOKENS][slot] += tokens
    if charge.held:
        naturals[Natural.HELD][slot] += 1
    if not charge.dispatched:
        charge.dispatched = True
        naturals[Natural.DISPATCHED][slot] += 1


def end_prefill(rows: Claim, charge: Charge, slot: int) -> None:
    """Take back the prefill part."""
    _take_units(rows, slot, charge.added_prefill)
    _lower(rows, Natural.PROMPT_TOKENS, slot, charge.prompt_tokens)
    charge.added_prefill = 0


def hold(rows: Claim, slot: int, *, suspect: bool) -> None:
    """Mark one request as held; ``suspect`` asks the monitor to look at the instance at once."""
    rows.naturals[Natural.HELD][slot] += 1
    if suspect:
        rows.naturals[Natural.SUSPECTS][slot] += 1


def take_back(rows: Claim, charge: Charge, slot: int) -> None:
    """Undo exactly what ``charge`` still has at ``slot``."""
    _take_units(rows, slot, charge.added_request + charge.added_prefill + charge.added_kv)
    _lower(rows, Natural.OUTSTANDING, slot, 1)
    _lower(rows, Natural.KV_TOKENS, slot, charge.prompt_tokens)
    if charge.phase == Phase.PREFILL:
        _lower(rows, Natural.PROMPT_TOKENS, slot, charge.prompt_tokens)
    if charge.held:
        _lower(rows, Natural.HELD, slot, 1)
    rows.naturals[Natural.ENDED][slot] += 1


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
