"""A table whose instances come, go, move and return, by the monitor's own membership.

Its grace time, which in life keeps a slot unused until no worker can still work with an old slot map, is left
out: whoever drives a churn asks the workers instead.
"""

from __future__ import annotations

import functools
import logging
import random
import time
from dataclasses import dataclass

from monitor import membership
from monitor.board import Board
from monitor.config import InstanceConfig, MonitorConfig
from monitor.discovery import Discovered
from score_table.reader import TableReader
from score_table.writer import TableWriter
from tests.stress.command_line import StormError
from tests.unit.proxy_adapter.instances import Plain

SLOTS = 64
_MEMBERS = 32
_CHANGES = 8


@dataclass(frozen=True)
class Incarnation:
    """An instance at one address."""

    id: str
    host: str

    def as_object(self) -> Plain:
        return Plain(self.id, self.host, 8000)

    @functools.cached_property
    def discovered(self) -> Discovered:
        url = f"http://{self.host}:8000"
        return Discovered(self.id, url, {}, InstanceConfig(id=self.id, url=url))


class Churn:
    """A table and its membership without the polls."""

    def __init__(self, table: str, rng: random.Random) -> None:
        membership.GRACE_NS = 0
        logging.getLogger("loadboard").setLevel(logging.CRITICAL)
        self._rng = rng
        self._names = 0
        self.members = [self._new() for _ in range(_MEMBERS)]
        self._config = MonitorConfig(
            table=table, instances=tuple(member.discovered.config for member in self.members)
        )
        self.writer = TableWriter.open(table, slots=SLOTS, lanes=8)
        self._board = Board(self.writer, self._config)
        self.reuses = self.reuses_after_open = 0
        self.away: list[Incarnation] = []
        #: Who holds, or last held, each slot; and the instances that never come back, the last few of them.
        self.holders: dict[int, Incarnation] = {}
        self.ghosts: list[Incarnation] = []
        self._had_open: set[int] = set()
        self._been: set[Incarnation] = set()
        self._board.start([m.discovered for m in self.members], time.monotonic_ns())
        self.tick()
        self._learn()

    def _new(self, instance_id: str | None = None) -> Incarnation:
        self._names += 1
        number = self._names
        host = f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"
        return Incarnation(instance_id or f"i{number}", host)

    def slots(self) -> dict[str, int]:
        """The slot of each instance that is in the table now, by id."""
        found = {}
        for slot in range(self.writer.n):
            identity = self.writer.identity(slot)
            if identity is not None:
                found[identity.id] = slot
        return found

    def tick(self) -> None:
        """One tick, now."""
        now = time.monotonic_ns()
        self._board.tick(now, time.clock_gettime_ns(time.CLOCK_BOOTTIME))

    def remove(self) -> list[Incarnation]:
        """Some instances go, some for ever; returns who is to come next."""
        gone = [self.members.pop(self._rng.randrange(len(self.members))) for _ in range(_CHANGES)]
        outstanding = self.writer.naturals().outstanding
        held = self.slots()
        self._had_open |= {held[m.id] for m in gone if m.id in held and outstanding[held[m.id]]}
        back, self.away = self.away, [gone.pop()]
        moved = gone.pop()
        self.ghosts = [*self.ghosts, *gone][-_CHANGES:]
        self._apply()
        return [*back, self._new(moved.id), *(self._new() for _ in range(_CHANGES - 1 - len(back)))]

    def add(self, newcomers: list[Incarnation]) -> None:
        """They join, where a slot is free for them."""
        before = dict(self.holders)
        self.members += newcomers
        self._apply()
        naturals = self.writer.naturals()  # nobody has a list with the newcomers yet
        been = set(self._been)
        self._learn()
        for slot, holder in self.holders.items():
            former = before.get(slot)
            if former is None or former == holder:
                continue
            counted = naturals.outstanding[slot] or naturals.kv_tokens[slot] or naturals.cells[slot]
            # One that returns gets the requests that workers sent to it before they knew that it was gone.
            if counted and holder not in been:
                raise StormError(f"slot {slot} went from {former} to {holder} with counts in it")
            self.reuses += 1
            self.reuses_after_open += slot in self._had_open
            self._had_open.discard(slot)

    def _apply(self) -> None:
        self._board.follow([m.discovered for m in self.members], time.monotonic_ns())
        self.tick()

    def _learn(self) -> None:
        by_id = {member.id: member for member in self.members}
        for instance_id, slot in self.slots().items():
            self.holders[slot] = by_id[instance_id]
            self._been.add(by_id[instance_id])

    def check_end(self) -> None:
        """Everybody has ended everything."""
        naturals = self.writer.naturals()
        with TableReader.open(self._config.table) as reader:
            errors = sum(lane.count_errors for lane in reader.snapshot().lanes)
        left = int(naturals.outstanding.sum()), int(naturals.kv_tokens.sum()), int(naturals.cells.sum())
        if any(left) or errors:
            raise StormError(f"left over at the end: {left}, {errors} count errors")
