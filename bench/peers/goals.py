"""What the real-time runs have to show, as data; each ratio is taken within a repetition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bench.peers.experiments import BURST, HIDDEN_LOAD, ORDER, ORDER_LONG, PLAIN, Run
from bench.peers.ratios import Spread, spread
from bench.peers.stage import LEAST_LOAD, NGINX, PER_PROCESS, ROUND_ROBIN

#: Figures by run, of the runs that count.
Results = Mapping[Run, Mapping[str, Any]]


@dataclass(frozen=True)
class Goal:
    """The ratio of two figures of an experiment, each (gateway, name of the figure).

    Judged is the geometric mean over the repetitions, or the upper end of its 90 % interval.
    """

    text: str
    experiment: str
    of: tuple[str, str]
    to: tuple[str, str]
    limit: float
    upper: bool = False
    below: bool = False  #: the limit itself is not good enough


@dataclass(frozen=True)
class Verdict:
    """``figure`` is what is judged, ``None`` where too little was measured; ``remark`` says what is missing."""

    goal: Goal
    figure: float | None
    spread: Spread | None
    remark: str

    @property
    def met(self) -> bool:
        """What was not measured in every repetition is not met."""
        if self.figure is None or self.remark:
            return False
        return self.figure < self.goal.limit if self.goal.below else self.figure <= self.goal.limit


def _beside(text: str, experiment: str, figure: str, other: str, limit: float, **how: bool) -> Goal:
    return Goal(text, experiment, (LEAST_LOAD, figure), (other, figure), limit, **how)


#: The denominator by its full name: with ``zone`` the workers of nginx would share their counts.
_NGINX = "nginx least_conn without zone (each worker counts its own)"

GOALS: tuple[Goal, ...] = (
    _beside(f"p99 wait / {_NGINX}", PLAIN, "wait_p99", NGINX, 1.0),
    _beside(f"p99 wait / {_NGINX}, upper 90 % bound", PLAIN, "wait_p99", NGINX, 1.15, upper=True),
    _beside(f"p99 wait / {_NGINX}, 15 of 55 req/s past the gateways", HIDDEN_LOAD, "wait_p99", NGINX, 0.5),
    Goal(
        "mean wait from 12 s after a burst of 160 / before it",
        BURST,
        (LEAST_LOAD, "after_wait_mean"),
        (LEAST_LOAD, "before_wait_mean"),
        1.2,
    ),
    _beside("p99 TTFT / round robin", ORDER, "ttft_p99", ROUND_ROBIN, 1.0, below=True),
    _beside("p99 TTFT / counting per process", ORDER, "ttft_p99", PER_PROCESS, 1.0, below=True),
    _beside("p99 TTFT / round robin, long prompts", ORDER_LONG, "ttft_p99", ROUND_ROBIN, 1.0, below=True),
    _beside(
        "p99 TTFT / counting per process, long prompts", ORDER_LONG, "ttft_p99", PER_PROCESS, 1.0, below=True
    ),
)


def judge(goals: Sequence[Goal], results: Results, repetitions: int) -> list[Verdict]:
    """A verdict for each goal, over ``repetitions`` that should have been measured."""
    return [_verdict(goal, results, repetitions) for goal in goals]


def ratios(
    results: Results, experiment: str, of: tuple[str, str], to: tuple[str, str], repetitions: int
) -> Spread | None:
    """Of the repetitions in which both figures were measured; ``None`` where in none of them."""
    found = []
    for repetition in range(repetitions):
        above, below = (
            results.get(Run(experiment, gateway, repetition), {}).get(figure, 0.0)
            for gateway, figure in (of, to)
        )
        if above > 0 and below > 0:
            found.append(above / below)
    return spread(found) if found else None


def _verdict(goal: Goal, results: Results, repetitions: int) -> Verdict:
    found = ratios(results, goal.experiment, goal.of, goal.to, repetitions)
    if found is None:
        return Verdict(goal, None, None, "not measured")
    count = len(found.values)
    remark = "" if count == repetitions else f"only {count} of {repetitions} repetitions count"
    figure = found.high if goal.upper else found.mean
    if figure is None:
        remark = "one repetition has no interval"
    return Verdict(goal, figure, found, remark)
