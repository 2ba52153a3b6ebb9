"""What is shown beside the goals: rows of ratios, with no limit."""

from __future__ import annotations

from dataclasses import dataclass

from bench.virtual import cases
from bench.virtual.cases import CHAT
from bench.virtual.comparators import COMPARATORS
from bench.virtual.goals import JSQ, ROUND_ROBIN, ratio, ten
from bench.virtual.plan import Effort
from bench.virtual.scenarios import TEN
from bench.virtual.settings import OTHER_MODES, USUAL, WEIGHTED
from bench.virtual.terms import OverMixes, Ratio

#: In this order in the table of the ten mixes: those of goals with all seeds, the others with few.
OF_GOALS = (USUAL, "blind")
WITH_STEADY_SEEDS = ("exact", "select")
OTHERS = (*OTHER_MODES, "count", "power_of_two", *(name for name in COMPARATORS if name != JSQ))
_ALL_SEEDS_TOO = (ROUND_ROBIN, "least_work")

POLLS = (0.05, 0.2, 1.0, 5.0, 10.0)
#: The product, what herds on old data, and what softens that.
BY_POLL = (USUAL, "stale_argmin", "power_of_two_polled")


@dataclass(frozen=True)
class Row:
    """Ratios of one policy, or of one situation."""

    label: str
    cells: tuple[Ratio, ...]
    total: OverMixes | None = None


@dataclass(frozen=True)
class Table:
    """``heads`` are those of the cells."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[Row, ...]


def tables(effort: Effort) -> tuple[Table, ...]:
    """All of them."""
    return (
        mixes(effort),
        polls(effort),
        troubles(effort),
        crosswise(effort),
        corners(effort),
        weights(effort),
    )


def mixes(effort: Effort) -> Table:
    """Every policy in every one of the ten mixes, to omniscient join-the-shortest-queue."""
    rows = []
    for policy in (*OF_GOALS, *WITH_STEADY_SEEDS, *OTHERS):
        if policy in OF_GOALS or policy in _ALL_SEEDS_TOO:
            cells = ten(effort, policy, JSQ)
        elif policy in WITH_STEADY_SEEDS:
            cells = ten(effort, policy, JSQ, all_seeds=False)
        else:
            cells = tuple(
                ratio(effort.scenario(mix), policy, JSQ, effort.few_seeds(mix.load), means=True)
                for mix in TEN
            )
        rows.append(Row(policy, cells, OverMixes(f"ten mixes: {policy} / {JSQ}", cells)))
    return Table(f"p99 TTFT / {JSQ}, ten mixes", tuple(map(str, TEN)), tuple(rows))


def polls(effort: Effort) -> Table:
    """The ratio against the poll interval, one host of 16 workers."""
    seeds = effort.all_seeds(CHAT.load)
    rows = tuple(
        Row(
            policy,
            tuple(ratio(effort.scenario(CHAT, workers=16, poll=poll), policy, JSQ, seeds) for poll in POLLS),
        )
        for policy in BY_POLL
    )
    return Table(f"p99 TTFT / {JSQ} by poll interval, {CHAT}", tuple(f"{poll:g} s" for poll in POLLS), rows)


def troubles(effort: Effort) -> Table:
    """The usual way under every fault, to those who know everything or nothing."""
    rows = []
    for label, scenario in cases.faults(effort).items():
        seeds = effort.all_seeds(scenario.load)
        rows.append(Row(label, tuple(ratio(scenario, USUAL, to, seeds) for to in (JSQ, ROUND_ROBIN))))
    return Table(f"p99 TTFT of {USUAL} in trouble, {CHAT}", (f"/ {JSQ}", f"/ {ROUND_ROBIN}"), tuple(rows))


def crosswise(effort: Effort) -> Table:
    """Every other way to use the product in every trouble."""
    short = cases.shortened(effort)
    situations = {"nothing": cases.peaceful(short), **cases.faults(short)}
    rows = tuple(
        Row(
            label,
            tuple(
                ratio(scenario, setting, ROUND_ROBIN, cases.crosswise_seeds(effort, setting))
                for setting in cases.HARDENED
            ),
        )
        for label, scenario in situations.items()
    )
    return Table(f"p99 TTFT / {ROUND_ROBIN}, other settings in trouble", cases.HARDENED, rows)


def corners(effort: Effort) -> Table:
    """What limits, weights and missing signals do, each setting in its situations."""
    rows = tuple(
        Row(f"{label}: {setting}", (ratio(scenario, setting, ROUND_ROBIN, (1,)),))
        for label, (scenario, settings) in cases.corners(cases.shortened(effort)).items()
        for setting in settings
    )
    return Table(f"p99 TTFT / {ROUND_ROBIN}, limits, weights and sizes untold", (f"/ {ROUND_ROBIN}",), rows)


def weights(effort: Effort) -> Table:
    """How flat the usual score's weights are."""
    rows = []
    for policy in (USUAL, *WEIGHTED):
        cells = tuple(ratio(effort.scenario(mix), policy, JSQ, (1,), means=True) for mix in cases.WEIGHED)
        label = policy.removeprefix(f"{USUAL} ")
        rows.append(Row(label, cells, OverMixes(f"{label}: {policy} / {JSQ}", cells)))
    return Table(f"p99 TTFT / {JSQ}, other weights", tuple(map(str, cases.WEIGHED)), tuple(rows))
