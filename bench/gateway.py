"""The demo proxy on real time: beside nginx over engines with slots, and its strategies over the demo's engines."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers import nginx, report
from bench.peers.experiments import ALL, EXPERIMENTS, FULL, QUICK, perform, plan_of, seconds_of
from bench.peers.goals import GOALS, judge
from bench.peers.outcome import Outcome
from bench.peers.results import OtherSettingsError, ResultsFile
from bench.peers.stage import NGINX, NGINX_ZONE

_ATTEMPTS = 2  #: at a run that does not count
_REPETITIONS, _REPETITIONS_QUICK = 5, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status 1 if ``--check`` finds a goal missed, 2 where it cannot be run as asked, 130 after ^C."""
    args = _parser().parse_args(arguments)
    # A termination ends this as ^C does: with all processes ended and the tables removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    times = QUICK if args.quick else FULL
    repetitions = args.repetitions or (_REPETITIONS_QUICK if args.quick else _REPETITIONS)
    plan = plan_of(args.only, repetitions, beside=args.beside, without_nginx=args.without_nginx)
    needed = not args.without_nginx and any(run.gateway in (NGINX, NGINX_ZONE, ALL) for run in plan)
    if needed and nginx.find() is None:
        print(nginx.MISSING, file=sys.stderr)
        return 2
    settings = {"seed": args.seed, "times": times._asdict(), "without_nginx": args.without_nginx}
    try:
        results = ResultsFile(args.resume, settings)
    except OtherSettingsError as error:
        print(error, file=sys.stderr)
        return 2
    left = [run for run in plan if run not in results.counted]
    described = _machine()
    for key, value in described.items():
        print(f"{key + ':':<14}{value}")
    ahead = sum(seconds_of(run, times) for run in left)
    print(f"{len(left)} of {len(plan)} runs to make, about {_minutes(ahead)}", flush=True)
    expected = 0.0
    began = time.monotonic()
    try:
        for run in left:
            for _ in range(_ATTEMPTS):
                found = perform(run, times, args.seed, without_nginx=args.without_nginx)
                load = {"load_average": os.getloadavg()[0]}
                results.add(run, Outcome({**found.figures, **load}, found.problems))
                print(report.run_line(run, found.figures, found.problems), flush=True)
                if not found.problems:
                    break
            expected += seconds_of(run, times)
            if expected < ahead:
                # By what runs have taken here so far, those included that did not count.
                rest = (ahead - expected) * (time.monotonic() - began) / expected
                print(f"about {_minutes(rest)} left", flush=True)
    except KeyboardInterrupt:
        how = f"the same with --resume {args.resume} goes on here" if args.resume else "nothing was kept"
        print(f"broken off; {how}", file=sys.stderr)
        return 130
    return _finish(args, settings, results, repetitions, described)


def _finish(
    args: argparse.Namespace,
    settings: dict[str, Any],
    results: ResultsFile,
    repetitions: int,
    described: dict[str, str],
) -> int:
    verdicts = judge([goal for goal in GOALS if goal.experiment in args.only], results.counted, repetitions)
    print(f"\n{report.tables(results.counted, repetitions)}\n")
    if args.check:
        print(report.verdicts(verdicts))
    if args.json:
        whole = report.as_json(described, settings, results.counted, results.rejected, verdicts)
        args.json.write_text(json.dumps(whole, indent=1) + "\n")
    return 1 if args.check and not all(verdict.met for verdict in verdicts) else 0


def _machine() -> dict[str, str]:
    """What it is and how busy, before anything of this is. Asked in another process, since it loads numpy, whose
    threads must not be there while other processes are started."""
    asked = "import json; from bench import machine; print(json.dumps(machine.describe()))"
    said = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True)
    described: dict[str, str] = json.loads(said.stdout)
    return described


def _minutes(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gateway", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures to FILE")
    parser.add_argument(
        "--check",
        action="store_true",
        help="print every goal beside its figure; exit status 1 if one is missed",
    )
    parser.add_argument(
        "--quick", action="store_true", help="short runs, ten minutes in all, to see that all of it works"
    )
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="FILE",
        help="keep every run in FILE as it is made, and leave out those that stand there",
    )
    parser.add_argument(
        "--only",
        type=_experiments,
        default=EXPERIMENTS,
        metavar="NAME,...",
        help=f"from {', '.join(EXPERIMENTS)} (default all)",
    )
    parser.add_argument("--repetitions", type=int, help=f"default {_REPETITIONS}, quick {_REPETITIONS_QUICK}")
    parser.add_argument("--seed", default="1", help="of arrivals, services and prompts (default %(default)s)")
    parser.add_argument(
        "--beside",
        action="store_true",
        help="also what no goal asks for: nginx with counts shared by its workers, and nginx after the burst",
    )
    parser.add_argument("--without-nginx", action="store_true", help="measure the rest where there is none")
    return parser


def _experiments(text: str) -> tuple[str, ...]:
    names = text.split(",")
    unknown = [name for name in names if name not in EXPERIMENTS]
    if unknown:
        named = ", ".join(map(repr, unknown))
        raise argparse.ArgumentTypeError(
            f"there is no experiment {named}: choose from {', '.join(EXPERIMENTS)}"
        )
    return tuple(name for name in EXPERIMENTS if name in names)


if __name__ == "__main__":
    sys.exit(main())
