"""What others have waiting in each engine's queue: prompt tokens, and requests.

::

    queued  = EMA_tau(max(0, polled queued tokens - own pending tokens at that poll))
    waiting = EMA_tau(max(0, polled waiting - own pending tokens at that poll / mean prompt tokens))

with tau as for the requests of others. Own pending tokens are those without a first token, held ones left out:
the own part of a queue is in the lanes, exact and live. They include prompts that are being worked on, which
no queue has any more, so a difference below zero says nothing and counts as zero.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from monitor.estimate.others import Others
from monitor.estimate.selection import Selection, key_of

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class Queues:
    """Both low-passes, for each slot that tells them."""

    def __init__(self, capacity: int) -> None:
        self._queued = _Told(capacity)
        self._waiting = _Told(capacity)

    def clear(self, slot: int) -> None:
        """Forget the slot: a new instance is there."""
        self._queued.clear(slot)
        self._waiting.clear(slot)

    def begin(self, slot: int, among: Selection) -> None:
        """A new instance is in the cleared slot, one of ``among``."""
        self._queued.values.begin(slot, among)
        self._waiting.values.begin(slot, among)

    def reseed(self, slots: Iterable[int]) -> None:
        """Let the next sample of ``slots`` set the values directly: the own counts there have jumped."""
        self._queued.values.reseed(slots)
        self._waiting.values.reseed(slots)

    def sampled(
        self,
        slot: int,
        queued_tokens: float | None,
        waiting: float | None,
        own_tokens: float,
        prompt_tokens: float,
        at: tuple[int, float, float, bool],
    ) -> None:
        """Take in one poll. ``at`` is what :meth:`Others.sampled` wants to know of it."""
        self._queued.sampled(slot, queued_tokens, own_tokens, at)
        self._waiting.sampled(slot, waiting, own_tokens / prompt_tokens, at)

    def now(self, at: Selection, known: BoolArray, mono_ns: int) -> tuple[FloatArray, FloatArray]:
        """``queued`` and ``waiting`` of the slots ``at``; NaN unless ``known``, and where its last poll lacked it."""
        return self._queued.now(at, known, mono_ns), self._waiting.now(at, known, mono_ns)


class _Told:
    """One low-pass, and which slots' last sample had its part."""

    def __init__(self, capacity: int) -> None:
        self.values = Others(capacity)
        self._told = np.zeros(capacity, dtype=np.bool_)
        # What was made of which slots: values change with polls, and are asked for on every tick.
        self._made: dict[bytes, tuple[bytes, FloatArray]] = {}

    def clear(self, slot: int) -> None:
        self.values.clear(slot)
        self._told[slot] = False
        self._made.clear()

    def sampled(
        self, slot: int, polled: float | None, own: float, at: tuple[int, float, float, bool]
    ) -> None:
        self._told[slot] = polled is not None
        self._made.clear()
        if polled is not None:
            self.values.sampled(slot, max(0.0, polled - own), *at)

    def now(self, at: Selection, known: BoolArray, mono_ns: int) -> FloatArray:
        pool, made_of = key_of(at), known.tobytes()
        made = self._made.get(pool)
        if made is None or made[0] != made_of:
            usable = known & self._told[at]
            if usable.any():
                now = np.where(usable, self.values.now(at, usable, mono_ns), np.nan)
            else:
                now = np.full(len(known), np.nan)
            now.flags.writeable = False
            self._made[pool] = made = (made_of, now)
        return made[1]
