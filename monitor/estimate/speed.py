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

from monitor.estimate.typical import median

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

TAU_S = 30.0
#: Bounds of the factor: a wrong gauge may shift traffic, it must not decide alone.
SLOWEST = 4.0
#: The longest step that one poll may count for.
STEP_LIMIT_S = 10.0
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
        # The factors and what they were made of: they change with polls, and are asked for on every tick.
        self._made: tuple[bytes, float, FloatArray] | None = None

    def clear(self, slot: int) -> None:
        """Forget the slot: a new instance, or a restarted one, is there."""
        self._made = None
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
        self._made = None

    def factors(self, known: BoolArray, dead_band: float) -> FloatArray:
        """Time per output token over the fleet's mean, within 1/4..4; 1 within ``dead_band`` and if unknown.

        ``known`` says which slots take part. Short histories count in proportion: a slot starts at the mean.
        """
        made_of = known.tobytes()
        if self._made is None or self._made[:2] != (made_of, dead_band):
            self._made = (made_of, dead_band, self._factors(known, dead_band))
        return self._made[2]

    def _factors(self, known: BoolArray, dead_band: float) -> FloatArray:
        factors = np.ones(len(known))
        measured = np.flatnonzero(known & (self._running[: len(known)] > 0.0))
        if len(measured) < 2:
            return factors
        # A batch without any output would take for ever: the bound below is all that it may weigh.
        token_s = self._running[measured] / np.maximum(self._rate[measured], LEAST_RATE)
        middle = median(token_s) or 1.0
        # One that hangs must not make all the others look fast: it enters the mean with the bound as well.
        mean = np.clip(token_s, middle / SLOWEST, middle * SLOWEST).mean()
        relative = np.clip(token_s / mean, 1.0 / SLOWEST, SLOWEST)
        # The averages start at 0, so what they have seen of the batch is ``running / weight``.
        batch = np.minimum(self._running[measured] / self._weight[measured], 1.0)
        relative = 1.0 + self._weight[measured] * batch * (relative - 1.0)
        outside = np.abs(relative - 1.0) > dead_band
        factors[measured[outside]] = relative[outside]
        return factors
