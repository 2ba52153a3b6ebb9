"""Which slot each instance object has: by id, else by a unique host and port."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, NamedTuple

from proxy_adapter.contract import InstanceLike
from score_table.attachment import Attached
from score_table.identity import Directory
from score_table.pick import PickCore

logger = logging.getLogger("loadboard.proxy_adapter")

_LISTS_KEPT = 64
_TOLD_KEPT = 1000


class Mapped(NamedTuple):
    """A list of instances, mapped. All sequences are by position in the list."""

    instances: tuple[InstanceLike, ...]  #: held, so that the identities in the cache's key stay theirs
    slots: tuple[int | None, ...]
    keys: tuple[str, ...]  #: the id under which a request is counted
    position: dict[int, int]  #: slot to its first position
    candidates: Any  #: what the pick core takes; ``None`` = all slots in use
    matched_all: bool


class _Known(NamedTuple):
    directory: Directory
    core: PickCore
    maps: dict[tuple[int, ...], Mapped]


class SlotMap:
    """Keeps the maps of the lists seen lately, for one directory at a time."""

    def __init__(self) -> None:
        self._known: _Known | None = None
        self._told: set[str] = set()

    def map(self, attached: Attached, instances: Sequence[InstanceLike]) -> Mapped:
        """The map of ``instances`` (not empty) in the directory of ``attached``."""
        known = self._known
        if known is None or known.directory is not attached.directory or known.core is not attached.core:
            # Replaced as a whole: a slower thread that still maps by the old directory stores into the old maps.
            known = self._known = _Known(attached.directory, attached.core, {})
        key = tuple(map(id, instances))
        mapped = known.maps.get(key)
        if mapped is None:
            mapped = self._make(attached, instances)
            if len(known.maps) >= _LISTS_KEPT:
                known.maps.clear()
            known.maps[key] = mapped
        return mapped

    def _make(self, attached: Attached, instances: Sequence[InstanceLike]) -> Mapped:
        directory = attached.directory
        slots: list[int | None] = []
        keys: list[str] = []
        position: dict[int, int] = {}
        for index, instance in enumerate(instances):
            instance_id = getattr(instance, "instance_id", None)
            slot = directory.find(
                instance_id, getattr(instance, "host", None), getattr(instance, "port", None)
            )
            slots.append(slot)
            if slot is None:
                keys.append(str(instance_id))
                self._tell(instance_id, attached)
            else:
                keys.append(directory.holders[slot].id)
                position.setdefault(slot, index)
        every = len(position) == len(directory.holders)
        candidates = None if every else attached.core.prepare(list(position))
        return Mapped(
            tuple(instances),
            tuple(slots),
            tuple(keys),
            position,
            candidates,
            None not in slots and bool(position),
        )

    def _tell(self, instance_id: object, attached: Attached) -> None:
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
                "instance %s is not in table %s, by neither id nor address: it is compared by what this process "
                "has outstanding there; add it to the monitor's instances",
                instance_id,
                table,
            )
