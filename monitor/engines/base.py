"""What an engine adapter is, and the checks every adapter puts its numbers through."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Protocol

from monitor.sample import Reading

#: Above these a number is a mistake (a time stamp read as a count, a broken counter), not load.
MAX_REQUESTS = 1e7
MAX_TOKENS = 1e15
MAX_RATE = 1e9
MAX_TOTAL = 1e18

#: Ranks in one answer, and series of one counter. No engine has more; to read and to remember any number would
#: let one instance take this host's time and memory.
MAX_RANKS = 1024
MAX_SERIES = 2048

#: A share may exceed 1 by rounding only.
_SHARE_SLACK = 1e-6


class Engine(Protocol):
    """Turns the answers of one kind of engine into readings. Stateless, so one object serves all instances."""

    name: str  #: "vllm", "sglang"
    endpoints: tuple[str, ...]  #: paths below the instance's base URL, cheapest first
    #: Those endpoints that are only the last one's page, filtered by the server to the families listed here.
    #: Not every server can filter, so they are used only while they carry each of these that the page had.
    filtered: Mapping[str, tuple[bytes, ...]]

    def recognises(self, path: str, body: bytes) -> bool:
        """Whether this body can only come from this kind of engine. Never raises."""
        ...

    def read(self, path: str, body: bytes) -> Reading:
        """The body as a reading. Never raises: what cannot be read is unknown and named in ``problems``."""
        ...


class Checks:
    """Gathers the reasons why fields are unknown while an adapter fills in one reading.

    A field is a sum or mean over series; one invalid series makes the field unknown, because the rest of a sum
    would pass for a low load.
    """

    def __init__(self) -> None:
        self._problems: list[str] = []

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems)

    def say(self, problem: str) -> None:
        self._problems.append(problem)

    def unknown(self, field: str, why: str) -> None:
        self.say(f"{why}: {field} is unknown")

    def valid(self, metric: str, field: str, values: Iterable[object], limit: float) -> list[float] | None:
        """The values as floats, or ``None`` with a sentence if there are none or one is not within 0..limit."""
        numbers: list[float] = []
        for value in values:
            if value is None:
                self.unknown(field, f"{metric} is missing")
                return None
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                self.unknown(field, f"{metric} is {value!r:.40}, which is no number")
                return None
            if not 0 <= value <= limit:
                self.unknown(field, f"{metric} is {value!r:.40}, which is not within 0..{limit:g}")
                return None
            numbers.append(float(value) + 0.0)  # + 0.0 makes a zero of a negative zero
        if not numbers:
            self.unknown(field, f"{metric} has no series")
            return None
        return numbers

    def total(self, metric: str, field: str, values: Iterable[object], limit: float) -> float | None:
        """The sum of the values, 0..limit each."""
        numbers = self.valid(metric, field, values, limit)
        return None if numbers is None else sum(numbers)

    def size(self, metric: str, field: str, values: Iterable[object], limit: float) -> float | None:
        """As :meth:`total` for a capacity, where zero means that nothing was said."""
        total = self.total(metric, field, values, limit)
        if total == 0:
            self.unknown(field, f"{metric} is 0")
            return None
        return total

    def shares(self, metric: str, field: str, values: Iterable[object]) -> list[float] | None:
        """The values as shares, 0..1 each; 1.000001 is rounding, 87.5 is some other unit and thus unknown."""
        numbers = self.valid(metric, field, values, 1 + _SHARE_SLACK)
        return None if numbers is None else [min(number, 1.0) for number in numbers]

    def counter(self, metric: str, field: str, series: Mapping[bytes, float]) -> dict[bytes, float]:
        """A running total per series, without the series that have no valid value; none of too many."""
        if len(series) > MAX_SERIES:
            self.unknown(field, f"{metric} has {len(series)} series, more than {MAX_SERIES}")
            return {}
        valid: dict[bytes, float] = {}
        for key, value in series.items():
            if 0 <= value <= MAX_TOTAL:
                valid[key] = value
            else:
                self.say(
                    f"{metric} is {value!r}, which is no running total: that series of {field} is left out"
                )
        if not series:
            self.unknown(field, f"{metric} has no series")
        return valid


def process_start(series: Iterable[float]) -> float | None:
    """When the process started, Unix seconds; unknown where the page tells none or that of several processes."""
    starts = [value for value in series if math.isfinite(value) and value > 0]
    return starts[0] if len(starts) == 1 else None
