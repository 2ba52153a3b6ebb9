"""The figures as tables to read, and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from bench.virtual.goals import Verdict
from bench.virtual.plan import Run
from bench.virtual.ratios import Spread
from bench.virtual.tables import Row, Table
from bench.virtual.terms import Results

EXPLANATION = """\
Ratios of the 99th percentile of the time to first token; each names its denominator, which met the same requests.
In braces the smallest and the largest of what a figure is the mean of (seeds, or mixes), and the standard error."""


def table(shown: Table, results: Results) -> str:
    """One row a line; a figure that is yet to be measured is a dash."""
    totals = any(row.total for row in shown.rows)
    width = max(len(row.label) for row in shown.rows)
    heads = [*(("all",) if totals else ()), *shown.heads]
    widths = [max(len(head), 6) for head in heads]
    lines = [
        shown.title,
        f"{'':<{width}}  " + "  ".join(f"{h:>{w}}" for h, w in zip(heads, widths, strict=True)),
    ]
    for row in shown.rows:
        figures = [term.figure(results) for term in ([row.total] if row.total else []) + list(row.cells)]
        cells = ["-" if figure is None else number(figure.value) for figure in figures]
        line = f"{row.label:<{width}}  " + "  ".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=True))
        lines.append(line + _spread_of(row, figures))
    return "\n".join(lines)


def verdicts(found: Sequence[Verdict]) -> str:
    """Every goal beside its figure."""
    width = max(len(verdict.goal.text) for verdict in found)
    lines = [f"{'':<6}  {'goal':<{width}}  {'limit':>8}  {'measured':>8}"]
    for verdict in found:
        goal, figure = verdict.goal, verdict.figure
        limit = (">= " if goal.at_least else "<= ") + number(goal.limit)
        measured = "-" if figure is None else number(figure.value)
        spread = "" if figure is None else f"  {braces(figure)}"
        remark = "" if figure is not None and verdict.remark == goal.text else f"  {verdict.remark}"
        state = "ok" if verdict.met else "MISSED"
        lines.append(f"{state:<6}  {goal.text:<{width}}  {limit:>8}  {measured:>8}{spread}{remark}")
    return "\n".join(lines)


def as_json(
    machine: Mapping[str, str],
    runs: Iterable[Run],
    tables: Iterable[Table],
    found: Iterable[Verdict],
    results: Results,
) -> dict[str, Any]:
    """All of it in plain values; ``null`` is what was not measured."""
    return {
        "machine": dict(machine),
        "runs": [
            {
                "scenario": run.scenario.name,
                "policy": run.policy,
                "seed": run.seed,
                "outcome": outcome.as_dict(),
            }
            for run in sorted(runs, key=lambda run: (run.scenario.name, run.policy, run.seed))
            if (outcome := results(run)) is not None
        ],
        "tables": [
            {
                "title": each.title,
                "heads": list(each.heads),
                "rows": [
                    {
                        "label": row.label,
                        "all": _plain(row.total.figure(results) if row.total else None),
                        "cells": [
                            {"of": cell.text, **(_plain(cell.figure(results)) or {})} for cell in row.cells
                        ],
                    }
                    for row in each.rows
                ],
            }
            for each in tables
        ],
        "goals": [
            {
                "text": verdict.goal.text,
                "limit": verdict.goal.limit,
                "at_least": verdict.goal.at_least,
                "measured": _plain(verdict.figure),
                "met": verdict.met,
                "of": verdict.remark,
            }
            for verdict in found
        ],
    }


def braces(figure: Spread) -> str:
    """The spread of a figure."""
    error = "" if math.isnan(figure.error) else f", se {figure.error:.3f}"
    return f"{{{number(figure.low)}..{number(figure.high)}{error}}}"


def number(value: float) -> str:
    """Three digits that count, or whole ones."""
    if math.isnan(value):
        return "nan"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}" if value >= 10 else f"{value:.3f}"


def _spread_of(row: Row, figures: Sequence[Spread | None]) -> str:
    # Of a row's total; without one, of its only cell.
    first = figures[0] if row.total or len(figures) == 1 else None
    return "" if first is None else f"  {braces(first)}"


def _plain(figure: Spread | None) -> dict[str, float | None] | None:
    if figure is None:
        return None
    return {key: None if math.isnan(value) else value for key, value in figure._asdict().items()}
