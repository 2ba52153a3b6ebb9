"""Removing a table for good, which no monitor and no reader ever does by itself."""

from __future__ import annotations

import os

from score_table import monitor_lock
from score_table.errors import TableError, TableIncompatible
from score_table.layout import LANE_LOCKS
from score_table.location import Location
from score_table.locks import try_lock, unlock
from score_table.segment import Segment


class TableInUse(TableError):
    """Proxy workers still count in the table. ``lanes`` are theirs."""

    exit_status = 1

    def __init__(self, location: str, message: str, lanes: list[int]) -> None:
        super().__init__(location, message)
        self.lanes = lanes


def remove_table(location: str, *, force: bool = False) -> list[str]:
    """Remove the table of that name, its lock file and left-over temporaries; returns the removed paths.

    ``MonitorRunning`` while a monitor holds it, ``TableInUse`` while workers do (unless ``force``),
    ``TableIncompatible`` if what has the name is no table, ``PermissionError``, ``ValueError`` for a malformed
    name. A table of another layout is removed as well.
    """
    place = Location.parse(location)
    try:
        foreign = place.holds_foreign_file()
    except OSError as error:
        raise TableError(location, f"table {location} cannot be looked at: {error}") from error
    if foreign:
        raise TableIncompatible(location, f"{place.path} is not a loadboard table and is left alone")
    lock_fd = monitor_lock.hold_if_free(place)
    try:
        if not force:
            lanes = _lanes_in_use(place)
            if lanes:
                raise TableInUse(
                    location,
                    f"{len(lanes)} proxy worker(s) use table {location} (lanes {', '.join(map(str, lanes))}): "
                    "stop them, or use --force; they would go on without a monitor's scores",
                    lanes,
                )
        removed = []
        for path in (place.path, *place.temporaries(), place.lock_path):
            if path.exists():
                path.unlink()
                removed.append(str(path))
        return removed
    finally:
        if lock_fd is not None:
            os.close(lock_fd)


def _lanes_in_use(place: Location) -> list[int]:
    try:
        segment = Segment.open(place, writable=True)
        fd = place.open(writable=True)
    except TableError:
        return []
    try:
        used = []
        for lane in range(segment.lanes_hi):
            if try_lock(fd, LANE_LOCKS + lane):
                unlock(fd, LANE_LOCKS + lane)
            else:
                used.append(lane)
        return used
    finally:
        os.close(fd)
        segment.close()
