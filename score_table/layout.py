"""Layout version 1 of the score table: every offset, derived from the one before it.

Little-endian. C = slots (a multiple of 16), K = lanes::

    0        +--------------------------------------------------------------+
             | header, 4 KiB: identity part (written once), hot line,       |
             | monitor line                                                 |
    4096     +--------------------------------------------------------------+
             | matrix, int32, 2 + K rows of C cells, rows MATRIX_STRIDE apart|
             |   row 0    base      monitor                                 |
             |   row 1    rest      monitor                                 |
             |   row 2+k  lane k    the owner of lane k                     |
             +--------------------------------------------------------------+
             | natural units, int64, per lane one row of C per kind         |
             +--------------------------------------------------------------+
             | lane blocks, 256 bytes each                                  |
             +--------------------------------------------------------------+
             | identity blocks, 1 KiB per slot                              |
             +--------------------------------------------------------------+
             | detail records, 704 bytes per slot                           |
             +--------------------------------------------------------------+

``docs/table-layout.md`` is this module as a page; a test compares the two.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property

MAGIC = int.from_bytes(b"LOADBRD\x01", "little")
LAYOUT_MAJOR = 1
LAYOUT_MINOR = 0

HEADER_SIZE = 4096
CACHE_LINE = 64

#: 1024 units in the matrix are one request.
UNITS = 1024
#: Two live values this close (1/8 request) count as equal, so that residues of estimates pin nothing.
TIE_WINDOW = UNITS // 8
#: Bounds of an unmarked ``base`` or ``rest`` cell, and of the sum of all lane cells of a slot.
SCORE_LIMIT = 2**29 - 1
LANE_SUM_LIMIT = 2**29
#: A cell at or above this is marked: the slot is not to be chosen while an unmarked one is there.
MARK_FLOOR = 2**30
#: Distance of the marks, and the bound of a score inside a marked cell.
MARK_BAND = 2**27
MARKED_SCORE_LIMIT = 2**26 - 1
#: A ``base`` cell at or above this belongs to a slot that nobody holds.
UNUSED_FLOOR = MARK_FLOOR + 3 * MARK_BAND
#: What one dispatch may cost, what a token may, and the longest prompt that is told apart (longer ones count as this
#: long).
DISPATCH_LIMIT = 2**20
PRICE_LIMIT = 2**10
PROMPT_TOKENS_LIMIT = 2**18

MIN_SLOTS, MAX_SLOTS, SLOTS_STEP = 16, 65536, 16
MIN_LANES, MAX_LANES = 1, 1024

#: OFD lock bytes on the segment, far behind its last byte. Lane k is owned by a lock on LANE_LOCKS + k.
LANE_LOCKS = 2**40
REGISTRY_LOCK = LANE_LOCKS - 1


class Mark(IntEnum):
    """Why a slot is not to be chosen, the mildest first; 0 is *no mark*."""

    NONE = 0
    AVOIDED = 1
    DRAINING = 2
    UNREACHABLE = 3
    UNUSED = 4

    @property
    def cell(self) -> int:
        """The cell value of this mark around a score of 0."""
        return MARK_FLOOR + MARK_BAND // 2 + (self - 1) * MARK_BAND


class State(IntEnum):
    """State of the table as its monitor last left it."""

    INIT = 0
    READY = 1
    STOPPED = 2
    RETIRED = 3


class Natural(IntEnum):
    """The natural-unit rows of a lane. The first five are levels, the others totals that only grow.

    The rows from ``BY_OUTSTANDING`` on split ``DISPATCHED`` by :class:`Reason`; no tick reads them.
    """

    OUTSTANDING = 0
    PROMPT_TOKENS = 1
    KV_TOKENS = 2
    HELD = 3
    GUESSED = 4
    DISPATCHED = 5
    ENDED = 6
    SUSPECTS = 7
    BY_OUTSTANDING = 8
    BY_MARKED = 9
    BY_ROUND_ROBIN = 10
    BY_UNMATCHED = 11


class Reason(IntEnum):
    """By what a pick was decided. Every dispatch counts under one: where several hold, the last of them."""

    SCORE = 0  #: the live scores of a table that its monitor keeps up to date
    OUTSTANDING = 1  #: the monitor is silent: the lanes and the fading ``rest``
    MARKED = 2  #: all candidates are marked: the mildest mark, then the score
    ROUND_ROBIN = 3  #: in turn, or by what the objects themselves say; the table was not asked
    UNMATCHED = 4  #: some candidate has no slot, and was compared by what its worker has open there

    @property
    def row(self) -> Natural:
        """Where it is counted; ``SCORE`` is what is left of ``DISPATCHED``, and has no row."""
        return Natural(Natural.SUSPECTS + self) if self else Natural.DISPATCHED


NATURAL_LEVELS = 5
#: Rows that the monitor reads on every tick.
NATURAL_TICK = 8

assert Mark.UNUSED.cell - MARK_BAND // 2 == UNUSED_FLOOR
# The largest possible column: an unused slot with the highest marked score and all lanes at their stop.
assert Mark.UNUSED.cell + MARKED_SCORE_LIMIT + LANE_SUM_LIMIT <= 2**31 - 1
assert Mark.AVOIDED.cell - MARKED_SCORE_LIMIT >= MARK_FLOOR
assert SCORE_LIMIT + LANE_SUM_LIMIT < MARK_FLOOR


@dataclass(frozen=True)
class Field:
    """One field: ``kind`` is a struct code, ``writer`` who alone may write it after creation."""

    name: str
    kind: str
    writer: str
    meaning: str
    offset: int = 0

    @property
    def size(self) -> int:
        """Bytes."""
        return struct.calcsize("<" + self.kind)


def _placed(start: int, *fields: tuple[str, str, str, str]) -> dict[str, Field]:
    placed: dict[str, Field] = {}
    offset = start
    for name, kind, writer, meaning in fields:
        size = struct.calcsize("<" + kind)
        align = 1 if kind.endswith("s") else size
        offset = -(-offset // align) * align
        placed[name] = Field(name, kind, writer, meaning, offset)
        offset += size
    return placed


def packing(group: dict[str, Field], first: str) -> struct.Struct:
    """How the fields of ``group`` from ``first`` on lie in memory, gaps included."""
    code, end = "<", group[first].offset
    for placed in group.values():
        if placed.offset < group[first].offset:
            continue
        code += f"{placed.offset - end}x{placed.kind}"
        end = placed.offset + placed.size
    return struct.Struct(code)


IDENTITY_PART = _placed(
    0,
    ("magic", "Q", "creator, last", "`LOADBRD` and the byte 1; 0 while the table is being made"),
    ("layout_major", "H", "creator", "readers refuse another major version"),
    ("layout_minor", "H", "creator", "readers accept any minor version"),
    ("header_size", "I", "creator", "4096"),
    ("layout_hash", "Q", "creator", "checksum of all field definitions"),
    ("total_size", "Q", "creator", "bytes of the segment"),
    ("epoch", "Q", "creator", "random; another one is another table"),
    ("slots", "I", "creator", "C, capacity in instances"),
    ("lanes", "I", "creator", "K, capacity in proxy worker processes"),
    ("units", "I", "creator", "1024: cell units of one request"),
    ("tie_window", "I", "creator", "units within which two scores count as equal"),
    ("mark_avoided", "i", "creator", "cell value of the mark *avoided*"),
    ("mark_draining", "i", "creator", "cell value of the mark *draining*"),
    ("mark_unreachable", "i", "creator", "cell value of the mark *unreachable*"),
    ("mark_unused", "i", "creator", "cell value of the mark *unused*"),
    ("max_heartbeat_age", "Q", "creator", "ns after which the monitor counts as dead"),
    ("matrix_offset", "Q", "creator", "first byte of the matrix"),
    ("matrix_stride", "Q", "creator", "bytes from row to row"),
    ("naturals_offset", "Q", "creator", "first byte of the natural-unit rows"),
    ("naturals_stride", "Q", "creator", "bytes from row to row; 12 rows per lane"),
    ("lane_blocks_offset", "Q", "creator", "first lane block"),
    ("lane_block_size", "Q", "creator", "256"),
    ("identities_offset", "Q", "creator", "first identity block"),
    ("identity_size", "Q", "creator", "1024"),
    ("details_offset", "Q", "creator", "first detail record"),
    ("detail_size", "Q", "creator", "704"),
    ("boot_id", "16s", "creator", "kernel boot id; after a reboot the table is not adopted"),
    ("identity_crc", "I", "creator", "CRC-32 of the bytes from layout_major up to here"),
)

HOT_LINE = _placed(
    256,
    ("heartbeat", "Q", "monitor", "CLOCK_MONOTONIC ns at which the lanes were read; stored after the cells"),
    ("tick", "Q", "monitor", "ticks since creation"),
    ("state", "I", "monitor", "0 init, 1 ready, 2 stopped, 3 retired"),
    ("n", "I", "monitor", "slots in use; only grows"),
    ("lanes_hi", "I", "lane claimers, under the registry lock", "lanes ever claimed"),
    ("lanes_wanted", "I", "workers without a lane", "lanes that would have been needed"),
    (
        "membership",
        "Q",
        "monitor",
        "changes with each slot assignment; a cached slot map of another value is void",
    ),
)

MONITOR_LINE = _placed(
    320,
    ("monitor_pid", "Q", "monitor", "process id of the monitor"),
    ("monitor_started", "Q", "monitor", "CLOCK_BOOTTIME ns at which it opened the table"),
    ("monitors", "Q", "monitor", "monitors that have opened this table"),
)

LANE_BLOCK = _placed(
    0,
    ("token", "Q", "lane owner; monitor when reclaiming", "random, 0 = free"),
    ("pid", "Q", "lane owner", "process id of the worker"),
    ("claimed", "Q", "lane owner", "CLOCK_MONOTONIC ns of the claim"),
    ("picks", "Q", "lane owner", "picks made"),
    ("picks_outstanding", "Q", "lane owner", "of these degraded: the monitor was silent"),
    ("picks_marked", "Q", "lane owner", "of these degraded: only marked candidates"),
    ("picks_round_robin", "Q", "lane owner", "of these degraded: nothing known"),
    ("picks_unmatched", "Q", "lane owner", "of these with a candidate that has no slot"),
    ("count_errors", "Q", "lane owner", "undos that would have gone below zero"),
    ("saturations", "Q", "lane owner", "adds cut off at the cell's stop"),
)

IDENTITY_BLOCK = _placed(
    0,
    ("crc", "I", "monitor", "CRC-32 of the rest of the block"),
    ("id_length", "H", "monitor", "bytes of id"),
    ("url_length", "H", "monitor", "bytes of url"),
    ("tags_length", "H", "monitor", "bytes of tags"),
    ("generation", "Q", "monitor", "incarnation of the slot; 0 = never assigned"),
    ("price_request", "d", "monitor", "units per request until its end"),
    ("price_prompt_token", "d", "monitor", "units per prompt token until the first token"),
    ("price_kv_token", "d", "monitor", "units per prompt token until the end"),
    ("id", "192s", "monitor", "instance id, UTF-8"),
    ("url", "304s", "monitor", "base URL, UTF-8"),
    ("tags", "360s", "monitor", "tags, a JSON object of strings"),
    ("before_dispatched", "Q", "monitor", "what row 5 of all lanes said when the slot was assigned"),
    ("before_outstanding", "Q", "monitor", "row 8 likewise"),
    ("before_marked", "Q", "monitor", "row 9 likewise"),
    ("before_round_robin", "Q", "monitor", "row 10 likewise"),
    ("before_unmatched", "Q", "monitor", "row 11 likewise"),
)

DETAIL_RECORD = _placed(
    0,
    ("sequence", "Q", "monitor", "odd while the record is being written"),
    ("crc", "I", "monitor", "CRC-32 of the rest of the record"),
    ("state", "I", "monitor", "0 new, 1 up, 2 stale, 3 unreachable"),
    ("flags", "I", "monitor", "bit 0: the score is estimated"),
    (
        "valid",
        "I",
        "monitor",
        "bit i: sample field i is known; bits 9 to 11: the score goes by the fields *taken* 0 to 2",
    ),
    ("generation", "Q", "monitor", "that of the slot when the record was written"),
    ("sample_time", "Q", "monitor", "CLOCK_BOOTTIME ns of the last sample; 0 = never"),
    ("failure_time", "Q", "monitor", "CLOCK_BOOTTIME ns of the last failed poll; 0 = never"),
    ("failures", "Q", "monitor", "failed polls since the last sample"),
    ("dispatched", "Q", "monitor", "requests sent there by this host since the slot was assigned"),
    ("ended", "Q", "monitor", "of these ended"),
    ("inflight", "d", "monitor", "sample field 0: running + waiting requests"),
    ("running", "d", "monitor", "sample field 1: requests in the batch"),
    ("waiting", "d", "monitor", "sample field 2: requests not yet in the batch"),
    ("qps_1m", "d", "monitor", "sample field 3: finished requests per second, last minute"),
    ("kv_usage", "d", "monitor", "sample field 4: share of the KV cache in use, 0..1"),
    ("queued_tokens", "d", "monitor", "sample field 5: prompt tokens waiting for prefill"),
    ("throughput", "d", "monitor", "sample field 6: generated tokens per second"),
    ("kv_capacity", "d", "monitor", "sample field 7: KV cache in tokens"),
    ("slots", "d", "monitor", "sample field 8: requests that fit the batch"),
    ("own", "d", "monitor", "score part: outstanding of this host, held included"),
    ("others", "d", "monitor", "score part: requests of others, low-passed, signed"),
    ("requests", "d", "monitor", "score part: max(0, own + others)"),
    ("pending", "d", "monitor", "score part: prompt tokens without a first token"),
    ("kv_demand", "d", "monitor", "score part: KV demand as a share of the capacity"),
    ("speed", "d", "monitor", "score part: time per output token relative to the fleet"),
    ("prompt_tokens", "d", "monitor", "score part: mean prompt length of its pool's requests, in tokens"),
    ("score", "d", "monitor", "the exact score at the last tick, in requests"),
    ("others_queued", "d", "monitor", "taken 0: prompt tokens of others in the engine's queue, low-passed"),
    ("others_waiting", "d", "monitor", "taken 1: requests of others in the engine's queue, low-passed"),
    ("scored_qps", "d", "monitor", "taken 2: finished requests per second, last minute"),
    ("share", "d", "monitor", "its weight over the largest in its pool: the score is divided by it"),
    ("mode", "48s", "monitor", "score mode of its pool, UTF-8, zero padded"),
    (
        "pool",
        "112s",
        "monitor",
        "tags of its pool, `key=value` joined by `+`, UTF-8, zero padded; empty in the rest",
    ),
    ("engine", "16s", "monitor", "engine found, UTF-8, zero padded"),
    ("reason", "288s", "monitor", "why the state is not *up*, or what was missed, UTF-8, zero padded"),
)

LANE_BLOCK_SIZE = 256
IDENTITY_SIZE = 1024
DETAIL_SIZE = 704

GROUPS: dict[str, dict[str, Field]] = {
    "Identity part": IDENTITY_PART,
    "Hot line": HOT_LINE,
    "Monitor line": MONITOR_LINE,
    "Lane block": LANE_BLOCK,
    "Identity block": IDENTITY_BLOCK,
    "Detail record": DETAIL_RECORD,
}


def _layout_hash() -> int:
    text = repr([[(f.name, f.kind, f.offset) for f in group.values()] for group in GROUPS.values()])
    text += repr([(kind.name, kind.value) for kind in Natural]) + repr([(m.name, m.cell) for m in Mark if m])
    data = text.encode()
    return zlib.crc32(data) << 32 | zlib.crc32(data[::-1])


LAYOUT_HASH = _layout_hash()


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


@dataclass(frozen=True)
class Geometry:
    """All sizes and offsets that follow from C ``slots`` and K ``lanes``.

    Raises ``ValueError`` where either is out of range.
    """

    slots: int
    lanes: int

    def __post_init__(self) -> None:
        if not (MIN_SLOTS <= self.slots <= MAX_SLOTS) or self.slots % SLOTS_STEP:
            raise ValueError(
                f"slots is {self.slots}: it must be a multiple of {SLOTS_STEP} from {MIN_SLOTS} to {MAX_SLOTS}"
            )
        if not MIN_LANES <= self.lanes <= MAX_LANES:
            raise ValueError(f"lanes is {self.lanes}: it must be from {MIN_LANES} to {MAX_LANES}")

    @property
    def rows(self) -> int:
        """Rows of the matrix: base, rest and one per lane."""
        return 2 + self.lanes

    @property
    def matrix_offset(self) -> int:
        return HEADER_SIZE

    @property
    def matrix_stride(self) -> int:
        """An odd number of cache lines, so that the cells of one slot do not share one cache set."""
        return _round_up(4 * self.slots, CACHE_LINE) | CACHE_LINE

    @cached_property
    def naturals_offset(self) -> int:
        return self.matrix_offset + self.rows * self.matrix_stride

    @cached_property
    def naturals_stride(self) -> int:
        return _round_up(8 * self.slots, CACHE_LINE)

    @cached_property
    def lane_blocks_offset(self) -> int:
        return self.naturals_offset + self.lanes * len(Natural) * self.naturals_stride

    @cached_property
    def identities_offset(self) -> int:
        return self.lane_blocks_offset + self.lanes * LANE_BLOCK_SIZE

    @cached_property
    def details_offset(self) -> int:
        return self.identities_offset + self.slots * IDENTITY_SIZE

    @property
    def total_size(self) -> int:
        return _round_up(self.details_offset + self.slots * DETAIL_SIZE, 4096)

    @property
    def lane_cell_limit(self) -> int:
        """Where a lane cell stops: no column of all lanes, and the row of one process that counts outside of
        the table, can exceed ``LANE_SUM_LIMIT``."""
        return LANE_SUM_LIMIT // (self.lanes + 1)

    def row_offset(self, row: int) -> int:
        """First byte of matrix row ``row``."""
        return self.matrix_offset + row * self.matrix_stride

    def natural_offset(self, lane: int, kind: Natural) -> int:
        """First byte of the natural-unit row ``kind`` of ``lane``."""
        return self.naturals_offset + (lane * len(Natural) + kind) * self.naturals_stride

    def lane_block_offset(self, lane: int) -> int:
        return self.lane_blocks_offset + lane * LANE_BLOCK_SIZE

    def identity_offset(self, slot: int) -> int:
        return self.identities_offset + slot * IDENTITY_SIZE

    def detail_offset(self, slot: int) -> int:
        return self.details_offset + slot * DETAIL_SIZE

    def identity_values(self) -> dict[str, int]:
        """What the identity part of the header says for this geometry."""
        return {
            "layout_major": LAYOUT_MAJOR,
            "layout_minor": LAYOUT_MINOR,
            "header_size": HEADER_SIZE,
            "layout_hash": LAYOUT_HASH,
            "total_size": self.total_size,
            "slots": self.slots,
            "lanes": self.lanes,
            "units": UNITS,
            "tie_window": TIE_WINDOW,
            "mark_avoided": Mark.AVOIDED.cell,
            "mark_draining": Mark.DRAINING.cell,
            "mark_unreachable": Mark.UNREACHABLE.cell,
            "mark_unused": Mark.UNUSED.cell,
            "matrix_offset": self.matrix_offset,
            "matrix_stride": self.matrix_stride,
            "naturals_offset": self.naturals_offset,
            "naturals_stride": self.naturals_stride,
            "lane_blocks_offset": self.lane_blocks_offset,
            "lane_block_size": LANE_BLOCK_SIZE,
            "identities_offset": self.identities_offset,
            "identity_size": IDENTITY_SIZE,
            "details_offset": self.details_offset,
            "detail_size": DETAIL_SIZE,
        }
