"""A table in plain arrays, with the methods of ``TableWriter`` that the monitor's core uses."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from score_table.identity import Identity
from score_table.layout import UNITS, Mark
from score_table.records import Detail
from score_table.writer import Naturals, Reclaimed

KINDS = ("outstanding", "prompt_tokens", "kv_tokens", "held", "guessed", "dispatched", "ended", "suspects")


@dataclass
class FakeTable:
    """``lanes`` holds what the workers have counted; tests change it as workers would."""

    capacity: int = 16
    n: int = 0
    identities: dict[int, Identity] = field(default_factory=dict)
    details: dict[int, Detail] = field(default_factory=dict)
    heartbeat: int = 0
    published: int = 0
    details_written: int = 0
    dead_lanes: list[Reclaimed] = field(default_factory=list)
    cell_limit: int | None = None  #: where the sum of a slot's lane cells stops

    def __post_init__(self) -> None:
        unused = np.full(self.capacity, Mark.UNUSED.cell, dtype=np.int32)
        self.base, self.rest = unused, unused.copy()
        self.lanes = {kind: np.zeros(self.capacity, dtype=np.int64) for kind in KINDS}
        self._cells: dict[int, int] = {}

    def dispatch(self, slot: int, requests: int = 1, prompt_tokens: int = 0) -> None:
        """Requests begin at ``slot``, each with ``prompt_tokens``."""
        self.lanes["outstanding"][slot] += requests
        self.lanes["dispatched"][slot] += requests
        self.lanes["prompt_tokens"][slot] += requests * prompt_tokens
        self.lanes["kv_tokens"][slot] += requests * prompt_tokens

    def end(self, slot: int, requests: int = 1, prompt_tokens: int = 0) -> None:
        """Requests end whose first token had come back."""
        self.lanes["outstanding"][slot] -= requests
        self.lanes["ended"][slot] += requests
        self.lanes["kv_tokens"][slot] -= requests * prompt_tokens

    @contextlib.contextmanager
    def cells_as(self, slot: int, units: int) -> Iterator[None]:
        """Meanwhile the cells of ``slot`` hold this: what is open was counted at other prices."""
        self._cells[slot] = units
        yield
        del self._cells[slot]

    def live(self, slot: int) -> float:
        """What a pick would compare, in requests."""
        identity = self.identities[slot]
        cell = (
            self.lanes["outstanding"][slot] * identity.prices.request
            + self.lanes["prompt_tokens"][slot] * identity.prices.prompt_token
            + self.lanes["kv_tokens"][slot] * identity.prices.kv_token
        )
        return float(self.base[slot] + cell) / UNITS

    def naturals(self) -> Naturals:
        cells = np.zeros(self.capacity, dtype=np.int64)
        for slot, identity in self.identities.items():
            prices = identity.prices
            cells[slot] = round(
                self.lanes["outstanding"][slot] * prices.request
                + self.lanes["prompt_tokens"][slot] * prices.prompt_token
                + self.lanes["kv_tokens"][slot] * prices.kv_token
            )
        for slot, units in self._cells.items():
            cells[slot] = units
        if self.cell_limit is not None:
            cells = np.minimum(cells, self.cell_limit)
        return Naturals(**{kind: row.copy() for kind, row in self.lanes.items()}, cells=cells)

    def publish(self, base: NDArray[np.int32], rest: NDArray[np.int32], heartbeat_ns: int) -> None:
        assert base.dtype == rest.dtype == np.int32
        assert base.shape == rest.shape == (self.n,)
        self.base[: self.n], self.rest[: self.n] = base, rest
        self.heartbeat = heartbeat_ns
        self.published += 1

    def write_detail(self, slot: int, detail: Detail) -> None:
        detail.encoded()
        self.details[slot] = detail
        self.details_written += 1

    def identity(self, slot: int) -> Identity | None:
        return None if self.base[slot] >= Mark.UNUSED.cell - 2**26 else self.identities.get(slot)

    def detail(self, slot: int) -> Detail | None:
        return self.details.get(slot)

    def last_holder(self, slot: int) -> Identity | None:
        return self.identities.get(slot)

    def heartbeat_ns(self) -> int:
        return self.heartbeat

    def assign(self, slot: int, identity: Identity) -> None:
        identity.encoded()
        self.identities[slot] = identity
        self.n = max(self.n, slot + 1)

    def release_slot(self, slot: int) -> None:
        self.base[slot] = self.rest[slot] = Mark.UNUSED.cell

    def slot_reusable(self, slot: int) -> bool:
        return not any(self.lanes[kind][slot] for kind in KINDS[:5])

    def rest_row(self) -> NDArray[np.int32]:
        return self.rest.copy()

    def reclaim(self) -> list[Reclaimed]:
        found, self.dead_lanes = self.dead_lanes, []
        for lane in found:
            for slot in lane.slots.tolist():
                self.lanes["outstanding"][slot] = 0
        return found
