"""Overload limits: which instances are avoided because they are full while others are not.

The limits judge what is there now, not what was polled. Requests waiting are ``n - batch slots``, with n the live
count of this host's requests and the estimate of the others', and they are what waited at the last poll with
what this host has added and ended since: an instance is over where both say so, and below where both say that. KV
use is the demand that the score goes by; without a capacity it is only as new as the last poll, and no signal here.
A limit knows no yesterday: it is judged anew on every tick, from values that the very next dispatch or end moves.

It cannot swing the traffic either. A veto only takes instances out; among those that are left the score
decides as always. What goes to them counts at once, so that one by one they are no longer below, and without
a single instance that is known to be below there is no veto: it would send everything to one that nobody can see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class Waiting(NamedTuple):
    """Requests that wait in each instance by the lower and the higher account; NaN where nothing says."""

    least: FloatArray
    most: FloatArray


@dataclass(frozen=True)
class Limits:
    """From where on an instance is overloaded; 0 is no limit."""

    waiting: int = 0  #: requests that wait in it, >= 0
    kv: float = 0.0  #: demand for its KV cache as a share of the capacity, 0..1

    @property
    def active(self) -> bool:
        """Whether there is any."""
        return self.waiting > 0 or self.kv > 0.0

    def avoided(self, waiting: Waiting, kv: FloatArray, candidates: BoolArray) -> BoolArray:
        """The candidates that are over a limit, if another one is known to be below; arrays of one shape.

        Over is what is over by every account of it, below what is below by all. NaN is a lost signal: neither. Those
        that are no candidates have no say.
        """
        over = np.zeros(len(candidates), dtype=np.bool_)
        below = over.copy()
        for least, most, limit in ((waiting.least, waiting.most, self.waiting), (kv, kv, self.kv)):
            if limit > 0:
                over |= least >= limit
                below |= ~np.isnan(most)
        for most, limit in ((waiting.most, self.waiting), (kv, self.kv)):
            if limit > 0:
                below &= ~(most >= limit)
        over &= candidates
        if not (candidates & below).any():
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
) -> Waiting:
    """Requests that wait in each instance now.

    ``n`` are the requests in it, ``own`` those of this host now and ``own_at_poll`` at the last poll, ``polled``
    what waited then, ``slots`` the size of its batch; NaN is unknown. There are two accounts of it: what does not
    fit the batch, and what waited at the poll, with what this host has added and ended since. Where nothing waited
    then, nobody can tell whether an added one runs, so it is there by the higher account alone. Failures that
    are held count in both, or an instance that fails fast would be the only one below.
    """
    since = polled + own - own_at_poll
    surely = np.where(polled > 0.0, np.maximum(since, 0.0), polled)
    at_most = np.maximum(since, 0.0)
    beyond = np.maximum(n - slots, 0.0)
    # fmin and fmax take the account that is there where the other one is unknown.
    return Waiting(np.where(np.isnan(slots), surely, np.fmin(beyond, at_most)), np.fmax(beyond, at_most))
