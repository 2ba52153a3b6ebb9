"""Ratios, verdicts, and that the plan has what they need."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from bench.routing import Plan
from bench.virtual import ratios, report
from bench.virtual.cases import BUSY_CHAT, CHAT
from bench.virtual.goals import GOALS, Goal, goals, judge, ratio
from bench.virtual.plan import FULL, QUICK, Run, cost, longest_first, run_of
from bench.virtual.ratios import Pair, Spread
from bench.virtual.runs import policies
from bench.virtual.scenarios import TEN, Scenario
from bench.virtual.settings import SETTINGS, USUAL
from bench.virtual.tables import tables
from bench.virtual.terms import Measured, OverMixes, Point, Ratio, Share
from tests.unit.bench_routing.results import everything, outcome

JSQ = "shortest_queue"
#: The section of this bench.
PAGE = (
    (Path(__file__).parents[3] / "docs" / "benchmark.md").read_text().split("\n# The routing benchmark\n")[1]
)
PAGE = PAGE.split("\n# ")[0]


# -- ratios -----------------------------------------------------------------------------------------------


def test_over_seeds_is_the_geometric_mean_of_paired_ratios() -> None:
    found = ratios.over_seeds(Pair([2.0, 80.0], [1.0, 10.0]))
    assert found[:3] == pytest.approx((4.0, 2.0, 8.0))
    # Logarithms 2 and 8: their sample deviation is ln(4) / sqrt(2), the error of the mean that over sqrt(2).
    assert found.error == pytest.approx(math.log(4.0) / 2.0)


def test_of_means_takes_the_means_first() -> None:
    found = ratios.of_means(Pair([2.0, 80.0], [1.0, 10.0]))
    assert found[:3] == pytest.approx((82.0 / 11.0, 2.0, 8.0))


def test_ratios_that_are_the_same_for_every_seed_have_no_error() -> None:
    pair = Pair([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    assert ratios.over_seeds(pair).error == pytest.approx(0.0, abs=1e-12)
    assert ratios.of_means(pair).error == pytest.approx(0.0, abs=1e-12)


def test_over_mixes_is_the_geometric_mean_of_their_ratios_of_means() -> None:
    found = ratios.over_mixes([Pair([1.0, 3.0], [1.0, 1.0]), Pair([8.0, 8.0], [1.0, 1.0])])
    assert found[:3] == pytest.approx((4.0, 2.0, 8.0))
    # Of the first mix: of / mean(of) is 0.5 and 1.5; deviation sqrt(0.5), error 0.5. Of the second 0.
    assert found.error == pytest.approx(0.5 / 2)


def test_one_seed_says_nothing_of_its_error() -> None:
    assert math.isnan(ratios.over_seeds(Pair([1.0], [2.0])).error)


# -- verdicts ---------------------------------------------------------------------------------------------

A, B = Point(Scenario(), USUAL), Point(Scenario(), JSQ)
TERM = Ratio(A, B, (1, 2))


def _twice(run: Run) -> float:
    return 2.0 if run.policy == USUAL else 1.0


@pytest.mark.parametrize(
    ("limit", "at_least", "met"), [(2.01, False, True), (1.99, False, False), (1.99, True, True)]
)
def test_a_goal_is_met_on_the_right_side_of_its_limit(limit: float, at_least: bool, met: bool) -> None:
    (verdict,) = judge([Goal("g", limit, (TERM,), at_least)], everything(_twice))
    assert verdict.figure is not None
    assert verdict.figure.value == pytest.approx(2.0)
    assert verdict.met is met


@pytest.mark.parametrize("at_least", [False, True])
def test_the_worst_term_decides_and_is_named(at_least: bool) -> None:
    other = Ratio(Point(Scenario(poll=5.0), USUAL), B, (1,))

    def p99(run: Run) -> float:
        return 1.0 if run.policy == JSQ else (5.0 if run.scenario.poll == 5.0 else 3.0)

    (verdict,) = judge([Goal("g", 1.0, (TERM, other), at_least)], everything(p99))
    assert verdict.figure is not None
    assert verdict.figure.value == pytest.approx(3.0 if at_least else 5.0)
    assert ("poll=5.0" in verdict.remark) is not at_least
    assert JSQ in verdict.remark


def test_what_was_not_measured_is_missed() -> None:
    (verdict,) = judge([Goal("g", 9.0, (TERM,))], lambda run: None if run.seed == 2 else outcome())
    assert verdict.figure is None
    assert not verdict.met
    assert "not measured: token_aware / shortest_queue" in report.verdicts([verdict])


def test_a_share_is_the_mean_over_seeds() -> None:
    term = Share(A, "good", (1, 2))
    found = term.figure(lambda run: outcome(good=0.98 if run.seed == 1 else 1.0))
    assert found is not None
    assert found.value == pytest.approx(0.99)


def test_a_verdict_shows_limit_figure_and_spread() -> None:
    shown = report.verdicts(judge([Goal("g", 1.5, (TERM,))], everything(_twice)))
    assert shown.splitlines()[1].split()[:5] == ["MISSED", "g", "<=", "1.500", "2.000"]
    assert "{2.000..2.000, se 0.000}" in shown


def test_what_was_not_measured_is_a_dash_in_its_table_and_null_in_the_json() -> None:
    (table, *_) = tables(QUICK)
    shown = report.table(table, lambda run: None)
    assert len(shown.splitlines()) == 2 + len(table.rows)
    assert shown.splitlines()[2].split()[1:] == ["-"] * 11
    written = report.as_json(
        {}, [], [table], judge([Goal("g", 1.0, (TERM,))], lambda run: None), lambda run: None
    )
    assert written["tables"][0]["rows"][0]["all"] is None
    assert written["goals"][0]["measured"] is None


# -- the plan ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("effort", [FULL, QUICK, FULL.at_most(2)], ids=["full", "quick", "two seeds"])
def test_the_plan_has_every_run_that_a_goal_or_a_table_needs(effort: object) -> None:
    assert isinstance(effort, type(FULL))
    plan = Plan(goals(effort), tables(effort))
    planned = set(plan.runs())
    assert len(planned) == len(plan.runs())
    asked: list[Run] = []

    def results(run: Run) -> None:
        asked.append(run)

    for goal in plan.goals:
        for term in goal.terms:
            if not isinstance(term, Measured):
                term.figure(results)
    for table in plan.tables:
        report.table(table, results)
    assert asked
    assert set(asked) <= planned


def test_every_policy_of_the_plan_exists_and_every_comparator_and_setting_is_planned() -> None:
    planned = {run.policy for run in Plan(GOALS, tables(FULL)).runs()}
    assert planned <= set(policies())
    # ``avoid`` is documented to have no bound, ``rotation`` is round robin.
    assert set(policies()) - planned == {"avoid", "rotation"}
    assert set(SETTINGS) - planned == {"avoid", "rotation"}


def test_goals_have_five_seeds_at_a_steady_load_and_sixteen_above() -> None:
    for goal in GOALS:
        for term in goal.terms:
            for each in term.mixes if isinstance(term, OverMixes) else (term,):
                if isinstance(each, Ratio) and len(each.seeds) > 1:
                    load = each.of.scenario.load
                    coarse = "select" in goal.text or "exact" in goal.text
                    assert len(each.seeds) == (16 if load > 0.85 and not coarse else 5), goal.text


def test_both_sides_of_a_ratio_meet_the_same_requests() -> None:
    for goal in GOALS:
        for term in goal.terms:
            for each in term.mixes if isinstance(term, OverMixes) else (term,):
                if isinstance(each, Ratio):
                    of, to = each.of.scenario, each.to.scenario
                    assert (of.rate(), of.duration, of.bypass, of.bursty) == (
                        to.rate(),
                        to.duration,
                        to.bypass,
                        to.bursty,
                    )


def test_a_full_check_is_planned_for_less_than_an_hour_on_two_cores() -> None:
    """At the speed of the machine that ``cost`` was fitted on; a fifth is left for a slower one."""
    runs = Plan(GOALS, tables(FULL)).runs()
    assert sum(map(cost, runs)) / 2 < 0.8 * 3600
    assert cost(runs[0]) == max(map(cost, runs))


def test_the_longest_run_is_begun_first_and_each_only_once() -> None:
    short, long = run_of(Scenario(duration=150.0), JSQ, 1), run_of(Scenario(), USUAL, 1)
    assert longest_first([short, long, short]) == [long, short]


def test_what_a_policy_does_not_notice_is_no_other_run() -> None:
    seen = Scenario(workers=16, poll=5.0, hosts=4, dead_monitor=True)
    assert run_of(seen, JSQ, 1) == run_of(Scenario(), JSQ, 1)
    assert run_of(seen, "stale_argmin", 1).scenario == Scenario(workers=16, poll=5.0, hosts=4)
    assert run_of(seen, USUAL, 1).scenario == seen
    assert run_of(Scenario(churn=20.0), JSQ, 1).scenario.churn == 20.0


def test_the_ten_mixes_are_those_of_the_goals() -> None:
    (goal,) = (goal for goal in GOALS if goal.text == f"ten mixes: {USUAL} / {JSQ}")
    (term,) = goal.terms
    assert isinstance(term, OverMixes)
    assert tuple(each.of.scenario.mix for each in term.mixes) == TEN
    assert (
        ratio(FULL.scenario(CHAT), USUAL, JSQ, (1,)).text
        == f"token_aware / shortest_queue, {FULL.scenario(CHAT).name}"
    )
    assert FULL.scenario(BUSY_CHAT).warmup > FULL.scenario(CHAT).warmup


# -- the page ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.text)
def test_every_goal_stands_in_the_page_with_its_limit(goal: Goal) -> None:
    limit = f"{'>=' if goal.at_least else '<='} {goal.limit:g}"
    assert f"| {goal.text} | {limit} |" in PAGE


def test_the_page_has_no_other_goals() -> None:
    rows = re.findall(r"^\| (.+?) \| [<>]= [\d.]+ \|$", PAGE, re.MULTILINE)
    assert rows == [goal.text for goal in GOALS]


@pytest.mark.parametrize("policy", sorted(policies()))
def test_every_policy_stands_in_the_page(policy: str) -> None:
    assert f"`{policy.split()[0]}`" in PAGE


def test_a_spread_is_shown_in_braces() -> None:
    assert report.braces(Spread(1.0, 0.5, 2.0, 0.1234)) == "{0.500..2.000, se 0.123}"
    assert report.braces(Spread(1.0, 0.5, 200.0, math.nan)) == "{0.500..200}"
