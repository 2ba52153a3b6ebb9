"""Rates of one instance from its engine's running totals: finished requests and generated tokens per second.

Deltas are taken per series, not of the sum, so that one engine of a group may restart or show up late without
bending the rate of the others. Every doubt is resolved downwards: a rate is never negative, and a total of
unknown age never counts as work of the last seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

from monitor.engines.base import MAX_SERIES
from monitor.sample import FINISHED, GENERATED_TOKENS, PROMPT_TOKENS, Reading

_NS = 1_000_000_000
_WINDOW_NS = 60 * _NS
_THROUGHPUT_WINDOW_NS = 5 * _NS  # tokens move on every step of the engine, so a short window is smooth enough


class RateResult(NamedTuple):
    """Rates after one poll; ``None`` is unknown."""

    qps_1m: float | None  #: finished requests per second over the last minute, >= 0
    throughput: float | None  #: generated tokens per second over the last 5 s, >= 0
    mean_prompt_tokens: float | None  #: prompt tokens per request finished in the last minute, >= 0
    restarted: bool  #: a total fell or the process has another start time than at the poll before


class Rates:
    """The totals of one instance over time. One poll, one :meth:`update`."""

    def __init__(self) -> None:
        self._start: float | None = None
        self._totals = {name: _Totals() for name in (FINISHED, PROMPT_TOKENS, GENERATED_TOKENS)}
        self._finished = _Window(_WINDOW_NS)
        self._prompts = _Window(_WINDOW_NS)
        self._generated = _Window(_THROUGHPUT_WINDOW_NS)

    def update(self, now_mono_ns: int, reading: Reading) -> RateResult:
        """Takes one reading, whose answer arrived at ``now_mono_ns`` on CLOCK_MONOTONIC.

        A rate needs the counter in two readings. It is unknown again while the counter is missing.
        """
        new_process = (
            reading.process_start is not None
            and self._start is not None
            and reading.process_start != self._start
        )
        if reading.process_start is not None:
            self._start = reading.process_start
        restarted = new_process
        known: dict[str, bool] = {}
        for name, window in (
            (FINISHED, self._finished),
            (PROMPT_TOKENS, self._prompts),
            (GENERATED_TOKENS, self._generated),
        ):
            series = reading.counters.get(name)
            known[name] = series is not None and 0 < len(series) <= MAX_SERIES
            if series is not None and known[name]:
                delta, fell = self._totals[name].gain(series, new_process)
                window.add(now_mono_ns, delta)
                restarted = restarted or fell
        finished = self._finished.change() if known[FINISHED] else None
        prompts = self._prompts.change() if known[PROMPT_TOKENS] else None
        generated = self._generated.change() if known[GENERATED_TOKENS] else None
        return RateResult(
            qps_1m=None if finished is None else finished.per_second,
            throughput=None if generated is None else generated.per_second,
            mean_prompt_tokens=(
                None
                if finished is None or prompts is None or finished.amount <= 0
                else prompts.amount / finished.amount
            ),
            restarted=restarted,
        )


class _Totals:
    """One counter's series as last seen, and those that the last reading lacked; a second absence forgets them."""

    def __init__(self) -> None:
        self._last: Mapping[bytes, float] = {}
        self._absent: Mapping[bytes, float] = {}
        self._forgotten = False  #: a series of this process

    def gain(self, series: Mapping[bytes, float], new_process: bool) -> tuple[float, bool]:
        """What the counter gained since it was last seen, and whether a series of it fell.

        A series that starts anew (after a restart, or first seen) has an unknown age. Only in a process whose
        series are all known from before must it be young, so there its value is the gain; otherwise it
        counts from here. Taking a restarted total for the gain would turn a long-lived process that took over
        the address into minutes of enormous rates, and lose nothing else: engines start for longer than a poll.
        """
        if new_process:
            self._last, self._absent, self._forgotten = {}, {}, False
        known = {**self._absent, **self._last}
        # From now on what shows up may as well be back: it counts from here for as long as the process lives.
        self._forgotten = self._forgotten or not self._absent.keys() <= series.keys()
        fell = any(value < known.get(key, value) for key, value in series.items())
        young = bool(known) and not fell and not self._forgotten
        gain = 0.0
        for key, value in series.items():
            before = known.get(key)
            if before is None:
                gain += value if young else 0.0
            elif value >= before:
                gain += value - before
        self._absent = {key: value for key, value in self._last.items() if key not in series}
        self._last = dict(series)
        return gain, fell


class _Change(NamedTuple):
    amount: float
    seconds: float

    @property
    def per_second(self) -> float:
        return self.amount / self.seconds


class _Window:
    """A growing total over the last ``width_ns``, kept as its points in time."""

    def __init__(self, width_ns: int) -> None:
        self._width_ns = width_ns
        self._points: deque[tuple[int, float]] = deque()

    def add(self, now_ns: int, gain: float) -> None:
        points = self._points
        total = gain + (points[-1][1] if points else 0.0)
        if points and now_ns <= points[-1][0]:
            now_ns = points.pop()[0]
        points.append((now_ns, total))
        while len(points) > 2 and points[1][0] <= now_ns - self._width_ns:
            points.popleft()

    def change(self) -> _Change | None:
        """The gain within the window; ``None`` before the second point.

        The gain between two polls is spread evenly over the time between them, so a long gap neither piles
        up in its last moment nor drops out at once.
        """
        points = self._points
        if len(points) < 2:
            return None
        (first_ns, first), (second_ns, second), (last_ns, last) = points[0], points[1], points[-1]
        opened_ns = max(first_ns, last_ns - self._width_ns)
        opened = first + (second - first) * (opened_ns - first_ns) / (second_ns - first_ns)
        return _Change(max(0.0, last - opened), (last_ns - opened_ns) / _NS)
