"""Detail records: what people, exporters and viewers want to know of a slot. A pick never reads them."""

from __future__ import annotations

import math
import struct
import zlib
from operator import attrgetter
from typing import Any, NamedTuple

from score_table.layout import DETAIL_RECORD, packing
from score_table.segment import Segment

STATES = ("new", "up", "stale", "unreachable")
SAMPLE_FIELDS = (
    "inflight",
    "running",
    "waiting",
    "qps_1m",
    "kv_usage",
    "queued_tokens",
    "throughput",
    "kv_capacity",
    "slots",
)
SCORE_PARTS = ("own", "others", "requests", "pending", "kv_demand", "speed", "prompt_tokens", "score")
#: What only some modes take in, and only where all instances of the pool tell it.
TAKEN_FIELDS = ("others_queued", "others_waiting", "scored_qps")

_SAMPLE, _PARTS, _TAKEN = attrgetter(*SAMPLE_FIELDS), attrgetter(*SCORE_PARTS), attrgetter(*TAKEN_FIELDS)
_OPTIONAL = (*SAMPLE_FIELDS, *TAKEN_FIELDS)
_NUMBERS = (*SAMPLE_FIELDS, *SCORE_PARTS, *TAKEN_FIELDS, "share")
_VALID = tuple(1 << bit for bit in range(len(_OPTIONAL)))
_TEXTS = ("mode", "pool", "engine", "reason")
_ESTIMATED = 1
_CRC = DETAIL_RECORD["crc"].offset
_BODY = DETAIL_RECORD["state"].offset
_END = DETAIL_RECORD["reason"].offset + DETAIL_RECORD["reason"].size
_PACK = packing(DETAIL_RECORD, first="state")
_LIMITS = {name: DETAIL_RECORD[name].size for name in _TEXTS}
_TRIES = 8


class Detail(NamedTuple):
    """One slot's record; ``None`` in a sample field is *unknown*, in a taken one *not part of the score*. Score parts are
    in requests and tokens."""

    generation: int = 0
    state: str = "new"  #: one of ``STATES``
    reason: str = ""  #: cut to 288 bytes
    engine: str = ""  #: cut to 16 bytes
    mode: str = ""  #: cut to 48 bytes
    pool: str = ""  #: cut to 112 bytes
    estimated: bool = False
    sample_boot_ns: int = 0  #: CLOCK_BOOTTIME, 0 = never
    failure_boot_ns: int = 0
    failures: int = 0
    dispatched: int = (
        0  #: requests of this host since the slot was assigned, whether their workers live or not
    )
    ended: int = 0
    inflight: float | None = None
    running: float | None = None
    waiting: float | None = None
    qps_1m: float | None = None
    kv_usage: float | None = None
    queued_tokens: float | None = None
    throughput: float | None = None
    kv_capacity: float | None = None
    slots: float | None = None
    own: float = 0.0
    others: float = 0.0
    requests: float = 0.0
    pending: float = 0.0
    kv_demand: float = 0.0
    speed: float = 1.0
    prompt_tokens: float = 0.0
    score: float = 0.0
    others_queued: float | None = None
    others_waiting: float | None = None
    scored_qps: float | None = None
    share: float = 1.0

    def encoded(self) -> bytes:
        """Checksum and body, without the sequence word."""
        known, taken = _SAMPLE(self), _TAKEN(self)
        valid = 0
        for bit, value in zip(_VALID, known + taken, strict=True):
            if value is not None:
                valid |= bit
        body = _PACK.pack(
            STATES.index(self.state),
            _ESTIMATED if self.estimated else 0,
            valid,
            self.generation,
            self.sample_boot_ns,
            self.failure_boot_ns,
            self.failures,
            self.dispatched,
            self.ended,
            *[0.0 if value is None else value for value in known],
            *_PARTS(self),
            *[0.0 if value is None else value for value in taken],
            self.share,
            *[getattr(self, name).encode()[:limit] for name, limit in _LIMITS.items()],
        )
        return struct.pack("<I", zlib.crc32(body)) + body

    @classmethod
    def decoded(cls, record: bytes) -> Detail | None:
        """What a whole record says (see :func:`copy_record`); ``None`` if its state is unknown or a number is
        not finite: no monitor writes such a record."""
        state, flags, valid, generation, sample, failure, failures, dispatched, ended, *rest = (
            _PACK.unpack_from(record, _BODY - _CRC)
        )
        numbers, texts = rest[: -len(_TEXTS)], rest[-len(_TEXTS) :]
        if state >= len(STATES) or not all(map(math.isfinite, numbers)):
            return None
        fields: dict[str, Any] = dict(zip(_NUMBERS, numbers, strict=True))
        fields.update(zip(_TEXTS, map(_text, texts), strict=True))
        for bit, name in zip(_VALID, _OPTIONAL, strict=True):
            if not valid & bit:
                fields[name] = None
        return cls(
            generation=generation,
            state=STATES[state],
            estimated=bool(flags & _ESTIMATED),
            sample_boot_ns=sample,
            failure_boot_ns=failure,
            failures=failures,
            dispatched=dispatched,
            ended=ended,
            **fields,
        )


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode("utf-8", "ignore")


def write_detail(segment: Segment, slot: int, detail: Detail) -> None:
    """Replace the record of ``slot``. The monitor alone calls this."""
    store_record(segment, slot, detail.encoded())


def store_record(segment: Segment, slot: int, record: bytes) -> None:
    """Replace the record of ``slot`` by one that is encoded already, so that it is odd as shortly as can be."""
    start = segment.geometry.detail_offset(slot)
    words, word = segment.unsigned64, start // 8
    sequence = words[word] | 1
    words[word] = sequence
    segment.data[start + _CRC : start + _CRC + len(record)] = record
    words[word] = (sequence + 1) & (2**64 - 1)


def copy_record(segment: Segment, slot: int) -> bytes | None:
    """The record of ``slot`` in one piece, from the checksum on; ``None`` if none was written yet, or none
    could be copied whole.

    The checksum, not only the sequence word, proves that a record is whole: plain Python orders no stores
    on machines with a weak memory model.
    """
    start = segment.geometry.detail_offset(slot)
    words, word = segment.unsigned64, start // 8
    for _ in range(_TRIES):
        before = words[word]
        if before & 1:
            continue
        if before == 0:
            return None
        record = segment.data[start + _CRC : start + _END].tobytes()
        if words[word] == before and _whole(record):
            return record
    return None


def read_detail(segment: Segment, slot: int) -> Detail | None:
    """The record of ``slot``; ``None`` if none was written yet, none could be read whole, or it is damaged."""
    record = copy_record(segment, slot)
    return None if record is None else Detail.decoded(record)


def _whole(record: bytes) -> bool:
    return int.from_bytes(record[:4], "little") == zlib.crc32(record[_BODY - _CRC :])
