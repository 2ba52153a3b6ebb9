"""What the hunts for torn words and mixed records share: the storing process, and the tally of one reader."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import mmap
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

_PR_SET_PDEATHSIG = 1
#: A look that met fewer stores than this proves nothing, and goes on; but not longer than this.
_LEAST_CHANGES = 10
_PATIENCE_S = 120.0
#: The reader is interrupted this often, so that its own copies stand still halfway too.
_INTERRUPTED_EVERY_S = 0.001
#: At least this share of all reads has to succeed.
_LEAST_WHOLE = 0.1


@dataclass
class Tally:
    """What one reader found. ``refused``: reads that said themselves that they met a store."""

    what: str
    reads: int = 0
    bad: int = 0
    refused: int = 0
    changes: int = 0  #: looks that differed from the one before: stores were really met
    began: float = field(default_factory=time.monotonic)
    examples: list[str] = field(default_factory=list)

    def goes_on(self, target: int) -> bool:
        """Whether there is more to read."""
        if self.reads >= target and self.changes >= _LEAST_CHANGES:
            return False
        return self.reads < target or time.monotonic() - self.began < _PATIENCE_S

    def wrong(self, count: int, example: object) -> None:
        """Count what is torn or mixed, and keep some of it."""
        self.bad += count
        if count and len(self.examples) < 3:
            self.examples.append(repr(example))

    def clean(self) -> bool:
        """Nothing bad, in reads that mostly succeeded while there were stores."""
        whole = self.reads >= _LEAST_WHOLE * (self.reads + self.refused)
        return self.bad == 0 and self.changes >= _LEAST_CHANGES and whole

    def say(self) -> None:
        """One line of the report."""
        seconds = time.monotonic() - self.began
        share = self.refused / max(1, self.reads + self.refused)
        print(
            f"{self.what:<50} {self.reads:>14,} read {self.bad:>3} bad {share:>7.2%} refused "
            f"{self.changes:>11,} changes {self.reads / max(1e-9, seconds) / 1e6:>8.2f} M/s",
            *self.examples,
            flush=True,
        )


class Against:
    """A process that does nothing but ``store`` meanwhile, on a core of its own where there is one.

    ``store`` runs for good and adds what it stored to the word it is given. To be used by a process that has
    no threads.
    """

    def __init__(self, store: Callable[[memoryview], None]) -> None:
        self._store = store
        self._said = memoryview(mmap.mmap(-1, 8)).cast("Q")
        self._pid = 0
        self._cores = sorted(os.sched_getaffinity(0))
        self._began = 0.0

    def __enter__(self) -> Against:
        self._pid = os.fork()
        if self._pid == 0:
            try:
                # Should the reader be killed: nobody else would end this.
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                os.sched_setaffinity(0, self._cores[-1:])
                self._store(self._said)
            finally:
                os._exit(1)
        self._began = time.monotonic()
        os.sched_setaffinity(0, self._cores[:1])
        signal.signal(signal.SIGALRM, lambda *_: None)
        signal.setitimer(signal.ITIMER_REAL, _INTERRUPTED_EVERY_S, _INTERRUPTED_EVERY_S)
        self._let_it_store()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        os.sched_setaffinity(0, self._cores)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)
        rate = self._said[0] / (time.monotonic() - self._began)
        print(f"  stored by {self._store.__name__} meanwhile: {rate:,.0f}/s", flush=True)

    def stopped(self, rng: random.Random) -> Iterator[None]:
        """For good: the process stopped somewhere, anywhere. What it left there a killed one would leave too."""
        while True:
            os.kill(self._pid, signal.SIGSTOP)
            os.waitpid(self._pid, os.WUNTRACED)
            yield
            os.kill(self._pid, signal.SIGCONT)
            self._let_it_store()
            end = time.perf_counter() + rng.random() * 0.0002
            while time.perf_counter() < end:
                pass

    def _let_it_store(self) -> None:
        before, end = self._said[0], time.monotonic() + _PATIENCE_S
        while self._said[0] == before:
            if time.monotonic() > end or os.waitpid(self._pid, os.WNOHANG) != (0, 0):
                raise RuntimeError(f"{self._store.__name__} has ended, or stores nothing")
            time.sleep(0.0002)


def options(description: str | None, **defaults: float) -> argparse.Namespace:
    """``--seed`` and ``--table``, and a number for each of ``defaults``."""
    parser = argparse.ArgumentParser(description=description)
    for name, default in defaults.items():
        parser.add_argument(f"--{name}", type=float, default=default)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--table", default=f"/loadboard-hunt-{os.getpid()}")
    return parser.parse_args()


def outcome(found: list[Tally], seed: int) -> int:
    """Print the sum and return the exit status."""
    unclean = [tally.what for tally in found if not tally.clean()]
    reads, bad = sum(tally.reads for tally in found), sum(tally.bad for tally in found)
    print(f"seed {seed}: {reads:,} read, {bad} torn or mixed; not clean: {unclean or 'none'}")
    return 1 if unclean else 0


def run_apart(module: str, table: str, seed: int, **targets: int) -> subprocess.CompletedProcess[str]:
    """A hunt in a process of its own, for tests that have threads."""
    values = {"table": table, "seed": seed, **targets}
    arguments = [text for name, value in values.items() for text in (f"--{name}", str(value))]
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
