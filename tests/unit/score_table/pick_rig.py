"""A small table for the tests of the pick, and how it is filled."""

from __future__ import annotations

from pathlib import Path

from score_table.layout import Geometry
from score_table.location import Location
from score_table.segment import Segment

SLOTS, LANES = 32, 4


def new_segment(directory: Path) -> Segment:
    """A table in a file of ``directory``."""
    place = Location.parse(str(directory / "table"))
    return Segment.create(place, Geometry(SLOTS, LANES), mode=0o600, gid=None, max_heartbeat_age_ns=10**9)


def fill(segment: Segment, base: list[int], rest: list[int], lanes: list[list[int]]) -> None:
    segment.store("n", len(base))
    segment.store("lanes_hi", len(lanes))
    for row, values in enumerate([base, rest, *lanes]):
        cells = segment.row(row)
        for slot, value in enumerate(values):
            cells[slot] = value
