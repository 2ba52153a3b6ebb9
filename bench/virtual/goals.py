"""What routing has to show in virtual time, as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.virtual import cases
from bench.virtual.cases import BUSY_CELLS, BUSY_CHAT, CELLS, CHAT
from bench.virtual.plan import FULL, Effort
from bench.virtual.ratios import Spread
from bench.virtual.scenarios import TEN, Mix, Scenario
from bench.virtual.settings import USUAL
from bench.virtual.terms import Measured, OverMixes, Point, Ratio, Results, Share, Term
from bench.virtual.ticking import share_of_a_core

JSQ, ROUND_ROBIN, LEAST_WORK = "shortest_queue", "round_robin", "least_work"


@dataclass(frozen=True)
class Goal:
    """The figure of each of ``terms`` is at most ``limit``, or at least where ``at_least``; the worst is shown."""

    text: str
    limit: float
    terms: tuple[Term, ...]
    at_least: bool = False


@dataclass(frozen=True)
class Verdict:
    """``figure`` is the worst term's, ``None`` if one was not measured; ``remark`` says which it was."""

    goal: Goal
    figure: Spread | None
    remark: str

    @property
    def met(self) -> bool:
        """What was not measured is not met."""
        if self.figure is None:
            return False
        value, limit = self.figure.value, self.goal.limit
        return value >= limit if self.goal.at_least else value <= limit


def judge(goals: Iterable[Goal], results: Results) -> list[Verdict]:
    """A verdict for each goal."""
    return [_verdict(goal, results) for goal in goals]


def _verdict(goal: Goal, results: Results) -> Verdict:
    found: list[tuple[Spread, str]] = []
    for term in goal.terms:
        figure = term.figure(results)
        if figure is None:
            return Verdict(goal, None, f"not measured: {term.text}")
        found.append((figure, term.text))
    worst = min if goal.at_least else max
    figure, text = worst(found, key=lambda each: each[0].value)
    return Verdict(goal, figure, text)


def ratio(scenario: Scenario, of: str, to: str, seeds: Sequence[int], *, means: bool = False) -> Ratio:
    """Two policies in one scenario."""
    return Ratio(Point(scenario, of), Point(scenario, to), tuple(seeds), means)


def ten(effort: Effort, of: str, to: str, *, all_seeds: bool = True) -> tuple[Ratio, ...]:
    """Two policies in each of the ten mixes; without ``all_seeds``, with the seeds of a steady load everywhere."""
    return tuple(
        ratio(
            effort.scenario(mix),
            of,
            to,
            effort.all_seeds(mix.load) if all_seeds else effort.steady_seeds(),
            means=True,
        )
        for mix in TEN
    )


def goals(effort: Effort) -> tuple[Goal, ...]:
    """All of them, simulated with that effort."""
    steady = effort.all_seeds(CHAT.load)

    def against_jsq(text: str, limit: float, scenarios: Iterable[Scenario], of: str = USUAL) -> Goal:
        terms = [ratio(each, of, JSQ, effort.all_seeds(each.load)) for each in scenarios]
        return Goal(f"{text}: {of} / {JSQ}", limit, tuple(terms))

    def over_ten(limit: float, of: str, to: str, *, all_seeds: bool = True) -> Goal:
        text = f"ten mixes: {of} / {to}"
        return Goal(text, limit, (OverMixes(text, ten(effort, of, to, all_seeds=all_seeds)),))

    def worst_of_ten(of: str, to: str, *, all_seeds: bool = True) -> Goal:
        terms = ten(effort, of, to, all_seeds=all_seeds)
        return Goal(f"worst of the ten mixes: {of} / {to}", 1.0, terms)

    chat = cases.one_host(effort, CHAT, CELLS)
    return (
        against_jsq("one host, 85 %", 1.05, chat, "count"),
        against_jsq("one host, 85 %", 0.80, chat),
        against_jsq("one host, 95 %", 1.00, cases.one_host(effort, BUSY_CHAT, BUSY_CELLS)),
        over_ten(0.50, USUAL, JSQ),
        over_ten(0.45, USUAL, LEAST_WORK),
        over_ten(0.16, USUAL, ROUND_ROBIN),
        worst_of_ten(USUAL, JSQ),
        against_jsq("four hosts, 85 %", 1.10, cases.four_hosts(effort, CHAT)),
        against_jsq("four hosts, 95 %", 1.15, cases.four_hosts(effort, BUSY_CHAT)),
        against_jsq("sixteen hosts, 85 %", 1.20, cases.sixteen_hosts(effort)),
        against_jsq("20 % past the proxies, polls of 0.2 and 1 s", 1.15, cases.past_the_proxies(effort)),
        Goal(
            f"2 of 10 machines unknown / none: {USUAL}",
            1.05,
            (Ratio(Point(cases.unknown(effort, 2), USUAL), Point(cases.unknown(effort, 0), USUAL), steady),),
        ),
        against_jsq("a machine exchanged every 20 s", 1.05, [cases.faults(effort)["churn"]]),
        Goal(
            f"long-context mixes up to 95 %: good share, {USUAL}",
            0.99,
            tuple(
                Share(Point(effort.scenario(mix), USUAL), "good", effort.all_seeds(mix.load))
                for mix in cases.LONG
            ),
            at_least=True,
        ),
        Goal(
            f"1 of 8 machines fails fast: failed share, {USUAL}",
            1 / 8,
            (Share(Point(cases.faults(effort)["1 of 8 fails fast"], USUAL), "failed", steady),),
        ),
        Goal(
            f"30 s after a worker with 60 requests was killed / without: {USUAL}",
            1.05,
            (
                Ratio(
                    Point(cases.after_a_kill(effort, True), USUAL),
                    Point(cases.after_a_kill(effort, False), USUAL),
                    steady,
                ),
            ),
        ),
        against_jsq("monitor dead for good", 1.15, [cases.faults(effort)["dead monitor"]]),
        Goal(f"worst fault and setting: the product / {ROUND_ROBIN}", 1.50, tuple(hardships(effort))),
        against_jsq("prompts of 3000 tokens", 1.00, [effort.scenario(Mix("documents", "ample", 0.85))]),
        against_jsq(
            "answers of 20 tokens",
            1.00,
            [effort.scenario(Mix("labels", "ample", 0.85), duration=effort.short)],
        ),
        over_ten(0.70, "blind", JSQ),
        worst_of_ten("select", ROUND_ROBIN, all_seeds=False),
        over_ten(1.03, USUAL, "exact", all_seeds=False),
        Goal(
            "CPU of ticking 256 slots x 32 lanes / a core",
            0.02,
            (Measured("board.tick() every 20 ms", share_of_a_core),),
        ),
    )


def hardships(effort: Effort) -> list[Ratio]:
    """The product to round robin: as usual under every fault, in every other way with and without them, and in corners."""
    found = [
        ratio(scenario, USUAL, ROUND_ROBIN, effort.all_seeds(scenario.load))
        for scenario in cases.faults(effort).values()
    ]
    short = cases.shortened(effort)
    for scenario in (cases.peaceful(short), *cases.faults(short).values()):
        found += [
            ratio(scenario, setting, ROUND_ROBIN, cases.crosswise_seeds(short, setting))
            for setting in cases.HARDENED
        ]
    for scenario, settings in cases.corners(short).values():
        found += [ratio(scenario, setting, ROUND_ROBIN, (1,)) for setting in settings]
    return found


GOALS = goals(FULL)
