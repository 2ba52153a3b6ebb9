"""Overload limits: which instances are avoided because they are full while others are not.

The limits judge what is there now, not what was polled: requests waiting are ``n - batch slots``, with n the
live count of this host's requests and the estimate of the others', and KV use is the demand that the score goes
by. A limit knows no yesterday. It is judged anew on every tick, from values that the very next dispatch or end
moves, so a veto is never older than its data and clears by itself.

It cannot swing the traffic either. A veto only takes instances out; among those that are left the score
decides as always, and one that comes back has just been the fullest, so nothing runs there at once. Between two
ticks the lane cells go on counting: what can land beyond a limit is what arrives in one tick. Without a single
instance that is known to be below, a veto would send everything to one that nobody can see, so there is none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


@dataclass(frozen=True)
class Limits:
    """From where on an instance is overloaded; 0 is no limit."""

    waiting: int = 0  #: requests that wait in it, >= 0
    kv: float = 0.0  #: demand for its KV cache as a share of the capacity, 0..1

    @property
    def active(self) -> bool:
        """Whether there is any."""
        return self.waiting > 0 or self.kv > 0.0

    def avoided(self, waiting: FloatArray, kv: FloatArray, candidates: BoolArray) -> BoolArray:
        """The candidates that are over a limit, if another one is known to be below; arrays of one shape.

        NaN is a lost signal: over no limit, and not known to be below. Those that are no candidates have no say.
        """
        over = np.zeros(len(candidates), dtype=np.bool_)
        seen = over.copy()
        for value, limit in ((waiting, self.waiting), (kv, self.kv)):
            if limit > 0:
                over |= value >= limit
                seen |= ~np.isnan(value)
        over &= candidates
        if not (candidates & seen & ~over).any():
            over[:] = False
        return over

    def reason(self, waiting: float, kv: float) -> str:
        """Why an instance with these values is avoided."""
        parts = []
        if 0 < self.waiting <= waiting:
            parts.append(f"waiting {waiting:.4g} >= {self.waiting}")
        if 0.0 < self.kv <= kv:
            parts.append(f"KV {kv:.3g} >= {self.kv:g}")
        return ", ".join(parts)


NO_LIMITS = Limits()


def waiting_now(
    n: FloatArray, own: FloatArray, own_at_poll: FloatArray, polled: FloatArray, slots: FloatArray
) -> FloatArray:
    """Requests that wait in each instance now; NaN where nothing says.

    ``n`` are the requests in it, ``own`` those of this host now and ``own_at_poll`` at the last poll, ``polled``
    what waited then, ``slots`` the size of its batch; NaN is unknown. Held failures are in none of them: no engine
    has them. Where the batch's size is unknown, what this host has added since the poll waits behind what waited
    then, and what has ended made room; where nothing waited, nobody can tell whether an added one runs.
    """
    since = np.where(polled > 0.0, np.maximum(polled + own - own_at_poll, 0.0), polled)
    waiting: FloatArray = np.where(np.isnan(slots), since, np.maximum(n - slots, 0.0))
    return waiting
