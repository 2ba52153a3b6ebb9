"""One claimed lane: the rows this process alone may write, and the lock that says so."""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from score_table.errors import TableNotReady
from score_table.layout import (
    LANE_BLOCK,
    LANE_BLOCK_SIZE,
    LANE_LOCKS,
    MAX_LANES,
    NATURAL_LEVELS,
    REGISTRY_LOCK,
    Geometry,
    Natural,
)
from score_table.locks import try_lock, unlock
from score_table.mapping import map_file
from score_table.pick import NATIVE_MISSING
from score_table.segment import Segment

if TYPE_CHECKING:
    from score_table._native import Rows

#: Many workers may start at once; each holds the registry for microseconds.
_REGISTRY_TRIES, _REGISTRY_PAUSE_S = 100, 0.0003

#: Descriptors of this process that hold, or are about to hold, a lane's lock: by number, with the file behind it
#: (where the host has closed all descriptors, the number may be another's) and whom it is for. A forked child
#: has copies of all of them, also of those that another thread was just claiming with, and must close every one: a
#: copy that stays open keeps the lock after the parent's death.
_lock_fds: dict[int, tuple[tuple[int, int], object]] = {}
#: Held over opening and noting a descriptor, and over closing and forgetting it, so that no fork comes in between.
_noting = threading.RLock()


def _close_inherited_locks() -> None:
    """In a forked child: close the copies of the parent's lock descriptors. Closing drops no lock."""
    _noting.release()
    for fd, (file, _) in tuple(_lock_fds.items()):
        with contextlib.suppress(OSError):
            if _file_of(fd) == file:
                os.close(fd)
    _lock_fds.clear()


os.register_at_fork(
    before=_noting.acquire, after_in_parent=_noting.release, after_in_child=_close_inherited_locks
)


def _file_of(fd: int) -> tuple[int, int]:
    facts = os.fstat(fd)
    return facts.st_dev, facts.st_ino


def _open(segment: Segment, owner: object) -> int:
    """A descriptor to lock with, noted as ``owner``'s."""
    with _noting:
        fd = segment.location.open(writable=True)
        _lock_fds[fd] = (_file_of(fd), owner)
    return fd


def _close(fd: int, owner: object) -> None:
    """Close it, unless the number belongs to somebody else by now."""
    with _noting:
        noted = _lock_fds.get(fd)
        if noted is None or noted[1] is not owner:
            return
        del _lock_fds[fd]
        with contextlib.suppress(OSError):
            if _file_of(fd) == noted[0]:
                os.close(fd)


