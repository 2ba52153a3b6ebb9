"""How many instances carry the tags of each pool: a pool of none is a mistake of whoever wrote its tags."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from proxy_adapter.contract import InstanceLike
from proxy_adapter.pools import Pool
from proxy_adapter.routes import tags_of
from score_table.attachment import Attached

logger = logging.getLogger("loadboard.proxy_adapter")

_TAGS_TOLD = 12


class Carried:
    """Warns of pools whose tags nobody carries, once for each set of them. Any thread may call it."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._pools = tuple(pools)
        #: Of the slot map that was looked at last: to be compared before :meth:`look`, which then costs a pick nothing.
        self.version = 0
        self._told: frozenset[str] = frozenset()

    def now(self, attached: Attached | None) -> list[int | None]:
        """By pool: how many instances of the table carry its tags; ``None`` where there is no table."""
        if attached is None:
            return [None] * len(self._pools)
        held = [frozenset(holder.tags.items()) for holder in attached.directory.holders.values()]
        return [sum(pool.tags <= tags for tags in held) for pool in self._pools]

    def look(self, attached: Attached, instances: Sequence[InstanceLike]) -> None:
        """Look at a slot map of another :attr:`version`, and warn where the pools of no instance are others than before.

        A pool that one of ``instances``, of objects without a slot, carries by its own tags has one. An empty
        table says nothing.
        """
        if not attached.version:  # between two slot maps
            return
        self.version = attached.version
        if not attached.directory.holders:
            return
        own = [tags_of(instance, attached) for instance in instances]
        empty = frozenset(
            pool.text
            for pool, number in zip(self._pools, self.now(attached), strict=True)
            if not number and not any(pool.tags <= tags for tags in own)
        )
        before, self._told = self._told, empty
        if empty - before:
            there = sorted(
                {pair for holder in attached.directory.holders.values() for pair in holder.tags.items()}
            )
            shown = ", ".join(f"{key}={value}" for key, value in there[:_TAGS_TOLD])
            more = f" and {len(there) - _TAGS_TOLD} more" if len(there) > _TAGS_TOLD else ""
            logger.warning(
                "no instance of the table carries the tags of pool %s, so its strategy never answers: compare the "
                "pool's tags with those of the monitor's instances (%s)",
                ", ".join(sorted(empty)),
                shown + more or "none has any",
            )
        for name in sorted(before - empty):
            logger.info("pool %s has instances now", name)
