"""The whole demo as a user starts it: what it shows, and that nothing of it stays behind, however it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

pytest.importorskip("rich")
pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

COMMAND = str(Path(sys.executable).with_name("loadboard"))
START_S = 90.0  # all of it on a busy machine
END_S = 30.0
ENGINES = ("engine-1", "engine-2", "engine-3", "engine-4")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A working directory with packages of the same names, which nobody must import; TMPDIR is beside it."""
    for name in ("loadboard", "monitor", "score_table", "proxy_adapter", "httpx"):
        package = tmp_path / "work" / name
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("raise SystemExit('a stranger was imported')\n")
    (tmp_path / "tmp").mkdir()
    yield tmp_path
    for pid in processes_of(tmp_path):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def environment(home: Path) -> dict[str, str]:
    # A user's own settings are not the demo's.
    own = {
        "LOADBOARD_TABLE": "not a table",
        "LOADBOARD_SCORE": "none",
        "PROXY_INSTANCE_STRATEGY": "none",
        "PROXY_TAG_STRATEGIES": "none",
    }
    return os.environ | own | {"TMPDIR": str(home / "tmp"), "TERM": "xterm"}


@contextlib.contextmanager
def demo(home: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with (home / "output").open("wb") as output:
        process = subprocess.Popen(
            [COMMAND, "demo", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=home / "work",
            env=environment(home),
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def said(home: Path) -> str:
    return (home / "output").read_text(errors="replace")


def shows_engines(home: Path, process: subprocess.Popen[str]) -> None:
    def shown() -> bool:
        assert process.poll() is None, said(home)
        return "curl -N http://" in said(home)

    wait_until(shown, timeout=START_S, what="the first frame")
    for engine in ENGINES:
        assert engine in said(home)


def processes_of(home: Path) -> list[int]:
    """The keeper and all it started: their working directory is the demo's own, perhaps removed by now."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and os.readlink(entry / "cwd").startswith(f"{home}/tmp/"):
                found.append(int(entry.name))
    return found


def tables_of(pid: int) -> list[str]:
    return [path.name for path in Path("/dev/shm").glob(f"loadboard-demo-{pid}-*")]


def left_behind(home: Path, pid: int) -> list[object]:
    return [*processes_of(home), *tables_of(pid), *(home / "tmp").iterdir()]


def test_once_prints_one_complete_frame_and_leaves_nothing(home: Path) -> None:
    with demo(home, "--once") as process:
        assert process.wait(START_S) == 0, said(home)
        text = said(home)
        rows = {
            line.split()[0].rstrip("*"): line.split()[1:] for line in text.splitlines() if "engine-" in line
        }
        assert set(ENGINES) <= rows.keys()
        for engine in ENGINES:
            assert rows[engine][0] == "up", text
            assert "-" not in rows[engine], text
        assert text.count("curl -N http://") == 1
        assert re.search(
            rf"^{re.escape(COMMAND)} dump --table /loadboard-demo-{process.pid}-\w+$", text, re.M
        )
        assert re.search(r"^ +lane 1 +\d+ +\d+ +\d+$", text, re.M)
        assert re.search(r"table /loadboard-demo-\d+-\w+  2 proxy workers", text)
        assert "picks: by score" in text
        assert not left_behind(home, process.pid)


def test_a_reader_that_has_gone_ends_the_demo_without_a_fault(home: Path) -> None:
    read, write = os.pipe()
    with (home / "output").open("wb") as output:
        process = subprocess.Popen(
            [COMMAND, "demo", "--once"],
            stdin=subprocess.DEVNULL,
            stdout=write,
            stderr=output,
            cwd=home / "work",
            env=environment(home),
        )
    os.close(write)
    os.close(read)
    try:
        assert process.wait(START_S) == 0, said(home)
        assert len(said(home).splitlines()) == 1  # that it starts
        assert not left_behind(home, process.pid)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_live_view_and_leaves_nothing(home: Path, signum: signal.Signals) -> None:
    with demo(home) as process:
        shows_engines(home, process)
        assert len(processes_of(home)) >= 8  # keeper, 4 engines, monitor, proxy, load
        assert tables_of(process.pid)
        process.send_signal(signum)
        assert process.wait(END_S) == 0, said(home)
        assert not left_behind(home, process.pid)


def test_a_signal_during_the_start_leaves_nothing(home: Path) -> None:
    with demo(home) as process:
        wait_until(lambda: len(processes_of(home)) >= 3, timeout=START_S, what="the first engines")
        process.send_signal(signal.SIGINT)
        assert process.wait(END_S) == 0, said(home)
        assert not left_behind(home, process.pid)


def test_killing_the_demo_ends_everything_and_leaves_nothing(home: Path) -> None:
    with demo(home) as process:
        shows_engines(home, process)
        process.kill()
        process.wait(END_S)
        wait_until(lambda: not left_behind(home, process.pid), timeout=END_S, what="the end of everything")


def test_killing_the_keeper_ends_everything_and_leaves_nothing(home: Path) -> None:
    with demo(home) as process:
        shows_engines(home, process)
        os.kill(child_of(process.pid), signal.SIGKILL)
        assert process.wait(END_S) == 1, said(home)
        assert "loadboard demo: its keeper process was killed (signal 9)" in said(home)
        wait_until(lambda: not left_behind(home, process.pid), timeout=END_S, what="the end of everything")


def test_a_process_that_dies_is_named_with_its_log(home: Path) -> None:
    with demo(home) as process:
        shows_engines(home, process)
        os.kill(pid_with(home, "loadboard", "run"), signal.SIGKILL)
        assert process.wait(END_S) == 1, said(home)
        assert "monitor ended; its log ends:" in said(home)
        logs = re.search(r"All logs: (\S+)", said(home))
        assert logs
        assert (Path(logs[1]) / "monitor.log").exists()
        assert not processes_of(home)
        assert not tables_of(process.pid)


def test_a_port_that_is_taken_is_named(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with demo(home, "--once", f"--port={port}") as process:
            assert process.wait(START_S) == 1
            assert f"cannot listen on 127.0.0.1 port {port}" in said(home)
            assert not processes_of(home)


def test_a_terminal_shows_a_live_view_and_its_hangup_leaves_nothing(home: Path) -> None:
    # A process of its own, because forking here would copy the threads' state of other tests.
    terminal = subprocess.run(
        [sys.executable, "-c", _TERMINAL, COMMAND, "demo"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        timeout=START_S + END_S,
        cwd=home / "work",
        env=environment(home),
        check=True,
    )
    pid, status = terminal.stdout.split()
    assert status == "0"
    assert not left_behind(home, int(pid))


# Shows a command on a terminal of its own until a second frame was drawn over the first, and hangs up.
_TERMINAL = """
import os, pty, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whoever runs the tests may ignore it, and that is inherited
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
shown = b""
while shown.count(b"curl -N http://") < 2:
    shown += os.read(terminal, 65536)
os.close(terminal)
print(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def child_of(pid: int) -> int:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    assert len(children) == 1
    return int(children[0])


def pid_with(home: Path, *arguments: str) -> int:
    for pid in processes_of(home):
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if set(arguments) <= set(words):
            return pid
    raise AssertionError(f"no process with {arguments}")
