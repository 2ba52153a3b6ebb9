"""When one instance is polled next. Pure: the clock and the randomness come from outside."""

from __future__ import annotations

import math
import random

_NS = 1_000_000_000

#: No instance is left alone for longer than this, however often it was too slow.
BACK_OFF_CAP_S = 30.0

#: Newcomers are asked within this time, so that a hundred of them do not knock in the same instant.
FIRST_SPREAD_S = 0.1

#: Two polls on demand are at least this far apart (or an interval, if that is shorter): workers keep
#: meeting a refused connection for as long as they try it, and each of them demands a poll.
DEMAND_GAP_S = 0.25


class Schedule:
    """Fixed rate with jitter, exponential back-off for an instance that is too slow, polls on demand.

    Regular polls lie on a grid of one per interval with a phase of its own, each moved later by up to
    ``jitter`` intervals; so two of them are never further apart than ``interval * (1 + jitter)`` and the
    rate does not drift. Grid points that passed while a poll was still running are left out, not made up for.

    All times are CLOCK_MONOTONIC ns. The owner calls :meth:`started` when a poll begins and one of
    :meth:`succeeded` and :meth:`failed` when it is over; not thread-safe.

    ``interval_s`` > 0, ``jitter`` a share of the interval in 0..1; else ``ValueError``.
    """

    def __init__(
        self,
        interval_s: float,
        jitter: float,
        rng: random.Random,
        *,
        back_off_cap_s: float = BACK_OFF_CAP_S,
        first_spread_s: float = FIRST_SPREAD_S,
    ) -> None:
        if not (math.isfinite(interval_s) and interval_s > 0):
            raise ValueError(f"the poll interval must be a positive number of seconds, not {interval_s!r}")
        if not 0 <= jitter <= 1:
            raise ValueError(f"the jitter must be a share of the interval in 0..1, not {jitter!r}")
        self._interval_ns = max(1, round(interval_s * _NS))
        self._jitter = jitter
        self._rng = rng
        self._cap_ns = max(round(back_off_cap_s * _NS), self._interval_ns)
        self._first_spread_ns = round(min(first_spread_s, interval_s) * _NS)
        self._demand_gap_ns = min(round(DEMAND_GAP_S * _NS), self._interval_ns)
        self._origin_ns = 0  # a point of the grid
        self._regular_ns: int | None = None  # None until next_due() has been asked for the first time
        self._demand_ns: int | None = None
        self._last_demand_ns: int | None = None
        self._slow = 0  # polls in a row that were too slow

    def next_due(self, now_ns: int) -> int:
        """When the next poll is due; not after ``now_ns`` means at once. A newcomer's is due at once."""
        if self._regular_ns is None:
            self._regular_ns = now_ns + round(self._rng.random() * self._first_spread_ns)
            self._origin_ns = self._regular_ns + round(self._rng.random() * self._interval_ns)
        if self._demand_ns is None:
            return self._regular_ns
        return min(self._regular_ns, self._demand_ns)

    def started(self, now_ns: int) -> None:
        """A poll begins; a demand made up to now is met by it, a later one by the poll after it."""
        if self._demand_ns is not None:
            self._demand_ns = None
            self._last_demand_ns = now_ns

    def succeeded(self, now_ns: int) -> None:
        """The poll gave a sample: the next one is at the next point of the grid."""
        self._slow = 0
        self._regular_ns = self._next_point(now_ns)

    def failed(self, now_ns: int, *, slow: bool) -> None:
        """The poll failed. Only a ``slow`` one backs off: 1, 2, 4, ... intervals up to the cap.

        A fast failure (refused, an error status) costs nobody anything, and its end must be noticed within
        one poll: it stays on the grid, and ends a back-off.
        """
        if not slow:
            self._slow = 0
            self._regular_ns = self._next_point(now_ns)
            return
        self._slow += 1
        # The exponent is bounded: 2**60 intervals are beyond every cap.
        pause_ns = min(self._interval_ns << min(self._slow - 1, 60), self._cap_ns)
        self._regular_ns = now_ns + pause_ns + self._offset()

    def poll_now(self, now_ns: int) -> None:
        """Somebody met trouble there: poll at once, also out of a back-off, but not in a busy loop."""
        if self._demand_ns is None:
            earliest_ns = now_ns
            if self._last_demand_ns is not None:
                earliest_ns = max(now_ns, self._last_demand_ns + self._demand_gap_ns)
            self._demand_ns = earliest_ns

    def _next_point(self, now_ns: int) -> int:
        intervals = max(0, (now_ns - self._origin_ns) // self._interval_ns + 1)
        return self._origin_ns + intervals * self._interval_ns + self._offset()

    def _offset(self) -> int:
        return round(self._rng.random() * self._jitter * self._interval_ns)
