"""The monitor's door to the table: the only way in which base, rest, identities and details are written."""

from __future__ import annotations

import contextlib
import grp
import os
import time
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from score_table import monitor_lock
from score_table.decisions import counted, totals
from score_table.errors import TableCreateFailed, TableError
from score_table.identity import Identity, read_identity
from score_table.layout import (
    IDENTITY_SIZE,
    LANE_BLOCK,
    LANE_LOCKS,
    MAX_LANES,
    NATURAL_LEVELS,
    NATURAL_TICK,
    UNUSED_FLOOR,
    Geometry,
    Mark,
    Natural,
    State,
)
from score_table.location import Location, creation_failed
from score_table.locks import try_lock, unlock
from score_table.records import Detail, read_detail, write_detail
from score_table.segment import Segment, boot_id

_PID_WORD = LANE_BLOCK["pid"].offset // 8


@dataclass(frozen=True)
class Naturals:
    """One read of what all lanes have counted, summed over the lanes: int64 arrays of length C.

    The first five are levels; ``dispatched``, ``ended`` and ``suspects`` are running totals that outlive
    the lanes they came from.
    """

    outstanding: NDArray[np.int64]
    prompt_tokens: NDArray[np.int64]
    kv_tokens: NDArray[np.int64]
    held: NDArray[np.int64]
    guessed: NDArray[np.int64]
    dispatched: NDArray[np.int64]
    ended: NDArray[np.int64]
    suspects: NDArray[np.int64]
    #: Units in the lane cells, read just before the natural units. It is their price, but where a cell stopped.
    cells: NDArray[np.int64]


@dataclass(frozen=True)
class Reclaimed:
    """A dead worker's lane that was emptied. ``slots`` are those at which it had something outstanding."""

    lane: int
    pid: int
    slots: NDArray[np.intp]
    outstanding: int


