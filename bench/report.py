"""The figures as tables to read, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.goals import Verdict
from bench.harness import Figure, ratio
from bench.names import EMPTY, SCAN, USUAL_LANES, WITHOUT, Name

_EXPLANATION = """\
Nanoseconds of CPU time per call where no other clock is named: the median over the rounds, and its 10th to 90th
percentile. Ratios are taken within each round, to an empty C call and to the list scan over as many instances.
cold: one call after all caches were filled with other data (wall clock, the clock's own time taken off)."""


def table(figures: Mapping[Name, Figure], cold: Mapping[Name, Figure]) -> str:
    """All figures but those beside neighbours, one a line, by lanes and instances."""
    head = f"{'instances':>9} {'lanes':>5}  {'case':<42}{_figure_head()} {'/ empty':>9} {'/ scan':>9} {'cold ns':>9}"
    lines = [_EXPLANATION, "", head]
    empty = figures.get(Name(EMPTY))
    block = (0, 0)
    for name in sorted((name for name in figures if not name.beside), key=_block):
        if _block(name) != block:
            lines.append("")
        block = _block(name)
        figure, scan = figures[name], figures.get(Name(SCAN, name.instances, USUAL_LANES))
        cold_ns = _ns(cold[name].median) if name in cold else ""
        lines.append(
            f"{name.instances or '':>9} {name.lanes or '':>5}  {name.case:<42}{_figure(figure)} "
            f"{_ratio(figure, empty):>9} {_ratio(figure, scan):>9} {cold_ns:>9}"
        )
    return "\n".join(lines)


def disturbances(figures: Mapping[Name, Figure], rates: Mapping[str, float]) -> str:
    """The figures beside neighbours, each with its ratio to the same without them."""
    lines = [f"{'case':<22} {'beside':<40}{_figure_head()} {'/ without':>9}"]
    for name in sorted((name for name in figures if name.beside), key=lambda name: (name.case, name.beside)):
        without = WITHOUT.get(name.beside)
        to = figures.get(name._replace(beside=without)) if without else None
        lines.append(
            f"{name.case:<22} {name.beside:<40}{_figure(figures[name])} {_ratio(figures[name], to):>9}"
        )
    kept = ", ".join(f"{role} {rate:,.0f}" for role, rate in rates.items())
    return "\n".join([*lines, f"Steps per second while they worked: {kept}"])


def verdicts(found: Sequence[Verdict]) -> str:
    """Every goal beside its figure."""
    lines = [f"{'':<6}  {'goal (64 instances, 8 lanes unless said)':<66} {'at most':>9} {'measured':>9}"]
    for verdict in found:
        measured = "-" if verdict.figure is None else _number(verdict.figure)
        remark = f"  {verdict.remark}" if verdict.remark else ""
        state = "ok" if verdict.met else "MISSED"
        lines.append(
            f"{state:<6}  {verdict.goal.text:<66} {_number(verdict.goal.limit):>9} {measured:>9}{remark}"
        )
    return "\n".join(lines)


def as_json(
    machine: Mapping[str, str],
    figures: Mapping[Name, Figure],
    cold: Mapping[Name, Figure],
    rates: Mapping[str, float],
    found: Sequence[Verdict],
) -> dict[str, Any]:
    """All of a run in plain values; ``null`` is what was not measured."""
    empty = figures.get(Name(EMPTY))
    return {
        "machine": dict(machine),
        "rates": dict(rates),
        "figures": [
            {
                **name._asdict(),
                **_plain(figure),
                "to_empty": ratio(figure, empty) if empty is not None else None,
                "cold": _plain(cold[name]) if name in cold else None,
            }
            for name, figure in figures.items()
        ],
        "goals": [
            {
                "text": verdict.goal.text,
                "limit": verdict.goal.limit,
                "measured": verdict.figure,
                "met": verdict.met,
                "remark": verdict.remark,
                "pairs": [[name._asdict() for name in pair] for pair in verdict.goal.pairs],
            }
            for verdict in found
        ],
    }


def _block(name: Name) -> tuple[int, int]:
    """Lines that stand together; what has no size first, then the usual number of lanes."""
    return 0 if name.lanes == USUAL_LANES else name.lanes, name.instances


def _plain(figure: Figure) -> dict[str, float]:
    return {"median_ns": figure.median, "p10_ns": figure.low, "p90_ns": figure.high}


def _figure_head() -> str:
    return f"{'ns':>11} {'p10..p90':>23}"


def _figure(figure: Figure) -> str:
    return f"{_ns(figure.median):>11} {_ns(figure.low) + '..' + _ns(figure.high):>23}"


def _ns(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def _ratio(figure: Figure, to: Figure | None) -> str:
    return "" if to is None else _number(ratio(figure, to))


def _number(value: float) -> str:
    """Three digits that count, or as many as a column has room for."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if value >= 1 else f"{value:.3f}" if value >= 0.1 else f"{value:.5f}"
