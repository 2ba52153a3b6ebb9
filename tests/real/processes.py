"""Processes that the test starts, each in a session of its own, and stops again whatever happens."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.real.environment import SCRATCH
from tests.waiting import wait_until

LOGS = SCRATCH / "logs"
_TRACKER = b"multiprocessing.resource_tracker"
_GONE_S = 30.0
_started: list[Session] = []


class Session:
    """A command and everything that it starts: they share a session, whose id is the command's pid."""

    def __init__(self, name: str, command: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
        self.name = name
        self.log = LOGS / f"{name}.log"
        LOGS.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                cwd=SCRATCH,
                start_new_session=True,
            )
        self.pid = self._process.pid
        _started.append(self)

    def exit_status(self) -> int | None:
        """The command's exit status; None while it runs."""
        return self._process.poll()

    def stop(self, grace_s: float = 20.0) -> int:
        """Ask the command to end (SIGTERM), kill what has not ended by then; its exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_s)
        self.kill()
        self.bury()
        return self._process.returncode

    def kill(self) -> None:
        """SIGKILL for every process of the session but Python's resource trackers; returns when they are dead."""

        def dead() -> bool:
            left = [pid for pid in self._members() if not _is_tracker(pid)]
            _signal(left)
            return not left

        wait_until(dead, _GONE_S, f"the end of all processes of {self.name}")
        self._process.wait(_GONE_S)

    def bury(self) -> None:
        """Wait until the resource trackers of a killed session are gone too.

        They end by themselves once the others are dead, and then remove the shared memory and the semaphores that a
        killed engine leaves in /dev/shm; hence they are not killed with it.
        """
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._members(), 10.0)
        _signal(self._members())
        wait_until(lambda: not self._members(), _GONE_S, f"the end of all processes of {self.name}")
        if self in _started:
            _started.remove(self)

    def tail(self, lines: int = 30) -> str:
        """The last lines of its log, for messages."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _members(self) -> list[int]:
        return [pid for pid in _pids() if _session_of_live(pid) == self.pid]


def _signal(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _session_of_live(pid: int) -> int | None:
    """The session of a process; None if there is no such process or it is a zombie, which holds nothing."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    state, _parent, _group, session = stat.rpartition(b")")[2].split()[:4]
    return None if state == b"Z" else int(session)


def _is_tracker(pid: int) -> bool:
    try:
        return _TRACKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@atexit.register
def _kill_all() -> None:
    # For a second Ctrl-C, which breaks off the fixtures' own tidying up.
    for session in tuple(_started):
        session.kill()
        session.bury()


def clear_logs() -> None:
    """Remove the logs of an earlier run."""
    for log in LOGS.glob("*.log"):
        log.unlink()


def reserve_port() -> socket.socket:
    """A loopback port held by a socket that does not listen.

    A server that sets SO_REUSEPORT, as vLLM does, can bind it, be killed and bind it again, and nobody else is handed
    the port in between. Connections are refused while no server listens. Close the socket to give the port back.
    """
    held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind(("127.0.0.1", 0))
    return held


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
