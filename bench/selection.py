"""What a pick costs: every form of it, its twins, and what proxies do without a shared table."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench import machine, report
from bench.cases import Grid
from bench.goals import GOALS, judge
from bench.harness import measure, measure_cold
from bench.names import SIZES
from score_table.pick import CORES, NATIVE_MISSING


class Effort(NamedTuple):
    """How much is measured."""

    rounds: int
    slice_ms: float
    cold: int  #: calls per case


FULL = Effort(rounds=31, slice_ms=15.0, cold=60)
QUICK = Effort(rounds=9, slice_ms=4.0, cold=8)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if ``--check`` finds a goal missed."""
    args = _parser().parse_args(arguments)
    # A termination ends this as ^C does: with the tables removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    usual = QUICK if args.quick else FULL
    rounds, slice_ms, samples = args.rounds or usual.rounds, args.slice_ms or usual.slice_ms, usual.cold
    described = machine.describe()
    core, others = machine.pin()
    described["measured on"] = f"core {core}, other processes on {others}" if others else "any core"
    described["effort"] = f"{rounds} rounds, {slice_ms:g} ms a case in each"
    for key, value in described.items():
        print(f"{key + ':':<14}{value}")
    if "native" not in CORES:
        print(
            f"\nThe native pick is missing: {NATIVE_MISSING}.\nIts cases are left out and its goals missed."
        )
    print(flush=True)
    with Grid(args.sizes, others) as grid:
        figures = measure(grid.cases, rounds=rounds, slice_s=slice_ms / 1e3)
        cold = measure_cold(grid.cold(), samples=samples, evict=machine.evictor())
        rates = grid.rates()
    verdicts = judge(GOALS, figures, rates)
    print(report.table(figures, cold))
    print(f"\n{report.disturbances(figures, rates)}\n")
    if args.check:
        print(report.verdicts(verdicts))
    if args.json:
        result = report.as_json(described, figures, cold, rates, verdicts)
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if args.check and not all(verdict.met for verdict in verdicts) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.selection", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    parser.add_argument(
        "--check",
        action="store_true",
        help="print every goal beside its figure; exit status 1 if one is missed",
    )
    parser.add_argument("--quick", action="store_true", help="rougher figures within 40 s")
    parser.add_argument(
        "--sizes", type=_sizes, default=SIZES, metavar="N,...", help="numbers of instances (default all)"
    )
    parser.add_argument("--rounds", type=int, help=f"default {FULL.rounds}, quick {QUICK.rounds}")
    parser.add_argument(
        "--slice-ms",
        type=float,
        help=f"time for each case in a round (default {FULL.slice_ms:g}, quick {QUICK.slice_ms:g})",
    )
    return parser


def _sizes(text: str) -> tuple[int, ...]:
    sizes = tuple(int(word) for word in text.split(","))
    if not set(sizes) <= set(SIZES):
        raise argparse.ArgumentTypeError(f"choose from {', '.join(map(str, SIZES))}")
    return sizes


if __name__ == "__main__":
    sys.exit(main())
