"""Lanes that end, join or move: dead workers' lanes are emptied, and jumps of the own counts are noticed.

What others have at an instance is the polled count minus the own one. When the own count jumps without a
dispatch or an end (a killed worker's lane is emptied, a worker attaches with requests it had open already),
the average of that difference is void, and the next sample sets it anew.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monitor.counts import Counts
from monitor.fleet import Fleet
from score_table.writer import Reclaimed

log = logging.getLogger("loadboard.monitor")


class LaneTable(Protocol):
    """The part of :class:`score_table.writer.TableWriter` that reclaiming needs."""

    def naturals(self) -> Counts:
        """The lanes' natural units, summed over lanes."""

    def reclaim(self) -> Sequence[Reclaimed]:
        """Empty the lanes of workers that are gone."""


def reclaim(table: LaneTable, fleet: Fleet, mono_ns: int, boot_ns: int) -> int:
    """Empty dead workers' lanes; the number of requests that were counted there.

    ``fleet`` sees the new counts at once: a sample that arrives before the next tick must not be compared
    with counts that are gone.
    """
    found = table.reclaim()
    if not found:
        return 0
    fleet.counted(table.naturals(), mono_ns, boot_ns)
    for lane in found:
        fleet.jumped(lane.slots.tolist())
        log.log(
            logging.WARNING if lane.outstanding else logging.INFO,
            "lane %d: its worker (pid %d) is gone, %d requests it had outstanding are no longer counted",
            lane.lane,
            lane.pid,
            lane.outstanding,
        )
    return sum(lane.outstanding for lane in found)


class Jumps:
    """Finds slots whose outstanding count has changed by other than dispatches and ends.

    The three words are not read as one, so a request that is being counted looks like a jump for a moment;
    only what two reads in a row agree on is one.
    """

    def __init__(self) -> None:
        self._settled: NDArray[np.int64] | None = None
        self._last: NDArray[np.int64] | None = None

    def seen(self, counts: Counts) -> list[int]:
        """The slots at which a jump is certain now, each jump once."""
        excess = counts.outstanding - (counts.dispatched - counts.ended)
        if self._settled is None or self._last is None:
            self._settled = self._last = excess
            return []
        last, self._last = self._last, excess
        jumped = (excess != self._settled) & (excess == last)
        if not jumped.any():
            return []
        self._settled = np.where(jumped, excess, self._settled)
        slots: list[int] = np.flatnonzero(jumped).tolist()
        return slots
