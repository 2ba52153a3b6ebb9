"""Which seat each instance object has, and which slots a list of them: by id, else by a unique host and port."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from proxy_adapter.contract import InstanceLike
from score_table.attachment import Attached
from score_table.lane import Lane
from score_table.ledger import Seat

logger = logging.getLogger("loadboard.proxy_adapter")

_LISTS_KEPT = 64
_TOLD_KEPT = 1000


class Mapped(NamedTuple):
    """A list of instances, mapped. All sequences are by position in the list."""

    instances: tuple[InstanceLike, ...]  #: held, so that the identities in the cache's key stay theirs
    seats: tuple[Seat, ...]
    slots: tuple[int | None, ...]
    position: dict[int, int]  #: slot to its first position
    candidates: Any  #: what the pick core takes; ``None`` = all slots in use
    matched_all: bool
    span: tuple[int, int]  #: its lowest and highest slot; (0, 0) if it has none


class _Known(NamedTuple):
    version: int
    maps: dict[tuple[int, ...], Mapped]


class SlotMap:
    """Keeps the maps of the lists seen lately, for one slot map of the table at a time."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._known = _Known(0, {})
        self._told: set[str] = set()

    def seat(self, instance: InstanceLike) -> Seat:
        """The seat of one instance. Raises what reading its attributes raises."""
        instance_id = getattr(instance, "instance_id", None)
        host, port = getattr(instance, "host", None), getattr(instance, "port", None)
        seat = self._lane.seat(
            str(instance_id), host if isinstance(host, str) else None, port if isinstance(port, int) else None
        )
        attached = self._lane.attached
        if seat.slot is None and attached is not None:
            self._tell(instance_id, host, port, attached)
        return seat

    def map(self, attached: Attached, instances: Sequence[InstanceLike]) -> Mapped:
        """The map of ``instances`` (not empty) in the table of ``attached``."""
        if not attached.version:  # between two slot maps: nothing to keep
            return self._make(attached, instances)
        known = self._known
        if known.version != attached.version:
            # Replaced as a whole: a slower thread that still maps by the old table stores into the old maps.
            known = self._known = _Known(attached.version, {})
        key = tuple(map(id, instances))
        mapped = known.maps.get(key)
        if mapped is None:
            mapped = self._make(attached, instances)
            if len(known.maps) >= _LISTS_KEPT:
                known.maps.clear()
            known.maps[key] = mapped
        return mapped

    def _make(self, attached: Attached, instances: Sequence[InstanceLike]) -> Mapped:
        seats = tuple(self.seat(instance) for instance in instances)
        slots = tuple(seat.slot for seat in seats)
        position: dict[int, int] = {}
        for index, slot in enumerate(slots):
            if slot is not None:
                position.setdefault(slot, index)
        every = len(position) == len(attached.directory.holders)
        candidates = None if every else attached.core.prepare(list(position))
        return Mapped(
            tuple(instances),
            seats,
            slots,
            position,
            candidates,
            None not in slots and bool(position),
            (min(position, default=0), max(position, default=0)),
        )

    def _tell(self, instance_id: object, host: object, port: object, attached: Attached) -> None:
        key = str(instance_id)
        if key in self._told or len(self._told) >= _TOLD_KEPT:
            return
        self._told.add(key)
        table = attached.segment.location.text
        if instance_id is None:
            logger.warning(
                "an object given as an instance has no instance_id: give objects with instance_id, host and port. "
                "It is not in table %s and is compared by what this process has outstanding there",
                table,
            )
        else:
            logger.warning(
                "instance %s is not in table %s, by neither its id nor its address (host %r, port %r): it is "
                "compared by what this process has outstanding there; add it to the monitor's instances",
                instance_id,
                table,
                host,
                port,
            )
