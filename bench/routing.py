"""How good the product's choices are: simulated engines in virtual time, the product's own code, and what others do.

Results are kept: what is interrupted goes on where it stopped, and changed code is measured anew.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench import machine
from bench.virtual import plot, pool, report
from bench.virtual.goals import Goal, goals, judge
from bench.virtual.leftovers import sweep
from bench.virtual.plan import FULL, QUICK, Effort, Run, cost, longest_first
from bench.virtual.store import Store
from bench.virtual.tables import Table, tables

RESULTS = Path("build/bench-routing.jsonl")
#: Seconds between two lines on how far it is.
_EVERY_S = 15.0


class Plan(NamedTuple):
    """What is judged and shown."""

    goals: tuple[Goal, ...]
    tables: tuple[Table, ...]

    def runs(self) -> list[Run]:
        """Each once, the longest first."""
        terms = [term for goal in self.goals for term in goal.terms]
        cells = [cell for table in self.tables for row in table.rows for cell in row.cells]
        return longest_first(run for term in (*terms, *cells) for run in term.runs())


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if ``--check`` finds a goal missed, 2 if there is none to check, 130 after an interrupt."""
    args = _parser().parse_args(arguments)
    plan = _plan(args)
    if not plan.goals and not plan.tables:
        print(f"nothing is called like {args.only!r}; --list shows what there is", file=sys.stderr)
        return 2
    # What the product says of simulated faults is not about this machine.
    logging.disable(logging.ERROR)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if args.check and not args.list and not plan.goals:
        print(
            f"no goal is called like {args.only!r}, only tables are, so there is nothing to check: leave --check out, "
            "or see --list",
            file=sys.stderr,
        )
        return 2
    store = Store(args.results)
    if store.damaged:
        print(f"{args.results}: {store.damaged} damaged lines are skipped", file=sys.stderr)
    runs = plan.runs()
    missing = [run for run in runs if store.get(run) is None]
    if args.list:
        print(_listed(plan, missing))
        return 0
    sweep()
    described = machine.describe()
    for key, value in described.items():
        print(f"{key + ':':<14}{value}")
    print(f"{len(runs)} runs, {len(runs) - len(missing)} of them in {args.results}", flush=True)
    try:
        _measure(missing, store, args.jobs)
    except KeyboardInterrupt:
        print(f"\ninterrupted: the same command goes on from {args.results}", file=sys.stderr)
        return 130
    except pool.Failed as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\n{report.EXPLANATION}")
    for table in plan.tables:
        print(f"\n{report.table(table, store.get)}")
    verdicts = judge(plan.goals, store.get) if args.check or args.json else []
    if args.check:
        print(f"\n{report.verdicts(verdicts)}")
    if args.json:
        result = report.as_json(described, runs, plan.tables, verdicts, store.get)
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.svg:
        args.svg.mkdir(parents=True, exist_ok=True)
        for name, picture in plot.pictures(_effort(args), store.get).items():
            (args.svg / name).write_text(picture)
    return 1 if args.check and not all(verdict.met for verdict in verdicts) else 0


def _effort(args: argparse.Namespace) -> Effort:
    effort = QUICK if args.quick else FULL
    return effort.at_most(args.seeds) if args.seeds else effort


def _plan(args: argparse.Namespace) -> Plan:
    effort, wanted = _effort(args), args.only.lower()
    return Plan(
        tuple(goal for goal in goals(effort) if wanted in goal.text.lower()),
        tuple(table for table in tables(effort) if wanted in table.title.lower()),
    )


def _measure(missing: Sequence[Run], store: Store, jobs: int) -> None:
    """Tell now and then how far it is. What is left is estimated from how long runs took so far."""
    left = total = sum(map(cost, missing))
    began = told = time.monotonic()
    if missing:
        print(f"{len(missing)} to do: {_minutes(total / jobs)} where a run takes what it took its author")
    for number, done in enumerate(pool.all_of(missing, jobs), 1):
        store.add(*done)
        left -= cost(done.run)
        now = time.monotonic()
        if now - told >= _EVERY_S:
            told = now
            rest = (now - began) * left / (total - left)
            print(f"{number} of {len(missing)} done, {_minutes(rest)} left", flush=True)
    if missing:
        print(f"{len(missing)} runs in {_minutes(time.monotonic() - began)}")


def _listed(plan: Plan, missing: Iterable[Run]) -> str:
    lines, seen = [], set[Run]()
    parts = [(goal.text, [run for term in goal.terms for run in term.runs()]) for goal in plan.goals]
    parts += [
        (table.title, [run for row in table.rows for cell in row.cells for run in cell.runs()])
        for table in plan.tables
    ]
    width = max(len(text) for text, _ in parts)
    lines.append(
        "runs: simulations that a line needs; new: those of them that no line above needs; CPU s: what the new ones took "
        "on the machine of docs/benchmark.md"
    )
    lines.append(f"{'':<{width}}  {'runs':>5}  {'new':>5}  {'CPU s':>6}")
    for text, runs in parts:
        new = set(runs) - seen
        seen |= new
        lines.append(f"{text:<{width}}  {len(set(runs)):>5}  {len(new):>5}  {sum(map(cost, new)):>6.0f}")
    ahead = list(missing)
    lines.append(f"{'all':<{width}}  {len(seen):>5}  {'':>5}  {sum(map(cost, seen)):>6.0f}")
    lines.append(f"{'not yet measured':<{width}}  {len(ahead):>5}  {'':>5}  {sum(map(cost, ahead)):>6.0f}")
    return "\n".join(lines)


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.routing",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="print every goal beside its figure; exit status 1 if one is missed",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    parser.add_argument("--svg", type=Path, metavar="DIR", help="also draw pictures into DIR")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="FILE",
        default=RESULTS,
        help="where results are kept (default %(default)s)",
    )
    parser.add_argument(
        "--jobs", type=_positive, default=min(2, os.cpu_count() or 1), help="processes (default %(default)s)"
    )
    parser.add_argument("--seeds", type=_positive, metavar="N", help="at most so many seeds of each run")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="only goals and tables with TEXT in their names"
    )
    parser.add_argument(
        "--quick", action="store_true", help="short runs with one or two seeds, within some minutes"
    )
    parser.add_argument("--list", action="store_true", help="only print what would be run")
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
