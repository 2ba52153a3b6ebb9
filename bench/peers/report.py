"""The figures of all runs as tables to read, and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from bench.peers.experiments import (
    ADDED,
    ALL,
    BURST,
    DIRECT,
    EXPERIMENTS,
    HIDDEN_LOAD,
    ORDERS,
    PLAIN,
    Run,
)
from bench.peers.goals import Results, Verdict, ratios
from bench.peers.ratios import Spread
from bench.peers.stage import LEAST_LOAD, NGINX, NGINX_ZONE, PER_PROCESS, ROUND_ROBIN

_EXPLANATION = """\
Milliseconds. wait: time of the whole answer at the client minus service, so with what client and gateway take;
queued: the engine's part of it; passing: the rest. ttft: to the first byte of the body. Medians over the
repetitions. Ratios are taken within each repetition: geometric mean, its 90 % interval, and each one."""

_SHOWN = {
    PLAIN: ("wait_mean", "wait_p50", "wait_p99", "queued_mean", "queued_p99", "passing_p50", "passing_p99"),
    HIDDEN_LOAD: ("wait_mean", "wait_p50", "wait_p99", "queued_p99", "passing_p99", "hidden_p99"),
    BURST: ("before_wait_mean", "after_wait_mean", "before_wait_p99", "after_wait_p99"),
    ADDED: tuple(
        f"{door}_{figure}"
        for door in (DIRECT, LEAST_LOAD, f"{LEAST_LOAD}_added", NGINX, f"{NGINX}_added")
        for figure in ("p50", "p99")
    ),
    **dict.fromkeys(ORDERS, ("ttft_mean", "ttft_p50", "ttft_p99", "whole_p99", "rate", "utilisation")),
}
_COMPARED = {PLAIN: "wait_p99", HIDDEN_LOAD: "wait_p99", **dict.fromkeys(ORDERS, "ttft_p99")}
_OTHERS = (NGINX, NGINX_ZONE, ROUND_ROBIN, PER_PROCESS)


def run_line(run: Run, figures: Mapping[str, Any], problems: Sequence[str]) -> str:
    """One run in a line, as soon as it is made."""
    name = f"{run.experiment} {run.repetition + 1} {run.gateway}:"
    if problems:
        return f"{name} DOES NOT COUNT: {'; '.join(problems)}"
    shown = (f"{key} {figures[key]:.3g}" for key in _SHOWN[run.experiment] if key in figures)
    return f"{name} {', '.join(shown)}{_notes(figures)}"


def tables(results: Results, repetitions: int) -> str:
    """What was measured, by experiment and gateway, with the ratios of each."""
    lines = [_EXPLANATION]
    for experiment in EXPERIMENTS:
        names = dict.fromkeys(run.gateway for run in results if run.experiment == experiment)
        for name in sorted(names, key=(LEAST_LOAD, *_OTHERS, ALL).index):
            runs = [figures for run, figures in results.items() if run[:2] == (experiment, name)]
            lines.append(f"\n{experiment}, {name} ({len(runs)} of {repetitions} repetitions)")
            for key in _SHOWN[experiment]:
                values = [figures[key] for figures in runs if key in figures]
                if values:
                    each = " ".join(f"{value:.3g}" for value in values)
                    lines.append(f"  {key:<22} {statistics.median(values):>9.3g}   {each}")
        lines += [f"  {line}" for line in _ratio_lines(results, experiment, repetitions)]
    return "\n".join(lines)


def verdicts(found: Sequence[Verdict]) -> str:
    """Every goal beside its figure."""
    lines = [f"{'':<6}  {'goal':<54} {'limit':>9} {'measured':>9}"]
    for verdict in found:
        goal = verdict.goal
        limit = f"{'below' if goal.below else 'at most'} {goal.limit:g}"
        measured = "-" if verdict.figure is None else f"{verdict.figure:.3g}"
        rest = [
            text for text in (verdict.remark, _interval(verdict.spread) if verdict.spread else "") if text
        ]
        state = "ok" if verdict.met else "MISSED"
        lines.append(f"{state:<6}  {goal.text:<54} {limit:>12} {measured:>9}  {'; '.join(rest)}")
    return "\n".join(lines)


def as_json(
    machine: Mapping[str, str],
    settings: Mapping[str, Any],
    results: Results,
    rejected: Mapping[Run, Sequence[str]],
    found: Sequence[Verdict],
) -> dict[str, Any]:
    """All of it in plain values; ``null`` is what was not measured."""
    return {
        "machine": dict(machine),
        "settings": dict(settings),
        "runs": [{**run._asdict(), "figures": dict(figures)} for run, figures in results.items()],
        "not_counted": [{**run._asdict(), "problems": list(why)} for run, why in rejected.items()],
        "goals": [
            {
                "text": verdict.goal.text,
                "limit": verdict.goal.limit,
                "measured": verdict.figure,
                "met": verdict.met,
                "remark": verdict.remark,
                "ratio": verdict.spread._asdict() if verdict.spread else None,
            }
            for verdict in found
        ],
    }


def _ratio_lines(results: Results, experiment: str, repetitions: int) -> list[str]:
    figure = _COMPARED.get(experiment)
    if experiment == BURST:
        pairs = [
            (name, (name, "after_wait_mean"), (name, "before_wait_mean")) for name in (LEAST_LOAD, NGINX)
        ]
    elif figure is not None:
        pairs = [(f"{LEAST_LOAD} / {name}", (LEAST_LOAD, figure), (name, figure)) for name in _OTHERS]
    else:
        pairs = []
    lines = []
    for name, of, to in pairs:
        found = ratios(results, experiment, of, to, repetitions)
        if found is not None:
            what = "after / before" if experiment == BURST else figure
            lines.append(f"{name}, {what}: {found.mean:.3g} ({_interval(found)})")
    return lines


def _interval(found: Spread) -> str:
    each = " ".join(f"{value:.3g}" for value in found.values)
    return each if found.low is None else f"90 %: {found.low:.3g}..{found.high:.3g}; {each}"


def _notes(figures: Mapping[str, Any]) -> str:
    """What a reader should know of a run besides: how its requests spread over workers; degraded picks."""
    workers = sorted(figures.get("workers", {}).values(), reverse=True)
    notes = [f"by worker {'/'.join(map(str, workers))}"] if workers else []
    if figures.get("degraded"):
        notes.append(f"DEGRADED PICKS {figures['degraded']}")
    return f"; {'; '.join(notes)}" if notes else ""