_WORD = {name: field.offset // 8 for name, field in LANE_BLOCK.items()}


class Claim:
    """Rows to count in. ``cells`` has C int32 cells, ``naturals`` one row of C int64 words per kind.

    ``mapped`` are the same rows as C sees them; ``None`` where there is no native core.
    """

    def __init__(
        self,
        cells: memoryview,
        naturals: list[memoryview],
        block: memoryview,
        cell_limit: int,
    ) -> None:
        self.cells = cells
        self.naturals = naturals
        self.block = block
        self.cell_limit = cell_limit
        self.lane = -1
        self.token = 0
        self.mapped: Rows | None = None
        self._lock_fd = -1
        self._lock_inode = (0, 0)
        self._owner: object = None
        self._pid = os.getpid()

    @property
    def private(self) -> bool:
        """Whether these rows lie outside of the table, because no lane was free."""
        return self.lane < 0

    def bump(self, word: str, by: int = 1) -> None:
        """Add to a counter of the lane block. Lost updates between threads are possible and harmless here."""
        at = _WORD[word]
        self.block[at] = (self.block[at] + by) & (2**64 - 1)

    def is_mine(self) -> bool:
        """Whether the token still stands; cheap, for every step. A private claim is always its process's."""
        return self.lane < 0 or self.block[0] == self.token

    def clear(self) -> None:
        """Nothing is outstanding; totals stay."""
        _zero(self)

    def holds_lock(self) -> bool:
        """Whether the descriptor behind the lock is still the one that was opened for it."""
        if self.lane < 0:
            return True
        try:
            facts = os.fstat(self._lock_fd)
        except OSError:
            return False
        return (facts.st_dev, facts.st_ino) == self._lock_inode

    def abandon(self) -> None:
        """Stop using the lane without touching its rows: in a forked child, or when it was lost.

        Closes the own copy of the descriptor only, so that a parent's lock stays.
        """
        _close(self._lock_fd, self._owner)
        self._lock_fd = -1

    def release(self) -> None:
        """Give the lane back, its rows zeroed; in a forked child they are the parent's, and stay."""
        if self.lane >= 0 and self._pid == os.getpid() and self.is_mine() and self.holds_lock():
            _zero(self)
            self.block[0] = 0
        self.abandon()

    @classmethod
    def of_table(cls, segment: Segment, clock_ns: int) -> Claim | None:
        """Claim a free lane of ``segment``; ``None`` if none is free, ``TableNotReady`` if it is being replaced, or
        its registry stays busy."""
        geometry = segment.geometry
        owner = object()
        fd = _open(segment, owner)
        try:
            if _lock_fds[fd][0] != segment.inode:
                raise TableNotReady(segment.location.text, f"table {segment.location.text} is being replaced")
            for lane in range(geometry.lanes):
                if try_lock(fd, LANE_LOCKS + lane):
                    break
            else:
                _close(fd, owner)
                return None
            claim = cls(
                segment.row(2 + lane),
                [segment.natural(lane, kind) for kind in Natural],
                segment.lane_block(lane),
                geometry.lane_cell_limit,
            )
            # Token first: if this process dies halfway, the monitor finds an owner that is gone, and empties
            # the lane. Rows before the registry, counting last: a reader that sees the lane counted in
            # lanes_hi never sees what a former owner left behind.
            claim.token = secrets.randbits(63) | 1
            claim.block[0] = claim.token
            _zero(claim)
            for word in range(1, len(_WORD)):
                claim.block[word] = 0
            claim.block[_WORD["pid"]] = os.getpid()
            claim.block[_WORD["claimed"]] = clock_ns
            try:
                _with_registry(segment, fd, lambda: _raise_lanes_hi(segment, lane + 1))
                claim.mapped = _mapped(segment, lane, claim)
            except BaseException:
                claim.block[0] = 0
                raise
            claim.lane = lane
            claim._lock_fd = fd
            claim._lock_inode = segment.inode
            claim._owner = owner
        except BaseException:
            _close(fd, owner)
            raise
        return claim

    @classmethod
    def outside(cls, geometry: Geometry) -> Claim:
        """Rows in memory of this process, of the same shape."""
        naturals_offset, stride = 8 * geometry.slots, 8 * geometry.slots
        block_offset = naturals_offset + len(Natural) * stride
        size = block_offset + LANE_BLOCK_SIZE
        # A file without a name, so that C can map it as it maps a table.
        with tempfile.TemporaryFile() if _memfd is None else os.fdopen(_memfd("loadboard"), "r+b") as file:
            file.truncate(size)
            words = map_file(file.fileno(), size, writable=True)
            naturals = [
                words[naturals_offset + kind * stride :][:stride].cast("q") for kind in range(len(Natural))
            ]
            claim = cls(
                words[: 4 * geometry.slots].cast("i"),
                naturals,
                words[block_offset:].cast("Q"),
                geometry.lane_cell_limit,
            )
            claim.mapped = _map(file.fileno(), size, 0, naturals_offset, stride, block_offset, claim)
        return claim


_memfd = getattr(os, "memfd_create", None)


def _mapped(segment: Segment, lane: int, claim: Claim) -> Rows | None:
    """The rows of ``lane`` through a descriptor of their own: a mapping would keep the lock's alive."""
    geometry = segment.geometry
    fd = segment.open_again(writable=True)
    try:
        return _map(
            fd,
            geometry.total_size,
            geometry.row_offset(2 + lane),
            geometry.natural_offset(lane, Natural.OUTSTANDING),
            geometry.naturals_stride,
            geometry.lane_block_offset(lane),
            claim,
        )
    finally:
        os.close(fd)


def _map(
    fd: int, size: int, cells: int, naturals: int, naturals_stride: int, block: int, claim: Claim
) -> Rows | None:
    """The rows at those offsets, as C sees them."""
    if NATIVE_MISSING:
        return None
    from score_table import _native

    slots = len(claim.cells)
    return _native.Rows(
        fd, size, cells, naturals, naturals_stride, block, slots, claim.cell_limit, claim.token
    )


def _zero(claim: Claim) -> None:
    # Cells first: what is counted twice for a moment only makes a slot look busier. Word by word: a string
    # instruction that the system interrupts leaves half a word. Totals stay, whoever counted them: the monitor may
    # not have read the last of them yet.
    for row in (claim.cells, *claim.naturals[:NATURAL_LEVELS]):
        words = np.frombuffer(row, dtype=np.int32 if row.itemsize == 4 else np.int64)
        np.bitwise_and(words, 0, out=words)


def ask_for_a_lane(segment: Segment) -> None:
    """Say that one more worker found no lane. The next table of this name will have more."""
    fd = segment.location.open(writable=True)
    try:
        _with_registry(segment, fd, lambda: _raise_lanes_wanted(segment))
    finally:
        os.close(fd)


def _raise_lanes_hi(segment: Segment, wanted: int) -> None:
    if segment.lanes_hi < wanted:
        segment.store("lanes_hi", wanted)


def _raise_lanes_wanted(segment: Segment) -> None:
    wanted = max(segment.read("lanes_wanted"), segment.geometry.lanes) + 1
    segment.store("lanes_wanted", min(wanted, MAX_LANES))


def _with_registry(segment: Segment, fd: int, change: Callable[[], None]) -> None:
    """Make ``change`` under the registry lock, which its holders keep for microseconds. ``TableNotReady`` if it
    stays busy."""
    for _ in range(_REGISTRY_TRIES):
        if try_lock(fd, REGISTRY_LOCK):
            try:
                change()
            finally:
                unlock(fd, REGISTRY_LOCK)
            return
        time.sleep(_REGISTRY_PAUSE_S)
    raise TableNotReady(
        segment.location.text,
        f"the registry of table {segment.location.text} stays locked by another process",
    )
