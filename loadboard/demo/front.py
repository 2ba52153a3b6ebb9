"""The demo's end at the terminal: starts the keeper, shows the table, ends both."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.live import Live

from loadboard.demo.hints import command_name
from loadboard.demo.processes import remove_table
from loadboard.demo.view import About, Frame, PickRates
from loadboard.dump import as_json
from score_table.errors import TableError
from score_table.reader import TableReader

_REFRESH_S = 0.5
_PLAIN_EVERY_S = 5.0
_ONCE_DEADLINE_S = 60.0
_KEEPER_END_S = 20.0
_INTERRUPTED = 130
# A file has no size: room for all that a frame can show.
_FILE_WIDTH = 120
_FILE_HEIGHT = 200
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedError(Exception):
    """The user asked for the end."""


class FailedError(Exception):
    """The demo cannot go on; the message is for the user."""


class _Console(Console):
    """Leaves it to the command that the reader of a pipe has gone."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Keeper:
    """The keeper process as seen from here; leaving the block ends it and waits until everything is gone."""

    def __init__(self, port: int | None, asked: socket.socket) -> None:
        self.table = f"/loadboard-demo-{os.getpid()}-{secrets.token_hex(3)}"
        self._asked = asked
        self._buffer = b""
        self._directory = Path(tempfile.mkdtemp(prefix="loadboard-demo-"))
        self._log = self._directory / "keeper.log"
        arguments = [f"--table={self.table}", f"--directory={self._directory}"]
        if port is not None:
            arguments.append(f"--port={port}")
        try:
            with self._log.open("wb") as log:
                self._popen = subprocess.Popen(
                    # A directory of its own: `-m` puts the working directory on the module path.
                    [sys.executable, "-m", "loadboard.demo.keeper", *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=self._directory,
                    start_new_session=True,
                )
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def __enter__(self) -> _Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.close()
        status = self._end()
        self._popen.stdout.close()
        if status != 0:
            # Perhaps killed: its children end with it, what it would have removed is left to us.
            remove_table(self.table)
        if status < 0:
            shutil.rmtree(self._directory, ignore_errors=True)

    def listen(self, timeout_s: float | None) -> dict[str, Any] | None:
        """What the keeper says next; ``None`` after ``timeout_s``, if that is a time.

        Raises ``EndedError`` on a signal, ``FailedError`` when the keeper says so or is gone.
        """
        assert self._popen.stdout is not None
        output, asked = self._popen.stdout.fileno(), self._asked.fileno()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while b"\n" not in self._buffer:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            readable = select.select([asked, output], [], [], left)[0]
            if asked in readable:
                raise EndedError
            if not readable:
                return None
            came = os.read(output, 65536)
            if not came:
                raise FailedError(self._last_words())
            self._buffer += came
        line, _, self._buffer = self._buffer.partition(b"\n")
        said: dict[str, Any] = json.loads(line)
        if "failed" in said:
            raise FailedError(str(said["failed"]))
        return said

    def _end(self) -> int:
        """Its exit status; negative if it was killed, which it is where it does not end."""
        try:
            return self._popen.wait(_KEEPER_END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            return self._popen.wait()

    def _last_words(self) -> str:
        """Why it is gone although it did not say so."""
        status = self._end()
        if status < 0:
            return f"its keeper process was killed (signal {-status})"
        if status == 0:
            return "its keeper process was told to end by somebody else"
        lines = self._log.read_text(errors="replace").splitlines() or ["it wrote nothing"]
        return f"its keeper process failed: {lines[-1]}\nAll logs: {self._directory}"


def main(*, once: bool, seconds: float | None, port: int | None) -> int:
    """Run the demo: 0 when it ended as asked, 1 when something failed (said on standard error).

    130 where the one frame that was asked for could not be shown before a signal came.
    """
    console = _Console()
    if not console.is_terminal:
        console.width = max(console.width, _FILE_WIDTH)
        console.height = _FILE_HEIGHT
    with _signals() as asked:
        try:
            with _Keeper(port, asked) as keeper:
                _show(keeper, console, once=once, seconds=seconds)
        except EndedError:
            return _INTERRUPTED if once else 0
        except FailedError as error:
            with contextlib.suppress(OSError):
                print(f"loadboard demo: {error}", file=sys.stderr)
            return 1
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # The terminal is gone, which ends the demo like SIGHUP. Python flushes once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
    return 0


def _show(keeper: _Keeper, console: Console, *, once: bool, seconds: float | None) -> None:
    print("Starting four simulated engines, monitor, proxy and load; Ctrl-C ends it all", file=sys.stderr)
    said = keeper.listen(None)
    assert said is not None
    ready = said["ready"]
    about = About(proxy_url=ready["proxy"], command=command_name(), notes=ready["notes"])
    try:
        with TableReader.open(keeper.table) as reader:
            picture = _Picture(reader, about)
            if once:
                console.print(_first_complete(keeper, picture))
            else:
                _live(keeper, picture, console, float("inf") if seconds is None else seconds)
    except TableError as error:
        raise FailedError(str(error)) from error


class _Picture:
    """Frames of one table, one after the other."""

    def __init__(self, reader: TableReader, about: About) -> None:
        self._reader = reader
        self._about = about
        self._rates = PickRates()
        self.complete = False  #: every instance is picked, and its sample says that it finished something

    def take(self) -> Frame:
        table = as_json(self._reader.snapshot())
        instances = table["instances"]
        rates = self._rates.update(time.monotonic(), instances)
        self.complete = bool(instances) and all(
            instance["inflight"] is not None and instance["qps_1m"] and rates[instance["id"]]
            for instance in instances
        )
        return Frame(table, rates, self._about)


def _first_complete(keeper: _Keeper, picture: _Picture) -> Frame:
    deadline = time.monotonic() + _ONCE_DEADLINE_S
    while True:
        shown = picture.take()
        if picture.complete:
            return shown
        if time.monotonic() > deadline:
            raise FailedError(f"not every instance had samples and traffic within {_ONCE_DEADLINE_S:.0f} s")
        keeper.listen(_REFRESH_S)


def _live(keeper: _Keeper, picture: _Picture, console: Console, seconds: float) -> None:
    end = time.monotonic() + seconds
    if not console.is_terminal or console.is_dumb_terminal:
        while (left := end - time.monotonic()) > 0:
            console.print(picture.take())
            keeper.listen(min(_PLAIN_EVERY_S, left))
        return
    with Live(picture.take(), console=console, auto_refresh=False, screen=False) as live:
        while (left := end - time.monotonic()) > 0:
            keeper.listen(min(_REFRESH_S, left))
            live.update(picture.take(), refresh=True)


@contextlib.contextmanager
def _signals() -> Iterator[socket.socket]:
    """A socket that becomes readable on the first SIGINT, SIGTERM or SIGHUP; they end nothing by themselves."""

    def noted(signum: int, stack: FrameType | None) -> None:
        """Python writes to the wake-up socket."""

    readable, writable = socket.socketpair()
    with readable, writable:
        writable.setblocking(False)
        # What the caller ignores (nohup, a job in the background) stays ignored.
        heard = [signum for signum in _ENDING if signal.getsignal(signum) != signal.SIG_IGN]
        before = {signum: signal.signal(signum, noted) for signum in heard}
        wakeup = signal.set_wakeup_fd(writable.fileno(), warn_on_full_buffer=False)
        try:
            yield readable
        finally:
            signal.set_wakeup_fd(wakeup)
            for signum, handler in before.items():
                signal.signal(signum, handler)
