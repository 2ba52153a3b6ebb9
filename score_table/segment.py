"""One mapped segment: creating it complete, opening it with every check, its raw words."""

from __future__ import annotations

import contextlib
import copy
import os
import secrets
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from score_table.errors import TableIncompatible, TableNotReady, TableTruncated
from score_table.layout import (
    HEADER_SIZE,
    HOT_LINE,
    IDENTITY_PART,
    LAYOUT_HASH,
    LAYOUT_MAJOR,
    MAGIC,
    MONITOR_LINE,
    Field,
    Geometry,
    Natural,
    State,
)
from score_table.location import Location, creation_failed
from score_table.mapping import map_file

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_CRC_START = IDENTITY_PART["layout_major"].offset
_CRC_END = IDENTITY_PART["identity_crc"].offset


def boot_id() -> bytes:
    """16 bytes that change with every boot of this kernel; zeros where the kernel does not tell."""
    try:
        return bytes.fromhex(_BOOT_ID.read_text().strip().replace("-", ""))
    except (OSError, ValueError):
        return bytes(16)


class Segment:
    """A mapped table. Words are read and stored whole: an aligned word is never seen half-written.

    ``signed32``, ``unsigned32``, ``signed64`` and ``unsigned64`` view the whole segment as words of that
    kind; ``data`` as bytes. Who may write which word is said in ``layout.py``.
    """

    def __init__(self, location: Location, fd: int, geometry: Geometry, *, writable: bool) -> None:
        """Maps ``fd`` (which the caller keeps and closes)."""
        self.location = location
        self.geometry = geometry
        self.writable = writable
        facts = os.fstat(fd)
        self.inode = (facts.st_dev, facts.st_ino)
        self._view(map_file(fd, geometry.total_size, writable=writable))
        self.epoch = self.read("epoch", IDENTITY_PART)
        self.max_heartbeat_age_ns = self.read("max_heartbeat_age", IDENTITY_PART)
        self.boot_id = bytes(self.data[IDENTITY_PART["boot_id"].offset :][:16])

    def _view(self, data: memoryview) -> None:
        self.data = data
        self.signed32 = self.data.cast("i")
        self.unsigned32 = self.data.cast("I")
        self.signed64 = self.data.cast("q")
        self.unsigned64 = self.data.cast("Q")

    def copied(self) -> Segment:
        """This moment of the table in memory of this process, where nothing moves. Not to be written, and not for
        a core in C."""
        moment = copy.copy(self)
        moment.writable = False
        moment._view(memoryview(self.data.tobytes()))
        return moment

    # -- words --------------------------------------------------------------------------------------------

    def read(self, name: str, group: dict[str, Field] | None = None) -> int:
        """A 32- or 64-bit unsigned header field by its name."""
        field = (group or _HEADER_WORDS)[name]
        offset, size = field.offset, field.size
        return self.unsigned64[offset // 8] if size == 8 else self.unsigned32[offset // 4]

    def store(self, name: str, value: int) -> None:
        """Store a field of the hot or the monitor line in one piece."""
        field = _HEADER_WORDS[name]
        if field.size == 8:
            self.unsigned64[field.offset // 8] = value
        else:
            self.unsigned32[field.offset // 4] = value

    @property
    def state(self) -> State:
        """``State.RETIRED`` for a value this version does not know: such a table is to be left."""
        value = self.unsigned32[_STATE]
        return State(value) if value <= State.RETIRED else State.RETIRED

    @property
    def n(self) -> int:
        """Slots in use, 0..C whatever the header says."""
        return min(self.unsigned32[_N], self.geometry.slots)

    @property
    def lanes_hi(self) -> int:
        """Lanes ever claimed, 0..K whatever the header says."""
        return min(self.unsigned32[_LANES_HI], self.geometry.lanes)

    # -- rows ---------------------------------------------------------------------------------------------

    def row(self, row: int) -> memoryview:
        """Matrix row ``row`` as C int32 cells."""
        start = self.geometry.row_offset(row) // 4
        return self.signed32[start : start + self.geometry.slots]

    def natural(self, lane: int, kind: Natural) -> memoryview:
        """The natural-unit row ``kind`` of ``lane`` as C int64 words."""
        start = self.geometry.natural_offset(lane, kind) // 8
        return self.signed64[start : start + self.geometry.slots]

    def lane_block(self, lane: int) -> memoryview:
        """The lane block of ``lane`` as uint64 words."""
        start = self.geometry.lane_block_offset(lane) // 8
        return self.unsigned64[start : start + 32]

    def open_again(self, *, writable: bool) -> int:
        """A descriptor of the same segment; ``TableNotReady`` if its name leads elsewhere by now."""
        fd = self.location.open(writable=writable)
        facts = os.fstat(fd)
        if (facts.st_dev, facts.st_ino) != self.inode:
            os.close(fd)
            raise TableNotReady(self.location.text, f"table {self.location.text} is being replaced")
        return fd

    def has_name(self) -> bool:
        """Whether the name still leads to this very segment."""
        try:
            facts = os.stat(self.location.path)
        except OSError:
            return False
        return (facts.st_dev, facts.st_ino) == self.inode

    def is_current(self) -> bool:
        """Whether the name still leads to this very segment and its monitor has not retired it."""
        return self.has_name() and self.state != State.RETIRED

    def close(self) -> None:
        """Unmap, where no view of the words is held any more; else the last view's end unmaps."""
        for view in (self.signed32, self.unsigned32, self.signed64, self.unsigned64, self.data):
            with contextlib.suppress(BufferError):
                view.release()

    # -- life ---------------------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        location: Location,
        geometry: Geometry,
        *,
        mode: int,
        gid: int | None,
        max_heartbeat_age_ns: int,
        before_visible: Callable[[Segment], None] | None = None,
    ) -> Segment:
        """Make a complete table under a temporary name, then rename it over whatever has the name.

        ``before_visible`` may fill in more before anyone can see the segment. ``TableNoSpace``,
        ``TablePermission`` or ``TableCreateFailed``; nothing is left behind then.
        """
        temporary = location.temporary()
        try:
            fd = temporary.create(geometry.total_size)
        except OSError as error:
            raise creation_failed(location, error, geometry.total_size) from error
        try:
            if gid is not None:
                os.fchown(fd, -1, gid)
            os.fchmod(fd, mode)  # not at creation: the umask would cut it
            _write_identity_part(fd, geometry, max_heartbeat_age_ns)
            segment = cls(location, fd, geometry, writable=True)
            if before_visible is not None:
                before_visible(segment)
            segment.unsigned64[0] = MAGIC
            os.rename(temporary.path, location.path)
        except OSError as error:
            temporary.path.unlink(missing_ok=True)
            raise creation_failed(location, error, geometry.total_size) from error
        except BaseException:
            temporary.path.unlink(missing_ok=True)
            raise
        finally:
            os.close(fd)
        return segment

    @classmethod
    def open(cls, location: Location, *, writable: bool) -> Segment:
        """Map the table that has the name now, after checking everything its header says.

        ``TableAbsent``, ``TableNotReady``, ``TableIncompatible``, ``TableTruncated``, ``TablePermission``,
        ``TableUntrusted``.
        """
        fd = location.open(writable=writable)
        try:
            geometry = _check_header(location, fd)
            return cls(location, fd, geometry, writable=writable)
        finally:
            os.close(fd)


_HEADER_WORDS = {**HOT_LINE, **MONITOR_LINE}
_STATE = HOT_LINE["state"].offset // 4
_N = HOT_LINE["n"].offset // 4
_LANES_HI = HOT_LINE["lanes_hi"].offset // 4


def _write_identity_part(fd: int, geometry: Geometry, max_heartbeat_age_ns: int) -> None:
    header = bytearray(HEADER_SIZE)
    values: dict[str, int | bytes] = {
        **geometry.identity_values(),
        "epoch": secrets.randbits(63) | 1,
        "max_heartbeat_age": max_heartbeat_age_ns,
        "boot_id": boot_id(),
    }
    for name, value in values.items():
        field = IDENTITY_PART[name]
        struct.pack_into("<" + field.kind, header, field.offset, value)  # private bytes, nobody reads them
    crc = zlib.crc32(header[_CRC_START:_CRC_END])
    struct.pack_into("<I", header, _CRC_END, crc)
    os.pwrite(fd, header, 0)


def _check_header(location: Location, fd: int) -> Geometry:
    name = location.text
    size = os.fstat(fd).st_size
    header = os.pread(fd, HEADER_SIZE, 0)
    if size == 0:
        raise TableNotReady(name, f"table {name} is empty: its creator has not finished, or died")
    if header[:8] not in (MAGIC.to_bytes(8, "little"), bytes(8)):
        raise TableIncompatible(name, f"{location.path} is not a loadboard table: choose another name")
    if len(header) < HEADER_SIZE:
        raise TableTruncated(name, f"table {name} has only {size} bytes: {_make_anew(location)}")

    def value(field_name: str) -> int:
        field = IDENTITY_PART[field_name]
        return int(struct.unpack_from("<" + field.kind, header, field.offset)[0])

    if value("magic") == 0:
        raise TableNotReady(name, f"table {name} is not ready yet: its creator has not finished, or died")
    if value("layout_major") != LAYOUT_MAJOR:
        raise TableIncompatible(
            name,
            f"table {name} has layout {value('layout_major')}, this loadboard reads {LAYOUT_MAJOR}: "
            "run the same version in monitor and proxies",
        )
    if zlib.crc32(header[_CRC_START:_CRC_END]) != value("identity_crc"):
        raise TableTruncated(name, f"the header of table {name} is damaged: {_make_anew(location)}")
    if value("layout_hash") != LAYOUT_HASH:
        raise TableIncompatible(
            name,
            f"table {name} was laid out by another build of loadboard: run the same version in monitor and proxies",
        )
    try:
        geometry = Geometry(value("slots"), value("lanes"))
    except ValueError as error:
        raise TableTruncated(name, f"the header of table {name} is damaged: {error}") from error
    expected = geometry.identity_values()
    expected.pop("layout_minor")  # a newer minor version only adds what this one does not look at
    wrong = [key for key, right in expected.items() if value(key) != right]
    if wrong:
        raise TableTruncated(name, f"the header of table {name} contradicts itself in {', '.join(wrong)}")
    if size < geometry.total_size:
        raise TableTruncated(
            name,
            f"table {name} has {size} of {geometry.total_size} bytes: {_make_anew(location)}",
        )
    return geometry


def _make_anew(location: Location) -> str:
    if location.lock_path.exists():
        return "restart the monitor, it makes a new one"
    return "a copy that was not finished, since no lock file is beside it; copy the table once more"
