"""Storms as programs, and as programs that a test runs."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol


class StormError(AssertionError):
    """The table did not say what is true."""


class Runnable(Protocol):
    """A storm on a table of its own."""

    def run(self, rounds: int) -> None:
        """``StormError`` at the first wrong figure."""

    def close(self) -> None:
        """End everything that is left."""

    def summary(self) -> str:
        """What was done, in one line."""


def run_on_command_line(storm_class: Callable[[str, int], Runnable], about: str | None, rounds: int) -> int:
    """A storm as a program; ``rounds`` if the command line says no other number."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--table", default=f"/loadboard-storm-{os.getpid()}")
    args = parser.parse_args()
    storm = storm_class(args.table, args.seed)
    started = time.monotonic()
    try:
        storm.run(args.rounds)
    except StormError as error:
        print(error)
        return 1
    finally:
        storm.close()
        for left in Path("/dev/shm").glob(f"{args.table[1:]}*"):
            left.unlink()
    print(f"{storm.summary()}; {time.monotonic() - started:.0f} s; no count wrong, nothing left behind")
    return 0


def run_apart(module: str, table: str, *options: str) -> subprocess.CompletedProcess[str]:
    """``tests.stress.<module>`` in a process of its own, for tests that may have threads."""
    return subprocess.run(
        [sys.executable, "-m", f"tests.stress.{module}", "--table", table, *options],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
