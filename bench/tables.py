"""Tables as a monitor would keep them in the middle of work, made for measuring."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from score_table.identity import Identity, Prices
from score_table.lane import Lane
from score_table.layout import UNITS, State
from score_table.location import Location
from score_table.pick.rules import marked
from score_table.removal import remove_table
from score_table.segment import Segment
from score_table.writer import TableWriter

#: No run is longer, so the tables stay fresh with one tick.
MAX_HEARTBEAT_AGE_NS = 3600 * 10**9
_PRICES = Prices(float(UNITS), 3.072, 0.0512)
_PORT = 9000
_HOLDS_END_NS = 15 * 10**9  # a pick nobody ends holds its price for 10 s

Row = NDArray[np.int32]


@dataclass(eq=False)
class Load:
    """As instance objects of proxies carry it."""

    inflight: int
    qps_1m: float


@dataclass(eq=False)
class Instance:
    """As proxies have them."""

    instance_id: str
    host: str
    port: int
    load: Load


@dataclass(frozen=True)
class Table:
    """A table with all its lanes in use; ``lane`` is the one to measure with."""

    name: str
    segment: Segment
    lane: Lane
    instances: list[Instance]

    def settle(self) -> None:
        """Take back what ``select`` holds and let estimated prefills end: housekeeping, as of 15 s later."""
        self.lane.housekeep(self.lane.now_ns() + _HOLDS_END_NS)
        if left := self.lane.outstanding():
            raise RuntimeError(f"{left} picks still hold their price in {self.name}: the figures would drift")


def random_rows(n: int, rng: random.Random) -> tuple[Row, Row]:
    """Base and rest of a tick: 0 to 8 requests of others at each instance."""
    marks = np.zeros(n, dtype=np.int8)
    base = np.array([rng.uniform(0, 8) * UNITS for _ in range(n)])
    return marked(base, marks), marked(base, marks)


def open_writer(name: str, instances: int, lanes: int) -> TableWriter:
    """The monitor's door of such a table: makes it, or adopts it."""
    slots = -(-instances // 16) * 16
    return TableWriter.open(name, slots=slots, lanes=lanes, max_heartbeat_age_ns=MAX_HEARTBEAT_AGE_NS)


@contextmanager
def busy_table(
    instances: int, lanes: int, *, now_ns: int, free_lanes: int = 0, seed: int = 1
) -> Iterator[Table]:
    """Every lane but ``free_lanes`` is claimed by this process, each with 0 to 3 requests at each instance.

    ``now_ns`` (CLOCK_MONOTONIC) is the heartbeat. Nobody is the table's monitor when this is entered.
    """
    rng = random.Random(seed)
    name = f"/loadboard-bench-{secrets.token_hex(4)}"
    lane = Lane(name)
    others = [Lane(name) for _ in range(lanes - free_lanes - 1)]
    try:
        _fill(name, instances, lanes, others, now_ns, rng)
        segment = Segment.open(Location.parse(name), writable=True)
        # A monitor that stops cleanly says so. This one only makes room for another, or its tick is fresh enough.
        segment.store("state", int(State.READY))
        lane.attach()
        if lane.attached is None or segment.lanes_hi != lanes - free_lanes:
            raise RuntimeError(f"no lane of {name} to measure with: {lane.problem}")
        yield Table(name, segment, lane, [_instance(slot, rng) for slot in range(instances)])
    finally:
        for each in (*others, lane):
            each.close()
        remove_table(name, force=True)


def _fill(name: str, instances: int, lanes: int, others: list[Lane], now_ns: int, rng: random.Random) -> None:
    writer = open_writer(name, instances, lanes)
    try:
        # They attach while the table is empty: it takes long until each has read the ids of 4096 instances.
        nothing = np.zeros(0, dtype=np.int32)
        writer.publish(nothing, nothing, now_ns)
        for other in others:
            other.attach()
        for slot in range(instances):
            writer.assign(slot, Identity(f"i{slot}", f"http://127.0.0.1:{_PORT + slot}", 1, _PRICES))
        writer.publish(*random_rows(instances, rng), now_ns)
    finally:
        writer.close()
    segment = Segment.open(Location.parse(name), writable=True)
    for index in range(segment.lanes_hi):
        cells = segment.row(2 + index)
        for slot in range(instances):
            cells[slot] = rng.randrange(4) * UNITS


def _instance(slot: int, rng: random.Random) -> Instance:
    return Instance(f"i{slot}", "127.0.0.1", _PORT + slot, Load(rng.randrange(8), rng.uniform(0, 5)))