class TableWriter:
    """Made by :meth:`open`. Not thread-safe; one monitor, one thread."""

    def __init__(self, segment: Segment, lock_fd: int, *, adopted: bool) -> None:
        self._segment = segment
        self._monitor_lock_fd = lock_fd
        self.adopted = adopted
        geometry = segment.geometry
        self.capacity = geometry.slots
        self.lanes = geometry.lanes
        # The description on which lanes are tested and reclaimed; apart from any worker's.
        self._lane_fd = segment.location.open(writable=True)
        rows: NDArray[np.int32] = np.ndarray(
            (geometry.rows, geometry.slots),
            dtype=np.int32,
            buffer=segment.data,
            offset=geometry.matrix_offset,
            strides=(geometry.matrix_stride, 4),
        )
        self._rows = rows
        self._naturals: NDArray[np.int64] = np.ndarray(
            (geometry.lanes, len(Natural), geometry.slots),
            dtype=np.int64,
            buffer=segment.data,
            offset=geometry.naturals_offset,
            strides=(len(Natural) * geometry.naturals_stride, geometry.naturals_stride, 8),
        )
        self._blocks = [segment.lane_block(lane) for lane in range(geometry.lanes)]

    # -- life ---------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        location: str,
        *,
        slots: int,
        lanes: int,
        mode: int = 0o660,
        group: str | None = None,
        max_heartbeat_age_ns: int = 1_000_000_000,
    ) -> TableWriter:
        """Become the monitor of ``location``: adopt the table that is there, or make one in its place.

        An adopted table has the same layout, was made since the last boot and is at least as large; any
        other is replaced, and marked retired so that its readers follow. ``MonitorRunning`` if another
        monitor holds it, ``TablePermission``, ``TableNoSpace``, ``TableCreateFailed``, and ``ValueError``
        for a size out of range.
        """
        place = Location.parse(location)
        Geometry(slots, lanes)  # refuses a size out of range before anything is touched
        gid = _gid_of(group, place)
        lock_fd = monitor_lock.take(place, mode, gid)
        try:
            for left in place.temporaries():
                left.unlink(missing_ok=True)
            former = _present(place)
            if former is not None:
                # More lanes were wanted than there are, or are in use: the next one has room for them, within reason.
                lanes = min(max(lanes, former.read("lanes_wanted"), former.lanes_hi), 2 * lanes, MAX_LANES)
            if former is not None and _adoptable(former, Geometry(slots, lanes), max_heartbeat_age_ns):
                _set_access(place, mode, gid)
                segment, adopted = former, True
            else:
                segment = Segment.create(
                    place,
                    Geometry(slots, lanes),
                    mode=mode,
                    gid=gid,
                    max_heartbeat_age_ns=max_heartbeat_age_ns,
                    before_visible=_mark_all_unused,
                )
                adopted = False
                if former is not None:
                    former.store("state", State.RETIRED)
                    former.close()
            segment.store("monitor_pid", os.getpid())
            segment.store("monitor_started", time.clock_gettime_ns(time.CLOCK_BOOTTIME))
            segment.store("monitors", segment.read("monitors") + 1)
            return cls(segment, lock_fd, adopted=adopted)
        except BaseException:
            os.close(lock_fd)
            raise

    def close(self) -> None:
        """Stop cleanly: the table stays, marked stopped; the next monitor adopts it."""
        self.set_state(State.STOPPED)
        os.close(self._lane_fd)
        os.close(self._monitor_lock_fd)

    @property
    def location(self) -> str:
        """The table's name or path."""
        return self._segment.location.text

    @property
    def n(self) -> int:
        """Slots in use so far; only grows."""
        return self._segment.n

    @property
    def lanes_wanted(self) -> int:
        """Lanes that workers would have needed; above ``lanes`` where some found none."""
        return self._segment.read("lanes_wanted")

    def set_state(self, state: State) -> None:
        """Store the table's state."""
        self._segment.store("state", int(state))

    def is_current(self) -> bool:
        """Whether the name still leads to this table and to this monitor's lock.

        False if somebody removed or replaced either: another monitor could start beside this one.
        """
        return self._segment.is_current() and monitor_lock.is_at(
            self._segment.location, self._monitor_lock_fd
        )

    # -- slots --------------------------------------------------------------------------------------------

    def identity(self, slot: int) -> Identity | None:
        """The holder of ``slot`` as the table says it; ``None`` for none or an unused slot."""
        if not 0 <= slot < self.n or self._rows[0, slot] >= UNUSED_FLOOR:
            return None
        return read_identity(self._segment, slot)

    def last_holder(self, slot: int) -> Identity | None:
        """The holder of ``slot``, or the last one where it is unused now; ``None`` if there never was one."""
        return read_identity(self._segment, slot)

    def detail(self, slot: int) -> Detail | None:
        """The detail record of ``slot``, for a monitor that goes on from it."""
        return read_detail(self._segment, slot)

    def heartbeat_ns(self) -> int:
        """CLOCK_MONOTONIC ns of the last tick, of an earlier monitor where this one has not ticked yet."""
        return self._segment.read("heartbeat")

    def assign(self, slot: int, identity: Identity) -> None:
        """Give ``slot`` to ``identity``. Its cells stay unused until the next :meth:`publish`.

        ``ValueError`` if the identity does not fit its block, ``IndexError`` for a slot out of range.
        """
        if not 0 <= slot < self.capacity:
            raise IndexError(f"slot {slot} is outside of the table's {self.capacity} slots")
        former = read_identity(self._segment, slot)
        if former is None or former.generation != identity.generation:
            before = totals(counted(self._segment, slot))
        else:
            before = former.before
        encoded = replace(identity, before=before).encoded()
        start = self._segment.geometry.identity_offset(slot)
        self._segment.data[start : start + IDENTITY_SIZE] = encoded
        if slot >= self.n:
            self._segment.store("n", slot + 1)
        self._bump_membership()

    def release_slot(self, slot: int) -> None:
        """Mark ``slot`` unused in both rows, so that no pick takes it from now on."""
        self._rows[0, slot] = self._rows[1, slot] = Mark.UNUSED.cell
        self._bump_membership()

    def slot_reusable(self, slot: int) -> bool:
        """Whether no lane counts anything at ``slot`` any more."""
        return not self._rows[2:, slot].any() and not self._naturals[:, :NATURAL_LEVELS, slot].any()

    def _bump_membership(self) -> None:
        self._segment.store("membership", self._segment.read("membership") + 1)

    # -- ticks --------------------------------------------------------------------------------------------

    def naturals(self) -> Naturals:
        """One read of all lanes."""
        hi, n = self._segment.lanes_hi, self.n
        cells = np.zeros(self.capacity, dtype=np.int64)
        cells[:n] = self._rows[2 : 2 + hi, :n].sum(axis=0, dtype=np.int64)
        sums = np.zeros((NATURAL_TICK, self.capacity), dtype=np.int64)
        read = self._naturals[:hi, :NATURAL_TICK, :n].copy()
        sums[:, :n] = read.sum(axis=0)
        outstanding, prompt_tokens, kv_tokens, held, guessed, dispatched, ended, suspects = sums
        return Naturals(
            outstanding, prompt_tokens, kv_tokens, held, guessed, dispatched, ended, suspects, cells
        )

    def rest_row(self) -> NDArray[np.int32]:
        """A copy of ``rest``, all C cells."""
        row: NDArray[np.int32] = self._rows[1].copy()
        return row

    def publish(self, base: NDArray[np.int32], rest: NDArray[np.int32], heartbeat_ns: int) -> None:
        """Store both rows (shape (n,), from :func:`score_table.pick.rules.marked`), then the heartbeat.

        ``heartbeat_ns`` is CLOCK_MONOTONIC at the moment the lanes were read for these rows.
        """
        n = len(base)
        began = bool(np.any((self._rows[0, :n] >= UNUSED_FLOOR) & (base < UNUSED_FLOOR)))
        # Added, not copied: a long copy is one string instruction, and where the system interrupts, stops or
        # kills this process in it, half a word stays behind.
        np.add(base, 0, out=self._rows[0, :n])
        np.add(rest, 0, out=self._rows[1, :n])
        if began:
            # A slot map made between the assignment and these rows lacks the slots that begin with them.
            self._bump_membership()
        segment = self._segment
        segment.store("tick", segment.read("tick") + 1)
        segment.store("heartbeat", heartbeat_ns)
        if segment.state != State.READY:
            segment.store("state", State.READY)

    def write_detail(self, slot: int, detail: Detail) -> None:
        """Replace the detail record of ``slot``."""
        write_detail(self._segment, slot, detail)

    # -- dead lanes ---------------------------------------------------------------------------------------

    def reclaim(self) -> list[Reclaimed]:
        """Empty the lanes of workers that are gone. A lane is only touched while its lock is held here."""
        found = []
        for lane in range(self._segment.lanes_hi):
            block = self._blocks[lane]
            if block[0] == 0 or not try_lock(self._lane_fd, LANE_LOCKS + lane):
                continue
            try:
                if block[0] != 0:
                    found.append(self._empty(lane, block))
            finally:
                unlock(self._lane_fd, LANE_LOCKS + lane)
        return found

    def _empty(self, lane: int, block: memoryview) -> Reclaimed:
        naturals = self._naturals[lane]
        outstanding = naturals[Natural.OUTSTANDING].copy()
        touched = np.flatnonzero(outstanding | self._rows[2 + lane])
        # Cells first: until the natural units follow, the slot looks a little idler by this lane, not busier
        # by a base that counts on cells which are gone.
        # Word by word, as in publish.
        np.bitwise_and(self._rows[2 + lane], 0, out=self._rows[2 + lane])
        np.bitwise_and(naturals[:NATURAL_LEVELS], 0, out=naturals[:NATURAL_LEVELS])
        block[0] = 0
        return Reclaimed(lane, block[_PID_WORD], touched, int(outstanding.sum()))


