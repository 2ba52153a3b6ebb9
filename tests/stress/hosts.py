"""Programs as hosts of a strategy may be: each runs in a process of its own and prints what it really did.

``python -m tests.stress.hosts NAME TABLE [ARGUMENTS]``. The last line of the output is a JSON object. Programs
use nothing but the public interface, and the table as every reader sees it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from proxy_adapter import Strategy, build_instance_strategy
from score_table.pick import CORE_VARIABLE, NATIVE_MISSING
from score_table.reader import TableReader

#: The implementations to run each program on: the fastest that is there, and the one that is plain Python.
CORES = ("plain",) if NATIVE_MISSING else ("native", "plain")
INSTANCES = 4
#: What ``server_app`` streams.
CHUNK, CHUNKS = b"chunk", 5
_ROOT = Path(__file__).parents[2]
#: No program outlives this, whatever becomes of its test.
_LIFETIME_S = 120

Program = Callable[..., dict[str, Any]]


def main(programs: dict[str, Program]) -> None:
    """Run the program that the command line names."""
    name, table, *arguments = sys.argv[1:]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_LIFETIME_S)
    result = programs[name](table, *arguments)
    print(json.dumps(result), flush=True)


def command(module: str, name: str, table: str, *arguments: str) -> list[str]:
    """The command line of a program of ``tests.stress.<module>``."""
    return [sys.executable, "-m", f"tests.stress.{module}", name, table, *arguments]


@contextlib.contextmanager
def running(argv: list[str], core: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A program with pipes; it and all that it started are killed at the end."""
    process = subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=_ROOT,
        env={**os.environ, CORE_VARIABLE: core, "PYTHONFAULTHANDLER": "1", **options.pop("env", {})},
        start_new_session=True,
        **options,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


def run(module: str, name: str, table: str, core: str, *arguments: str, quiet: bool = True) -> dict[str, Any]:
    """Run a program to its end; what it printed. ``quiet``: it must have written nothing to stderr."""
    with running(command(module, name, table, *arguments), core) as process:
        out, err = process.communicate(timeout=_LIFETIME_S)
    assert process.returncode == 0, f"{name} ended with {process.returncode}:\n{out}\n{err}"
    assert not (quiet and err), f"{name} wrote:\n{err}"
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def until(condition: Callable[[], object], what: str, timeout: float = 20.0) -> None:
    """Poll, in a program."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s in vain for {what}")
        time.sleep(0.002)


def open_in(table: str) -> int:
    """What the table says is outstanding."""
    with TableReader.open(table) as reader:
        return sum(instance.outstanding for instance in reader.snapshot().instances)


def attached(table: str) -> Strategy:
    """A strategy that has its lane. Until then other threads and handlers are not made to wait, and go uncounted."""
    strategy = build_instance_strategy("least_load", table=table)
    until(lambda: strategy.status()["lane"] is not None, "a lane")
    return strategy


def until_read(table: str) -> None:
    """Until the monitor has read the lanes twice, so that it knows all that this process counted until now."""
    with TableReader.open(table) as reader:
        ticks = reader.snapshot().ticks
        until(lambda: reader.snapshot().ticks >= ticks + 2, "two ticks of the monitor")


class Fork:
    """A forked child that works, waits to be let go and ends in one of ``ENDS``."""

    ENDS = ("exit", "_exit", "raise", "kill")

    def __init__(self, work: Callable[[], None], end: str) -> None:
        done_read, self._done = os.pipe()
        go_read, self._go = os.pipe()
        self.end = end
        self.pid = os.fork()
        if self.pid:
            os.close(self._done)
            os.close(go_read)
            self._done_read = done_read
            return
        signal.alarm(_LIFETIME_S)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)  # "raise" prints a trace
        for fd in (done_read, self._go):
            os.close(fd)
        own_pid = os.getpid()
        try:
            work()
        except BaseException as error:
            if os.getpid() != own_pid:
                raise  # a child that this one forked ends
            os.write(self._done, repr(error).encode()[:500])
            os._exit(99)
        os.write(self._done, b"done")
        os.read(go_read, 1)
        if end == "exit":
            sys.exit(0)
        if end == "raise":
            raise RuntimeError("the end of a child")
        if end == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(0)

    def wait_until_done(self) -> None:
        """Until it has worked."""
        said = os.read(self._done_read, 500)
        assert said == b"done", f"a child that was to end by {self.end} failed: {said.decode()}"
        os.close(self._done_read)

    def let_go(self) -> None:
        """Let it end, and wait for that."""
        os.close(self._go)
        status = wait_for(self.pid)
        expected = {"exit": 0, "_exit": 0, "raise": 1, "kill": -signal.SIGKILL}[self.end]
        assert status == expected, f"a child that was to end by {self.end} ended with {status}"


def wait_for(pid: int, timeout: float = 20.0) -> int:
    """The exit code of a child, which has to end within ``timeout`` seconds."""
    ended: list[int] = []

    def has_ended() -> bool:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            ended.append(os.waitstatus_to_exitcode(status))
        return bool(found)

    try:
        until(has_ended, f"the end of child {pid}", timeout)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise
    return ended[0]
