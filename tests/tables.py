"""A small table as a monitor would keep it, for tests that need one without a monitor."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from score_table.identity import Identity, Prices
from score_table.lane import Lane
from score_table.layout import UNITS
from score_table.ledger import Guard
from score_table.pick.rules import Mark, marked
from score_table.writer import TableWriter

PRICES = Prices(float(UNITS), 3.072, 0.0512)


def instance_id(slot: int) -> str:
    """The id that :func:`make_table` gives to ``slot``."""
    return f"i{slot}"


def make_table(location: str, instances: int, *, slots: int = 64, lanes: int = 8) -> TableWriter:
    """A published table with ``instances`` equal slots, ids ``i0``, ``i1``, ..., ports from 9000."""
    writer = TableWriter.open(location, slots=slots, lanes=lanes)
    for slot in range(instances):
        writer.assign(slot, Identity(instance_id(slot), f"http://127.0.0.1:{9000 + slot}", 1, PRICES))
    publish(writer)
    return writer


def opened(lane: Lane, key: str, prompt_tokens: int | None = 100, *, visible: bool = True) -> Guard[None]:
    """One request counted at the instance of that id. Keep the guard: one that is dropped releases itself."""
    return lane.ledger.dispatch(None, lane.seat(key, None, None), prompt_tokens, visible)


def publish(
    writer: TableWriter,
    requests: Sequence[float] | None = None,
    marks: Sequence[Mark] | None = None,
    rest: Sequence[float] | None = None,
    now_ns: int | None = None,
) -> None:
    """One tick with the given base scores in requests (default 0), marks and rest, heartbeat now."""
    n = writer.n
    base = np.array([0.0] * n if requests is None else requests) * UNITS
    others = np.array([0.0] * n if rest is None else rest) * UNITS
    codes = np.array([0] * n if marks is None else marks, dtype=np.int8)
    now = time.monotonic_ns() if now_ns is None else now_ns
    writer.publish(marked(base, codes), marked(others, codes), now)
