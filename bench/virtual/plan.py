"""Which runs there are: how long, with which seeds, and which of them are the same run by two names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bench.virtual.comparators import COMPARATORS
from bench.virtual.scenarios import Mix, Scenario, of_mix
from bench.virtual.settings import SETTINGS

#: Up to this load p99 differs little between seeds.
STEADY_LOAD = 0.85


class Run(NamedTuple):
    """One run, as :func:`bench.virtual.runs.run` takes it."""

    scenario: Scenario
    policy: str
    seed: int


@dataclass(frozen=True)
class Effort:
    """How much is simulated. ``few`` seeds are for what is reported only, and for coarse limits."""

    seeds: int = 5  #: at loads up to ``STEADY_LOAD``
    busy_seeds: int = 16  #: above
    few: int = 2
    busy_few: int = 3
    duration: float = 260.0
    warmup: float = 60.0
    busy_duration: float = 300.0
    busy_warmup: float = 100.0
    short: float = 200.0  #: where many hosts or many machines' requests make a run long

    def scenario(self, mix: Mix, **other: Any) -> Scenario:
        """That mix for as long as its load wants, or with ``other`` fields."""
        busy = mix.load > STEADY_LOAD
        duration, warmup = (self.busy_duration, self.busy_warmup) if busy else (self.duration, self.warmup)
        return of_mix(mix, **{"duration": duration, "warmup": warmup, **other})

    def all_seeds(self, load: float) -> tuple[int, ...]:
        """Those of a goal at that load."""
        return tuple(range(1, 1 + (self.busy_seeds if load > STEADY_LOAD else self.seeds)))

    def steady_seeds(self) -> tuple[int, ...]:
        """Those of a steady load, for goals at any load whose figures are far from their limits."""
        return tuple(range(1, 1 + self.seeds))

    def few_seeds(self, load: float) -> tuple[int, ...]:
        """The first of them."""
        return tuple(range(1, 1 + (self.busy_few if load > STEADY_LOAD else self.few)))

    def at_most(self, seeds: int) -> Effort:
        """The same with at most so many seeds."""
        return replace(
            self,
            seeds=min(self.seeds, seeds),
            busy_seeds=min(self.busy_seeds, seeds),
            few=min(self.few, seeds),
            busy_few=min(self.busy_few, seeds),
        )


FULL = Effort()
QUICK = Effort(
    seeds=1,
    busy_seeds=2,
    few=1,
    busy_few=1,
    duration=120.0,
    warmup=40.0,
    busy_duration=120.0,
    busy_warmup=40.0,
    short=100.0,
)

# What a policy cannot notice: requests do not depend on it either, so the run is the usual one's.
_NO_MONITOR = ("unknown", "frozen", "dead_monitor", "worker_killed", "untold")
_NO_POLLS = ("poll", "together", *_NO_MONITOR)
_NO_WORKERS = ("hosts", "workers", *_NO_POLLS)
_UNNOTICED: dict[str, tuple[str, ...]] = {
    "random": _NO_WORKERS,
    "shortest_queue": _NO_WORKERS,
    "least_work": _NO_WORKERS,
    "central_queue": _NO_WORKERS,
    "round_robin": _NO_POLLS,
    "per_process": _NO_POLLS,
    "stale_argmin": _NO_MONITOR,
    "power_of_two_polled": _NO_MONITOR,
    "smg_1629": _NO_MONITOR,
    "smg_1647": _NO_MONITOR,
}


def run_of(scenario: Scenario, policy: str, seed: int) -> Run:
    """The run whose outcome is that of ``policy`` in ``scenario``: without what ``policy`` does not notice."""
    usual = Scenario()
    same = {name: getattr(usual, name) for name in _UNNOTICED.get(policy, ())}
    return Run(replace(scenario, **same), policy, seed)


def cost(run: Run) -> float:
    """About how many seconds of CPU time the run takes on the machine that this was fitted on.

    Steps of the engines and requests cost every policy, polls and ticks the product alone.
    """
    scenario = run.scenario
    duration, requests = scenario.duration, scenario.rate() * scenario.duration
    seconds = 0.2 + 1.4e-4 * scenario.instances * duration + 1.0e-5 * requests
    if run.policy in COMPARATORS:
        return seconds
    setting = SETTINGS[run.policy]
    alive = min(duration, scenario.warmup / 2) if scenario.dead_monitor else duration
    polls = scenario.hosts * scenario.instances * alive / scenario.poll
    ticks = scenario.hosts * alive / setting.tick + (requests if setting.exact else 0.0)
    return seconds + 1.5e-5 * requests + 1.2e-4 * polls + 2.4e-4 * ticks


def longest_first(runs: Iterable[Run]) -> list[Run]:
    """Each once, in the order in which they are best begun."""
    return sorted(set(runs), key=lambda run: (-cost(run), run.scenario.name, run.policy, run.seed))
