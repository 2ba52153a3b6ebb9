"""The benchmark measures what it says, judges by its goals, and runs from end to end. No time is asserted."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import names
from bench.goals import GOALS, Goal, judge
from bench.harness import Case, Figure, measure, measure_cold, percentile, ratio
from bench.names import SIZES, Name, by_clock
from bench.report import table, verdicts
from score_table.pick import CORES

ROOT = Path(__file__).parents[2]
A, B, C = Name("a"), Name("b"), Name("c", 64, 8)


class Time:
    """A clock that only moves when it is told to, or by ``cost`` with every reading."""

    def __init__(self, cost: int = 0) -> None:
        self.now = 0
        self.cost = cost

    def __call__(self) -> int:
        self.now += self.cost
        return self.now

    def advance(self, by: int) -> None:
        self.now += by


def figure(*values: float) -> Figure:
    return Figure(values)


# -- statistics -------------------------------------------------------------------------------------------


def test_a_figure_is_the_median_and_the_outer_tenths() -> None:
    of = figure(*range(101))
    assert (of.low, of.median, of.high) == (10, 50, 90)


def test_a_lone_value_is_every_percentile() -> None:
    assert percentile([7.0], 10) == percentile([7.0], 90) == 7.0


def test_a_ratio_is_taken_within_each_round() -> None:
    # The machine was three times as slow in the second and the third round.
    assert ratio(figure(20, 60, 66), figure(10, 30, 30)) == 2


def test_a_ratio_of_other_numbers_of_rounds_is_that_of_the_medians() -> None:
    assert ratio(figure(20, 40), figure(10, 10, 10)) == 3


def test_a_ratio_to_nothing_is_no_number() -> None:
    assert math.isnan(ratio(figure(1), figure(0)))


# -- the harness ------------------------------------------------------------------------------------------


def test_a_case_costs_what_its_statement_takes_on_the_clock_of_the_case() -> None:
    clock, other = Time(), Time()
    cases = {
        A: Case("advance(5)", {"advance": clock.advance}, clock=clock),
        B: Case("advance(x)", {"advance": other.advance}, [10, 20], clock=other, at_most=2),
    }
    found = measure(cases, rounds=4, slice_s=1e-5)
    assert found == {A: figure(5, 5, 5, 5), B: figure(15, 15, 15, 15)}


@pytest.mark.parametrize(("counts", "expected"), [(False, 5.0), (True, 6.0)])
def test_what_calls_leave_behind_is_settled_in_time_and_counted_only_where_asked(
    counts: bool, expected: float
) -> None:
    clock, left, most = Time(), [], 0

    def call() -> None:
        clock.advance(5)
        left.append(1)

    def settle() -> None:
        nonlocal most
        most = max(most, len(left))
        clock.advance(len(left))
        left.clear()

    case = Case("call()", {"call": call}, settle=settle, at_most=8, settle_counts=counts, clock=clock)
    assert measure({A: case}, rounds=3, slice_s=1e-6)[A].values == (expected,) * 3
    assert not left
    assert most == 8


def test_a_slice_runs_within_what_is_around_it() -> None:
    clock, inside = Time(), []

    class Around:
        def __enter__(self) -> None:
            inside.append(clock.now)

        def __exit__(self, *_: object) -> None:
            inside.append(clock.now)

    case = Case("advance(5)", {"advance": clock.advance}, clock=clock, around=Around)
    measure({A: case}, rounds=2, slice_s=1e-6)
    assert len(inside) == 4
    assert inside[0] < inside[1] == inside[2] < inside[3]


def test_cold_calls_come_after_an_eviction_each_and_without_the_time_of_the_clock() -> None:
    clock, evictions, calls = Time(cost=7), list[int](), list[tuple[object, int]]()

    def call(item: object) -> None:
        calls.append((item, len(evictions)))
        clock.advance(50)

    cases = {A: Case("call(x)", {"call": call}, [1, 2])}
    found = measure_cold(cases, samples=3, evict=lambda: evictions.append(1), clock=clock)
    assert found[A].values == (50, 50, 50)
    # One call warms up; then every call, and the clock by itself, has an eviction of its own.
    assert [seen for _, seen in calls] == [0, 1, 3, 5]


# -- the goals --------------------------------------------------------------------------------------------

GOAL = Goal("a / b", ((A, B),), 2.0)


@pytest.mark.parametrize(("a", "met"), [(19.9, True), (20.0, True), (20.1, False)])
def test_a_goal_is_met_up_to_its_limit(a: float, met: bool) -> None:
    (verdict,) = judge([GOAL], {A: figure(a), B: figure(10)}, {})
    assert verdict.figure == pytest.approx(a / 10)
    assert verdict.met is met


def test_the_worst_of_several_pairs_decides() -> None:
    goal = Goal("both", ((A, B), (C, B)), 2.0)
    (verdict,) = judge([goal], {A: figure(10), B: figure(10), C: figure(30)}, {})
    assert verdict.figure == 3
    assert not verdict.met


def test_what_was_not_measured_is_missed() -> None:
    (verdict,) = judge([Goal("c / b", ((C, B),), 2.0)], {B: figure(10)}, {})
    assert verdict.figure is None
    assert not verdict.met
    assert "not measured: c, 64 instances" in verdicts([verdict])


@pytest.mark.parametrize(
    ("rates", "met"), [({"counter": 95.0}, True), ({"counter": 85.0}, False), ({}, False)]
)
def test_a_goal_counts_only_if_the_neighbours_kept_their_rate(rates: dict[str, float], met: bool) -> None:
    goal = Goal("a / b", ((A, B),), 2.0, (("counter", 90.0),))
    (verdict,) = judge([goal], {A: figure(10), B: figure(10)}, rates)
    assert verdict.met is met
    assert ("the counter kept only" in verdict.remark) is not met


def test_verdicts_show_limit_and_figure() -> None:
    shown = verdicts(judge([GOAL], {A: figure(50), B: figure(10)}, {}))
    line = shown.splitlines()[1].split()
    assert line == ["MISSED", "a", "/", "b", "2", "5"]


def test_the_table_has_ratios_to_the_empty_call_and_to_the_list_scan_of_that_size() -> None:
    figures = {
        Name(names.EMPTY): figure(20),
        Name(names.PICK, 64, 1): figure(80),
        Name(names.SCAN, 64, 8): figure(8000),
        Name(names.SCAN, 16, 8): figure(2000),
    }
    line = next(line for line in table(figures, {}).splitlines() if names.PICK in line)
    assert line.split() == ["64", "1", "native", "pick", "80.0", "80.0..80.0", "4", "0.01000"]


# -- from end to end --------------------------------------------------------------------------------------


def _run(*arguments: str, before: str = "pass") -> subprocess.CompletedProcess[str]:
    code = f"import sys; {before}; from bench.selection import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "--quick", "--rounds", "2", "--slice-ms", "0.2", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.skipif("native" not in CORES, reason="the native pick was not built")
def test_a_quick_check_prints_every_goal_and_writes_every_figure(tmp_path: Path) -> None:
    done = _run("--check", "--sizes", "16,64", "--json", str(tmp_path / "figures.json"))
    assert done.stderr == ""
    assert done.returncode == 1, "the larger sizes were left out, so not all goals can be met"
    for goal in GOALS:
        assert goal.text in done.stdout
    for fact in ("cpu:", "cores:", "python:"):
        assert fact in done.stdout
    written = json.loads((tmp_path / "figures.json").read_text())
    measured = {
        Name(each["case"], each["instances"], each["lanes"], each["beside"]) for each in written["figures"]
    }
    for goal, result in zip(GOALS, written["goals"], strict=True):
        assert result["text"] == goal.text
        large = any(name.instances > 64 for pair in goal.pairs for name in pair)
        assert large or all(name in measured for pair in goal.pairs for name in pair), goal.text
        assert large or result["measured"] is not None
    assert {each.instances for each in measured} == {0, 16, 64}
    assert all(each["median_ns"] >= 0 for each in written["figures"])
    assert set(written["rates"]) == {"writer", "reader", "counter"}


def test_without_the_native_pick_it_says_so_and_measures_the_rest() -> None:
    done = _run("--check", "--sizes", "16", before="sys.modules['score_table._native'] = None")
    assert done.stderr == ""
    assert done.returncode == 1
    assert "The native pick is missing:" in done.stdout
    assert names.SCAN in done.stdout
    assert f"not measured: {names.PICK}" in done.stdout


def test_a_size_outside_of_the_grid_is_refused() -> None:
    done = _run("--sizes", "5")
    assert done.returncode == 2
    assert "choose from 4, 16" in done.stderr


# -- the page ---------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "benchmark.md").read_text()


def _cases() -> list[str]:
    constants: dict[str, Any] = vars(names)
    others = {names.WALL, names.CPU_OF_BOTH, names.CPU_OF_CLIENT, names.WRITER, names.COMPANY}
    return [
        value
        for name, value in constants.items()
        if name.isupper() and isinstance(value, str) and value not in others
    ]


@pytest.mark.parametrize("case", _cases())
def test_every_case_stands_in_the_page(case: str) -> None:
    assert f"`{case}`" in PAGE


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: goal.text)
def test_every_goal_stands_in_the_page_with_its_limit(goal: Goal) -> None:
    limit = f"1/{round(1 / goal.limit)}" if goal.limit < 1 else f"{goal.limit:g}"
    assert f"| {goal.text} | {limit} |" in PAGE


def test_goals_are_about_what_is_measured() -> None:
    cases = {*_cases(), *(by_clock(names.RPC, clock) for clock in (names.WALL, names.CPU_OF_BOTH))}
    for goal in GOALS:
        for name in (name for pair in goal.pairs for name in pair):
            assert name.case in cases
            assert name.instances in (0, *SIZES)
