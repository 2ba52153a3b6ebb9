"""The demo's command, and children that end together."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from loadboard import demo
from loadboard.demo import front, keeper
from loadboard.demo.processes import Children, remove_table
from tests.waiting import wait_until

# Starts a child of its own that ignores SIGTERM, says its pid, and waits.
_WITH_CHILD = """
import subprocess, sys, time
code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def module(directory: Path, name: str, code: str) -> str:
    (directory / f"{name}.py").write_text(code)
    return name


def alive(pid: int) -> bool:
    try:
        # A zombie is nobody's problem but its parent's.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def said_pid(log: Path) -> int:
    wait_until(lambda: log.read_text().endswith("\n"), timeout=15.0, what="the child's output")
    return int(log.read_text())


def test_a_child_that_ended_is_found_and_its_last_lines_are_known(tmp_path: Path) -> None:
    children = Children(tmp_path, os.environ)
    child = children.start("short", module(tmp_path, "short", "print('one'); print('two')"), [])
    wait_until(lambda: children.first_exited() is not None, timeout=15.0, what="its end")
    assert children.first_exited() is child
    assert child.tail() == "  one\n  two"
    children.stop(1.0)
    assert children.first_exited() is None


def test_stopping_takes_the_childrens_children_too(tmp_path: Path) -> None:
    children = Children(tmp_path, os.environ)
    child = children.start("parent", module(tmp_path, "parent", _WITH_CHILD), [])
    grandchild = said_pid(child.log)
    children.stop(5.0)
    assert child.popen.returncode == -signal.SIGTERM
    wait_until(lambda: not alive(grandchild), what="the grandchild's end")


def test_a_child_that_does_not_end_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(0); time.sleep(60)"
    children = Children(tmp_path, os.environ | {"PYTHONUNBUFFERED": "1"})
    child = children.start("stubborn", module(tmp_path, "stubborn", stubborn), [])
    said_pid(child.log)
    children.stop(0.1)
    assert child.popen.returncode == -signal.SIGKILL


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    module(tmp_path, "waits", "import os, time; print(os.getpid(), flush=True); time.sleep(60)")
    starter = f"""
import os, time
from pathlib import Path
from loadboard import demo
from loadboard.demo import keeper
from loadboard.demo.processes import Children
Children(Path({str(tmp_path)!r}), os.environ).start("waits", "waits", [])
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", starter], cwd=tmp_path)
    log = tmp_path / "waits.log"
    wait_until(log.exists, timeout=15.0, what="the child's start")
    pid = said_pid(log)
    parent.kill()
    parent.wait()
    wait_until(lambda: not alive(pid), what="the child's end")


def test_removing_a_table_takes_its_lock_and_left_overs_and_nothing_else(table_name: str) -> None:
    shm = Path("/dev/shm")
    names = [table_name[1:], f"{table_name[1:]}.lock", f"{table_name[1:]}.tmp-0011"]
    for name in [*names, f"{table_name[1:]}-other"]:
        (shm / name).touch()
    remove_table(table_name)
    assert [path.name for path in shm.glob(f"{table_name[1:]}*")] == [f"{table_name[1:]}-other"]
    remove_table(table_name)


# -- ports ----------------------------------------------------------------------------------------------


def test_a_wanted_port_is_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with keeper._reserve(port) as reserved:
        assert reserved.getsockname()[1] == port


def test_a_wanted_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(keeper.FailedError, match=f"port {port}: Address already in use"):
            keeper._reserve(port)


def test_without_a_wish_a_taken_usual_port_leads_to_a_free_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        usual = taken.getsockname()[1]
        monkeypatch.setattr(keeper, "_USUAL_PORT", usual)
        with keeper._reserve(None) as reserved:
            assert reserved.getsockname()[1] not in (0, usual)
    with keeper._reserve(None) as reserved:
        assert reserved.getsockname()[1] == usual


# -- the command ----------------------------------------------------------------------------------------


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser()
    demo.add_parser(whole.add_subparsers())
    return whole


def test_a_missing_part_is_named_with_the_extra_that_brings_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo.importlib.util, "find_spec", lambda name: None if name == "rich" else object())
    assert demo.run(parser().parse_args(["demo", "--once"])) == 1
    assert capsys.readouterr().err == (
        "loadboard demo needs rich: install loadboard with its extra, in the source tree: pip install '.[demo]'\n"
    )


def test_a_keeper_that_crashes_is_told_with_the_place_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    no_port = 99_999  # as good as any fault that it does not expect
    assert front.main(once=True, seconds=None, port=no_port) == 1
    (directory,) = tmp_path.iterdir()
    start, *failure = capfd.readouterr().err.splitlines()
    assert len(start) < 80
    assert failure == [
        "loadboard demo: its keeper process failed: OverflowError: bind(): port must be 0-65535.",
        f"All logs: {directory}",
    ]
    assert "Traceback" in (directory / "keeper.log").read_text()


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none_is_refused(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["demo", f"--port={port}"])
    assert f"not '{port}'" in capsys.readouterr().err
