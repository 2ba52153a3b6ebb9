"""How many requests of others each instance has: a low-pass of what the polls say beyond this host's own.

::

    slow   = EMA_tau(polled running + waiting - (own - held) at that poll)    signed, tau = max(10 s, 3 polls/s)
    recent = the same with tau = max(2 s, 1 poll)
    others = slow + s*(1 - s) * (recent - slow)           s = own / (own + slow), summed over the pool

Held requests failed: the engine does not have them, so they are no part of what is its own there. Polls come
irregularly, so a step weighs ``1 - exp(-dt/tau)``. The value in use is never a stale one: where nothing is
known now, it is the fleet's median, and the low-pass goes on from there. (A newcomer that started at its own
empty queue instead would draw the traffic of every host at once.)

Hosts that balance their own requests against the others' all move the same way, so k of them close the loop k times
as fast as one: with tau = 10 s and polls of 1 s sixteen would swing. Each sees by its share s of the traffic how many
there are, and takes that much longer (up to twenty times: one whose traffic is just beginning has to learn, too).

What has changed lately all hosts see alike and correct at once, so each may correct its share s of it and no more:
with the whole of it k hosts would overshoot k times. And a host that is alone (s = 1) has nothing to learn from
polls: all that changes is in its lanes, and gauges that lag would only make it forget what it has just sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from monitor.estimate.selection import Selection
from monitor.estimate.typical import median

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

TAU_FLOOR_S = 10.0
TAU_POLLS = 3.0
#: The least share of the traffic that the time constant goes by.
LEAST_SHARE = 1 / 20
RECENT_FLOOR_S = 2.0
#: Time constant with which the last values fade while nothing at all is known of the fleet.
FADE_S = 60.0


def tau_s(interval_s: float, share: float) -> float:
    """The low-pass's time constant in seconds for an instance polled every ``interval_s``, at that own share, 0..1."""
    return max(TAU_FLOOR_S, TAU_POLLS * interval_s / max(share, LEAST_SHARE))


def recent_tau_s(interval_s: float) -> float:
    """The same for the recent value."""
    return max(RECENT_FLOOR_S, interval_s)


def share_of_own(own: FloatArray, slow: FloatArray) -> float:
    """This host's share of the requests there, 0..1, 1 where there are none; arrays over the known slots of a pool."""
    ours = float(own.sum())
    everything = float(np.maximum(own + slow, 0.0).sum())
    return min(ours / everything, 1.0) if everything > 0.0 else 1.0


def correction(share: float) -> float:
    """The part of a recent change that a host of that share answers to, 0..1/4."""
    return share * (1.0 - share)


def low_pass(value: float, sample: float, dt_s: float, tau_s: float) -> float:
    """``value`` moved towards ``sample`` for ``dt_s`` seconds; a negative ``dt_s`` counts as 0."""
    return value + (sample - value) * -math.expm1(-max(dt_s, 0.0) / tau_s)


class Others:
    """The low-passed load of everyone else, per slot, in requests, signed."""

    def __init__(self, capacity: int) -> None:
        self._value = np.zeros(capacity)
        self._recent = np.zeros(capacity)
        self._in_use = np.zeros(capacity)
        self._seeded = np.zeros(capacity, dtype=np.bool_)
        self._jumped = np.zeros(capacity, dtype=np.bool_)
        self._at_ns = np.zeros(capacity, dtype=np.int64)
        self._share = np.ones(capacity)

    def clear(self, slot: int) -> None:
        """Forget the slot; what was in use for it is until the next tick."""
        self._value[slot] = self._recent[slot] = 0.0
        self._seeded[slot] = self._jumped[slot] = False
        self._at_ns[slot] = 0
        self._share[slot] = 1.0

    def begin(self, slot: int, among: Selection) -> None:
        """A new instance is in the cleared slot. It starts at what is typical ``among`` those it joins."""
        in_use = self._in_use.copy()
        in_use[slot] = np.nan
        others = in_use[among]
        self._in_use[slot] = median(others[~np.isnan(others)]) or 0.0

    def restore(self, slot: int, value: float, mono_ns: int) -> None:
        """Go on from ``value``, which an earlier monitor left in the table."""
        self._value[slot] = self._recent[slot] = self._in_use[slot] = value
        self._seeded[slot] = True
        self._jumped[slot] = False
        self._at_ns[slot] = mono_ns

    def reseed(self, slots: Iterable[int]) -> None:
        """Let the next sample of ``slots`` set the value directly: the own counts there have jumped.

        Until then the value stays in use.
        """
        for slot in slots:
            self._jumped[slot] = self._seeded[slot]

    def sampled(
        self, slot: int, foreign: float, mono_ns: int, interval_s: float, gap_s: float, cold: bool
    ) -> None:
        """Take in one poll: ``foreign`` requests beyond the own ones.

        The first sample of a ``cold`` fleet is taken as it is. Otherwise a slot that had no value, or none
        for longer than ``gap_s``, goes on from the value that was in use for it.
        """
        dt_s = (mono_ns - int(self._at_ns[slot])) / 1e9
        slow_s, recent_s = tau_s(interval_s, float(self._share[slot])), recent_tau_s(interval_s)
        seeded = bool(self._seeded[slot])
        if self._jumped[slot] or (cold and not seeded):
            value = recent = foreign
        elif not seeded or dt_s > gap_s:
            before = float(self._in_use[slot])
            value = low_pass(before, foreign, interval_s, slow_s)
            recent = low_pass(before, foreign, interval_s, recent_s)
        else:
            value = low_pass(float(self._value[slot]), foreign, dt_s, slow_s)
            recent = low_pass(float(self._recent[slot]), foreign, dt_s, recent_s)
        self._recent[slot] = recent
        self._value[slot] = self._in_use[slot] = value
        self._seeded[slot] = True
        self._jumped[slot] = False
        self._at_ns[slot] = mono_ns

    def shared(self, at: Selection, share: float) -> None:
        """This host's share of what is in the slots ``at``, above 0 and up to 1, for the samples to come."""
        self._share[at] = share

    def change(self, at: Selection, known: BoolArray) -> FloatArray:
        """How far the recent value of the slots ``at`` is from the slow one; 0 where not ``known``."""
        return np.where(known, self._recent[at] - self._value[at], 0.0)

    def now(self, at: Selection, known: BoolArray, mono_ns: int) -> FloatArray:
        """The slow value in use for the slots ``at``: their own one, where not ``known`` the median of the known.

        Where none is known the last values stay, fading.
        """
        value = self._value[at]
        typical = median(value[known])
        if typical is None:
            seeded = self._seeded[at]
            age_s = np.maximum(mono_ns - self._at_ns[at], 0) / 1e9
            value = value * np.exp(-age_s / FADE_S)
            typical = median(value[seeded]) or 0.0
            known = seeded
        in_use: FloatArray = np.where(known, value, typical)
        self._in_use[at] = in_use
        return in_use
