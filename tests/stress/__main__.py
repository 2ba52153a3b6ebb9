"""``make stress``: every storm and every hunt, one after another, each with a bound and one line about it.

``--seed`` makes the choices repeatable, ``--minutes`` is the time for all of them together: what does not fit is
cut down in proportion, and what takes twice its share is ended as a failure.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """One of the programs. ``full`` is its size, ``minutes`` what that takes on two cores."""

    name: str
    about: str
    option: str
    full: int
    minutes: float
    seeded: bool = True


PARTS = (
    Part("agreement", "native, numpy and plain Python pick alike", "--cases", 1_000_000, 15),
    Part("torn", "words read while they are written", "--words", 10**9, 10),
    Part("mixed", "records read while they are written", "--records", 10**8, 15),
    Part("adds", "threads and processes count beside each other", "--adds", 10**8, 10, seeded=False),
    Part("storm", "workers and monitors killed", "--rounds", 10_000, 40),
    Part("restarts", "monitors restarted, tables replaced", "--rounds", 300, 6),
    Part("forks", "trees of forks", "--rounds", 100, 6),
    Part("slots", "slots reused", "--reuses", 100_000, 12),
)
_HERE = Path(__file__).parent


def _run(part: Part, seed: int, share: float) -> bool:
    # Less than a fiftieth shows nothing.
    size = str(max(part.full // 50, int(part.full * share)))
    argv = [sys.executable, "-m", f"tests.stress.{part.name}", part.option, size]
    argv += ["--seed", str(seed)] if part.seeded else []
    started = time.monotonic()
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            argv, cwd=_HERE.parents[1], stdout=said, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            status: int | None = process.wait(timeout=2 * 60 * part.minutes * max(share, 0.2))
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        said.seek(0)
        lines = said.read().splitlines() or [""]
    how = {0: "passed", None: "took too long"}.get(status, f"FAILED with status {status}")
    if status != 0:
        print("\n".join(lines))
    print(f"{part.name}: {how}, {time.monotonic() - started:.0f} s ({part.about}). {lines[-1]}", flush=True)
    return status == 0


def main() -> int:
    """Exit status 1 where a part failed."""
    full = sum(part.minutes for part in PARTS)
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(2**31))
    parser.add_argument("--minutes", type=float, default=full)
    parser.add_argument("--only", nargs="*", choices=[part.name for part in PARTS], metavar="PART")
    args = parser.parse_args()
    parts = [part for part in PARTS if not args.only or part.name in args.only]
    share = min(1.0, args.minutes / sum(part.minutes for part in parts))
    print(f"seed {args.seed}", flush=True)
    passed = [_run(part, args.seed, share) for part in parts]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