def _mark_all_unused(segment: Segment) -> None:
    for row in (0, 1):
        cells = segment.row(row)
        for slot in range(segment.geometry.slots):
            cells[slot] = Mark.UNUSED.cell


def _gid_of(group: str | None, place: Location) -> int | None:
    if not group:
        return None
    try:
        return int(group) if group.isdigit() else grp.getgrnam(group).gr_gid
    except KeyError as error:
        raise TableCreateFailed(
            place.text, f"there is no group {group!r} on this host: create it first"
        ) from error


def _present(place: Location) -> Segment | None:
    """The table of that name, if this process can use it; one of another layout, or damaged, is replaced.

    ``TableCreateFailed`` if a file that is no table has the name.
    """
    try:
        foreign = place.holds_foreign_file()
    except OSError as error:
        raise creation_failed(place, error, 0) from error
    if foreign:
        raise TableCreateFailed(
            place.text,
            f"{place.path} is there and is not a loadboard table: choose another name for the table",
        )
    with contextlib.suppress(TableError):
        return Segment.open(place, writable=True)
    return None


def _adoptable(segment: Segment, wanted: Geometry, max_heartbeat_age_ns: int) -> bool:
    geometry = segment.geometry
    return (
        segment.state != State.RETIRED
        and segment.boot_id == boot_id()
        and segment.max_heartbeat_age_ns == max_heartbeat_age_ns
        and geometry.slots >= wanted.slots
        and geometry.lanes >= wanted.lanes
    )


def _set_access(place: Location, mode: int, gid: int | None) -> None:
    """Give an adopted table the access that is configured now, where it is ours to give."""
    with contextlib.suppress(PermissionError):
        if gid is not None:
            os.chown(place.path, -1, gid)
        os.chmod(place.path, mode)
