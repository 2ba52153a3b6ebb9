"""What the overload limits of all pools say at one tick, slot by slot; the limits themselves: :mod:`limits`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monitor.fleet import Fleet
from monitor.limits import Limits, Waiting, waiting_now
from monitor.loads import Lanes
from monitor.pools import Pool
from monitor.scores import Loads
from score_table.layout import Mark

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

#: Says the same as no verdict: no limit is configured.
NOBODY: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Overload:
    """Arrays over the slots in use. ``waiting`` and ``kv`` are what was judged, NaN where the signal is lost."""

    avoided: BoolArray
    waiting: FloatArray
    kv: FloatArray
    slots: frozenset[int]  #: those avoided

    @classmethod
    def judged(
        cls, pools: Sequence[Pool], fleet: Fleet, lanes: Lanes, loads: Loads, marks: NDArray[np.int8]
    ) -> Overload:
        """``marks`` say who is left out already and has no say."""
        n, polled = len(marks), fleet.polled
        waiting = Waiting(
            *(
                np.where(loads.known, account, np.nan)
                for account in waiting_now(
                    n=loads.n,
                    own=lanes.own,
                    own_at_poll=polled.own[:n],
                    polled=polled.waiting[:n],
                    slots=loads.slots,
                )
            )
        )
        kv = np.where(loads.known & ~np.isnan(fleet.kv_capacity[:n]), loads.kv, np.nan)
        avoided = np.zeros(n, dtype=np.bool_)
        for pool in pools:
            at, limits = pool.at, pool.rules.limits
            if limits.active:
                here = Waiting(waiting.least[at], waiting.most[at])
                avoided[at] = limits.avoided(here, kv[at], marks[at] == Mark.NONE)
        return cls(avoided, waiting.least, kv, frozenset(np.flatnonzero(avoided).tolist()))

    def reason(self, slot: int, limits: Limits) -> str:
        """Why ``slot`` is avoided, by the limits of its pool; empty where it is not."""
        if slot not in self.slots:
            return ""
        return limits.reason(float(self.waiting[slot]), float(self.kv[slot]))


def changed(before: Overload | None, now: Overload | None) -> frozenset[int]:
    """The slots that are avoided and were not, or the other way round."""
    return (before.slots if before else NOBODY) ^ (now.slots if now else NOBODY)
