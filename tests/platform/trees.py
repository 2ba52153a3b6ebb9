"""Copies of the source tree and commands run on them: nothing is ever built in the tree itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: What the checks keep between runs: unpacked packages, interpreters built from source.
CACHE = ROOT / "build" / "platform"

_LEFT_OUT = shutil.ignore_patterns(
    ".*", "build", "dist", "*.egg-info", "__pycache__", "*.so", "*.pyc", "node_modules"
)


class NotPossible(Exception):
    """This machine lacks something; the message says what, and what to do."""


class Failed(Exception):
    """A check that did not hold, or a command that failed; the message has its output."""


def copy_tree(to: Path) -> Path:
    """A fresh copy of the sources in ``to``, without anything built, cached or hidden."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(ROOT, to, ignore=_LEFT_OUT, symlinks=True)
    return to


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float = 900.0,
    fails: bool = False,
) -> str:
    """Standard output and errors of ``command``. Raises :class:`Failed` unless it ends well, or, with
    ``fails``, unless it ends badly.

    ``env`` changes the environment; ``None`` takes a variable out of it.
    """
    environ = {**os.environ, **(env or {})}
    arguments = [str(part) for part in command]
    try:
        done = subprocess.run(
            arguments,
            cwd=cwd,
            env={name: value for name, value in environ.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"{' '.join(arguments)}: {error}") from error
    if (done.returncode != 0) != fails:
        raise Failed(f"{' '.join(arguments)}: exit status {done.returncode}\n{done.stdout[-6000:]}")
    return done.stdout


def say(text: str) -> None:
    """A line of progress, at once."""
    print(text, flush=True)


def finish(name: str, error: Exception) -> int:
    """The exit status after ``error`` has been told: 2 where the machine cannot, 1 where a check failed."""
    sys.stdout.flush()
    sys.stderr.write(f"{name}: {error}\n")
    return 2 if isinstance(error, NotPossible) else 1
