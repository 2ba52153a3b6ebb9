"""Processes that a measurement starts beside itself; they never outlive it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_PDEATHSIG = 1
_START_S = 120.0


@contextmanager
def child(
    module: str, arguments: Sequence[str], *, cores: Sequence[int], ready: Callable[[], bool]
) -> Iterator[subprocess.Popen[bytes]]:
    """``python -m module arguments`` on ``cores`` (empty: anywhere), from ``ready`` on until it is killed.

    ``RuntimeError`` if it ends before it is ready, or takes too long.
    """
    process = subprocess.Popen([sys.executable, "-m", module, *arguments], cwd=_ROOT)
    try:
        if cores:
            os.sched_setaffinity(process.pid, cores)
        deadline = time.monotonic() + _START_S
        while not ready():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{module} {' '.join(arguments)} did not start")
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.wait()


def die_with_parent() -> None:
    """For the child: SIGKILL at the parent's end reaches it even where it is stopped. ^C is for the parent."""
    signal_at_parents_end(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def signal_at_parents_end(number: signal.Signals) -> None:
    """For the child: it gets that signal as soon as its parent is gone, however that ended.

    A parent that is gone already sends nothing any more; see :func:`os.getppid`.
    """
    ctypes.CDLL(None).prctl(_PDEATHSIG, int(number))
