"""Who sits in which slot: identity blocks, and the directory made of them."""

from __future__ import annotations

import json
import math
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from score_table.layout import (
    DISPATCH_LIMIT,
    HOT_LINE,
    IDENTITY_BLOCK,
    IDENTITY_SIZE,
    PRICE_LIMIT,
    UNUSED_FLOOR,
    Reason,
    packing,
)
from score_table.segment import Segment

ID_LIMIT = 190
URL_LIMIT = 300
TAGS_LIMIT = 350

_BODY = IDENTITY_BLOCK["id_length"].offset
_END = IDENTITY_BLOCK["before_unmatched"].offset + IDENTITY_BLOCK["before_unmatched"].size
_PACK = packing(IDENTITY_BLOCK, first="id_length")
_MEMBERSHIP = HOT_LINE["membership"].offset // 8


@dataclass(frozen=True)
class Prices:
    """What one dispatch adds to its own lane cell, in units (1024 = one request).

    ``request`` until the end, ``prompt_token`` per prompt token until the first token, ``kv_token`` per
    prompt token until the end. Fixed per slot generation, so that a cell is a fixed linear function of the
    lane's natural counters.
    """

    request: float
    prompt_token: float
    kv_token: float

    def bounded(self) -> Prices:
        """The same prices, each cut at its limit; what one dispatch costs is cut at ``DISPATCH_LIMIT`` besides.

        ``ValueError`` if one is negative or not finite.
        """
        for name in ("request", "prompt_token", "kv_token"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"price {name} is {value}: it must be finite and not negative")
        return Prices(
            min(self.request, DISPATCH_LIMIT / 2),
            min(self.prompt_token, PRICE_LIMIT),
            min(self.kv_token, PRICE_LIMIT),
        )


@dataclass(frozen=True)
class Identity:
    """The holder of a slot. ``id`` at most 190 bytes, ``url`` 300, ``tags`` 350 as JSON (UTF-8)."""

    id: str
    url: str
    generation: int
    prices: Prices
    tags: Mapping[str, str] = field(default_factory=dict)
    #: What all lanes had counted at the slot by :class:`Reason`, the dispatches of all reasons first, when it
    #: was assigned; set by the writer.
    before: tuple[int, ...] = field(default=(0,) * len(Reason), compare=False)

    def encoded(self) -> bytes:
        """The block's 1024 bytes. ``ValueError`` naming what is too long."""
        parts = {}
        for name, text, limit in (
            ("id", self.id, ID_LIMIT),
            ("url", self.url, URL_LIMIT),
            ("tags", json.dumps(dict(self.tags), separators=(",", ":"), ensure_ascii=False), TAGS_LIMIT),
        ):
            raw = text.encode("utf-8", "surrogateescape")
            if len(raw) > limit:
                raise ValueError(
                    f"{name} of instance {self.id!r} has {len(raw)} bytes, the table holds {limit}: shorten it"
                )
            parts[name] = raw
        prices = self.prices.bounded()
        body = _PACK.pack(
            len(parts["id"]),
            len(parts["url"]),
            len(parts["tags"]),
            self.generation,
            prices.request,
            prices.prompt_token,
            prices.kv_token,
            parts["id"],
            parts["url"],
            parts["tags"],
            *self.before,
        )
        block = struct.pack("<I", zlib.crc32(body)) + body
        return block.ljust(IDENTITY_SIZE, b"\0")

    @classmethod
    def decoded(cls, block: bytes) -> Identity | None:
        """What the block says; ``None`` if it was never written, is half-written or damaged."""
        if not is_whole(block):
            return None
        id_length, url_length, tags_length, generation, *rest = _PACK.unpack_from(block, _BODY)
        if generation == 0 or id_length > ID_LIMIT or url_length > URL_LIMIT or tags_length > TAGS_LIMIT:
            return None
        request, prompt_token, kv_token, raw_id, raw_url, raw_tags, *before = rest
        try:
            tags = json.loads(raw_tags[:tags_length].decode())
            prices = Prices(request, prompt_token, kv_token).bounded()
        except ValueError:
            return None
        if not isinstance(tags, dict):
            return None
        return cls(
            raw_id[:id_length].decode("utf-8", "surrogateescape"),
            raw_url[:url_length].decode("utf-8", "surrogateescape"),
            generation,
            prices,
            {str(key): str(value) for key, value in tags.items()},
            tuple(before),
        )


def is_whole(block: bytes) -> bool:
    """Whether the checksum of an identity block is right; it is not in one that was never written."""
    return int.from_bytes(block[:4], "little") == zlib.crc32(block[_BODY:_END])


def copy_block(segment: Segment, slot: int) -> bytes:
    """The identity block of ``slot`` as it is now, which may be half-written: see :func:`is_whole`."""
    start = segment.geometry.identity_offset(slot)
    return segment.data[start : start + IDENTITY_SIZE].tobytes()


def read_identity(segment: Segment, slot: int) -> Identity | None:
    """The holder of ``slot``; ``None`` if there never was one or the block is being written."""
    return Identity.decoded(copy_block(segment, slot))


def address_of(url: str) -> tuple[str, int] | None:
    """``(host, port)`` that ``url`` leads to, the scheme's port where it names none; ``None`` if it has none."""
    try:
        parts = urlsplit(url)
        port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
        host = parts.hostname
    except ValueError:
        return None
    return (host.lower(), port) if host and port else None


class Directory:
    """Ids and addresses of all slots at one ``membership`` value. Slots marked unused are left out."""

    def __init__(self, segment: Segment, membership: int, holders: Mapping[int, Identity]) -> None:
        self._segment = segment
        self.membership = membership
        self.holders = dict(holders)
        self._by_id = {identity.id: slot for slot, identity in self.holders.items()}
        self._by_address: dict[tuple[str, int], int | None] = {}
        for slot, identity in self.holders.items():
            address = address_of(identity.url)
            if address is not None:
                # Two instances behind one address: the address names neither.
                self._by_address[address] = None if address in self._by_address else slot

    def is_up_to_date(self) -> bool:
        """Whether no slot has been assigned or released since; else it may name slots that have other holders."""
        return self._segment.unsigned64[_MEMBERSHIP] == self.membership  # in every pick: without a call

    def find(self, instance_id: object, host: object, port: object) -> int | None:
        """The slot of that id, else of the unique holder of that address; ``None`` if neither is there."""
        slot = self._by_id.get(instance_id) if isinstance(instance_id, str) else None
        if slot is None and isinstance(host, str) and isinstance(port, int):
            slot = self._by_address.get((host.lower().strip("[]"), port))
        return slot


def read_directory(segment: Segment) -> Directory:
    """The directory as it is now, without the slots that are marked unused.

    The membership value is read first: a change during the reading makes the result look outdated, and it
    will be read again.
    """
    membership = segment.read("membership")
    base = segment.row(0)
    holders = {}
    for slot in range(segment.n):
        if base[slot] >= UNUSED_FLOOR:
            continue
        identity = read_identity(segment, slot)
        if identity is not None:
            holders[slot] = identity
    return Directory(segment, membership, holders)
