"""Child processes that end together: started apart from the terminal, watched, and ended with their children."""

from __future__ import annotations

import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from score_table.location import Location

_LIBC = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_TAIL_LINES = 12
_POLL_S = 0.02


@dataclass(frozen=True)
class Child:
    """One child and what it wrote."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path

    def exited(self) -> bool:
        """Whether it ended. It stays unreaped, so that its process group's id cannot become another's."""
        if self.popen.returncode is not None:
            return True
        options = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.popen.pid, options) is not None

    def tail(self) -> str:
        """The last lines of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(f"  {line}" for line in lines) or "  (it wrote nothing)"


class Children:
    """Starts Python modules as children with ``directory`` as their working directory and place of their logs.

    Only an own, otherwise empty directory makes ``python -m`` safe: it puts the working directory before
    everything else on the module path. A child gets SIGTERM when this process dies, however it dies. The
    process must have one thread only.
    """

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory = directory
        self._environment = dict(environment)
        self._children: list[Child] = []

    def start(self, name: str, module: str, arguments: Sequence[str]) -> Child:
        """Start ``python -m module arguments`` in a session and process group of its own."""
        return self.start_program(name, [sys.executable, "-m", module, *arguments])

    def start_program(self, name: str, command: Sequence[str]) -> Child:
        """The same for any program."""
        log = self._directory / f"{name}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                env=self._environment,
                start_new_session=True,
                # Allowed because this process has one thread.
                preexec_fn=functools.partial(_end_with, os.getpid()),
            )
        child = Child(name, popen, log)
        self._children.append(child)
        return child

    def first_exited(self) -> Child | None:
        """A child that ended, if any did."""
        return next((child for child in self._children if child.exited()), None)

    def stop(self, grace_s: float) -> None:
        """End them, the last one started first; what has not ended by itself after ``grace_s`` is killed."""
        deadline = time.monotonic() + grace_s
        for child in reversed(self._children):
            if not child.exited():
                child.popen.send_signal(signal.SIGTERM)
        for child in reversed(self._children):
            while not child.exited() and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            # Also where it ended in good order: a worker of its own may have outlived it.
            _kill_group(child.popen.pid)
            child.popen.wait()
        self._children.clear()


def _kill_group(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _end_with(parent: int) -> None:
    """In a child before its program starts: have the kernel send SIGTERM when the parent dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def remove_table(table: str) -> None:
    """Remove a table with all that belongs to it; only for one whose users are all gone."""
    location = Location.parse(table)
    for path in (location.path, location.lock_path, *location.temporaries()):
        path.unlink(missing_ok=True)
