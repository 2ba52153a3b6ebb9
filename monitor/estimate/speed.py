"""How slow an instance is: its time per output token relative to the fleet's mean.

Little's law over the window: requests in the batch / output tokens per second = seconds per output token.
Both parts are averaged over the same 30 s, idle polls included: a batch taken at busy moments only, over a rate
that has idle time in it, would make the instance that is loaded most look fastest. An instance with less than
one request in its batch on average is believed in that proportion. The inverse, load over measured throughput,
must not be used: it rewards the loaded as well.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from monitor.estimate.selection import Selection, key_of
from monitor.estimate.typical import median

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

TAU_S = 30.0
#: Bounds of the factor: a wrong gauge may shift traffic, it must not decide alone.
SLOWEST = 4.0
#: How long factors are used before they are made anew: with many instances a poll comes with every tick, and
#: moves the averages by almost nothing.
KEEP_NS = 100_000_000
#: The longest step that one poll may count for.
STEP_LIMIT_S = 10.0
#: Requests in the batch below which nothing was measured.
LEAST_BATCH = 1e-6
#: Output tokens per second below which a batch counts as hung.
LEAST_RATE = 1e-6


class Speed:
    """Averages per slot of the batch size and of the output tokens per second, while there is work."""

    def __init__(self, capacity: int) -> None:
        self._running = np.zeros(capacity)
        self._rate = np.zeros(capacity)
        # How far the averages reach back: 0 nothing yet, 1 several times the window.
        self._weight = np.zeros(capacity)
        self._at_ns = np.zeros(capacity, dtype=np.int64)
        # The factors of each pool, what they were made of and when.
        self._made: dict[bytes, tuple[bytes, float, int, FloatArray]] = {}

    def clear(self, slot: int) -> None:
        """Forget the slot: a new instance, or a restarted one, is there."""
        self._made.clear()
        self._running[slot] = self._rate[slot] = self._weight[slot] = 0.0
        self._at_ns[slot] = 0

    def sampled(self, slot: int, running: float | None, tokens_per_s: float | None, mono_ns: int) -> None:
        """Take in one poll; one that lacks a part changes nothing."""
        last_ns, self._at_ns[slot] = int(self._at_ns[slot]), mono_ns
        if not last_ns or running is None or tokens_per_s is None:
            return
        dt_s = min(max(mono_ns - last_ns, 0) / 1e9, STEP_LIMIT_S)
        step = -math.expm1(-dt_s / TAU_S)
        self._running[slot] += (running - self._running[slot]) * step
        self._rate[slot] += (tokens_per_s - self._rate[slot]) * step
        self._weight[slot] += (1.0 - self._weight[slot]) * step

    def factors(self, at: Selection, known: BoolArray, dead_band: float, mono_ns: int) -> FloatArray:
        """Time per output token over the mean of the slots ``at``, within 1/4..4; 1 within ``dead_band`` and if
        unknown. As they were up to 0.1 s ago, unless others of them are known now.

        ``known`` says which of them take part. Short histories count in proportion: a slot starts at the mean.
        """
        pool, made_of = key_of(at), known.tobytes()
        made = self._made.get(pool)
        if made is None or made[:2] != (made_of, dead_band) or not 0 <= mono_ns - made[2] < KEEP_NS:
            self._made[pool] = made = (made_of, dead_band, mono_ns, self._factors(at, known, dead_band))
        return made[3]

    def _factors(self, at: Selection, known: BoolArray, dead_band: float) -> FloatArray:
        factors = np.ones(len(known))
        measured = np.flatnonzero(known & (self._running[at] >= LEAST_BATCH))
        if len(measured) < 2:
            return factors
        running, weight = self._running[at][measured], self._weight[at][measured]
        # A batch without any output would take for ever: the bound below is all that it may weigh.
        token_s = running / np.maximum(self._rate[at][measured], LEAST_RATE)
        middle = median(token_s) or 1.0
        # One that hangs must not make all the others look fast: it enters the mean with the bound as well.
        mean = float(_within(token_s, middle / SLOWEST, middle * SLOWEST).sum()) / len(token_s)
        relative = _within(token_s / mean, 1.0 / SLOWEST, SLOWEST)
        # The averages start at 0, so what they have seen of the batch is ``running / weight``.
        batch = np.minimum(running / weight, 1.0)
        relative = 1.0 + weight * batch * (relative - 1.0)
        factors[measured] = np.where(np.abs(relative - 1.0) > dead_band, relative, 1.0)
        return factors


def _within(values: FloatArray, least: float, most: float) -> FloatArray:
    # np.clip costs twice as much on the few dozen values of a fleet.
    return np.minimum(np.maximum(values, least), most)
