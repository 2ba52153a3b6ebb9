"""What a goal or a table compares, as data: which runs it needs, and its figure once they are there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from bench.virtual import ratios
from bench.virtual.plan import Run, run_of
from bench.virtual.ratios import Pair, Spread
from bench.virtual.runs import Outcome
from bench.virtual.scenarios import Scenario

Results = Callable[[Run], "Outcome | None"]  #: ``None`` for a run that is yet to come


class Point(NamedTuple):
    """A policy in a scenario."""

    scenario: Scenario
    policy: str


class Term(Protocol):
    """One figure."""

    @property
    def text(self) -> str:
        """What it is; of a ratio, numerator and denominator."""

    def runs(self) -> Iterator[Run]:
        """What it needs."""

    def figure(self, results: Results) -> Spread | None:
        """``None`` while a run is missing."""


@dataclass(frozen=True)
class Ratio:
    """p99 TTFT at ``of`` to that at ``to``: the geometric mean over seeds, or the ratio of seed means."""

    of: Point
    to: Point
    seeds: tuple[int, ...]
    means: bool = False

    @property
    def text(self) -> str:
        """Numerator / denominator, and where."""
        (of, policy), (to, other) = self.of, self.to
        if of == to:
            return f"{policy} / {other}, {of.name}"
        return f"{policy}, {of.name} / {other}, {to.name}"

    def runs(self) -> Iterator[Run]:
        """Both sides of every seed."""
        for seed in self.seeds:
            yield run_of(*self.of, seed)
            yield run_of(*self.to, seed)

    def pair(self, results: Results) -> Pair | None:
        """p99 TTFT in seconds by seed."""
        of = _values(self.of, self.seeds, results, "ttft_p99")
        to = _values(self.to, self.seeds, results, "ttft_p99")
        return None if of is None or to is None else Pair(of, to)

    def figure(self, results: Results) -> Spread | None:
        """See the class."""
        pair = self.pair(results)
        if pair is None:
            return None
        return ratios.of_means(pair) if self.means else ratios.over_seeds(pair)


@dataclass(frozen=True)
class OverMixes:
    """The geometric mean, over mixes, of the ratios of seed means."""

    text: str
    mixes: tuple[Ratio, ...]

    def runs(self) -> Iterator[Run]:
        """Those of every mix."""
        for mix in self.mixes:
            yield from mix.runs()

    def figure(self, results: Results) -> Spread | None:
        """See the class."""
        pairs = [mix.pair(results) for mix in self.mixes]
        found = [pair for pair in pairs if pair is not None]
        return ratios.over_mixes(found) if len(found) == len(pairs) else None


@dataclass(frozen=True)
class Share:
    """The mean over seeds of a share of the requests: ``failed`` or ``good`` of :class:`.Outcome`."""

    of: Point
    which: str
    seeds: tuple[int, ...]

    @property
    def text(self) -> str:
        """Which share, of whom, where."""
        return f"{self.which}: {self.of.policy}, {self.of.scenario.name}"

    def runs(self) -> Iterator[Run]:
        """One for each seed."""
        for seed in self.seeds:
            yield run_of(*self.of, seed)

    def figure(self, results: Results) -> Spread | None:
        """See the class."""
        values = _values(self.of, self.seeds, results, self.which)
        return None if values is None else ratios.mean(values)


@dataclass(frozen=True)
class Measured:
    """A figure that no run gives: what ``measure`` returns."""

    text: str
    measure: Callable[[], Spread]

    def runs(self) -> Iterator[Run]:
        """None."""
        return iter(())

    def figure(self, results: Results) -> Spread | None:
        """Measured now."""
        return self.measure()


def _values(point: Point, seeds: tuple[int, ...], results: Results, which: str) -> list[float] | None:
    outcomes = [results(run_of(*point, seed)) for seed in seeds]
    found = [outcome.as_dict()[which] for outcome in outcomes if outcome is not None]
    return found if len(found) == len(outcomes) else None
