"""Hosts that fork, exec, daemonise and close descriptors: each count exact at the end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.stress.hosts import CORES, command, run, running
from tests.stress.keeper import Keeper
from tests.waiting import wait_until

PROGRAMS = "hosts_processes"


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize(
    "program",
    ["fork_with_open_guards", "fork_inside_blocks", "fork_of_a_fork", "fork_beside_dispatching_threads"],
)
def test_a_forked_child_counts_for_itself_and_never_touches_its_parent_s_requests(
    keeper: Keeper, program: str, core: str
) -> None:
    did = run(PROGRAMS, program, keeper.table, core)
    keeper.settle(dispatched=did["dispatched"], ended=did["ended"], count_errors=0, what=program)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_processes_of_multiprocessing_are_counted_and_their_lanes_come_back(
    keeper: Keeper, method: str
) -> None:
    did = run(PROGRAMS, "multiprocessing_with", keeper.table, CORES[0], method)
    keeper.settle(dispatched=did["dispatched"], ended=did["ended"], count_errors=0, what=method)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, process.stderr.read() if process.stderr else ""
    return line


def _say(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go on\n")
    process.stdin.flush()


def _holds_table(pid: int, table: str) -> list[str]:
    """Descriptors and mappings of ``table`` in a process."""
    fds = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed just now
            fds.append(os.readlink(fd))
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return [text for text in (*fds, *maps) if table in text]


@pytest.mark.parametrize("core", CORES)
def test_a_process_that_becomes_another_program_gives_up_its_lane(keeper: Keeper, core: str) -> None:
    with running(command(PROGRAMS, "exec_with_open_requests", keeper.table), core) as process:
        assert _line(process) == "open"
        keeper.settle(open=5, lanes=1)
        _say(process)
        assert _line(process) == "other"
        keeper.settle(timeout=1.0, dispatched=5, ended=0, count_errors=0)
        assert process.poll() is None
        assert _holds_table(process.pid, keeper.table) == []


@pytest.mark.parametrize("core", CORES)
def test_a_program_that_outlives_the_killed_process_which_started_it_keeps_no_lane(
    keeper: Keeper, core: str
) -> None:
    with running(command(PROGRAMS, "child_program_that_outlives_it", keeper.table), core) as process:
        other = int(_line(process))
        keeper.settle(open=5, lanes=1)
        assert _holds_table(other, keeper.table) == []
        process.kill()
        process.wait()
        keeper.settle(timeout=1.0, dispatched=5, ended=0, count_errors=0)
        assert Path(f"/proc/{other}").exists()


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("program", ["daemonise_after_use", "close_all_descriptors_in_use"])
def test_a_process_that_closes_every_descriptor_goes_on_with_exact_counts(
    keeper: Keeper, program: str, core: str
) -> None:
    still_open = 4 if program == "daemonise_after_use" else 7
    sent, never_ended = 157, 3 if program == "daemonise_after_use" else 0
    with running(command(PROGRAMS, program, keeper.table), core) as process:
        assert _line(process) == "grow"
        keeper.settle(open=still_open, lanes=1)
        keeper.replace(slots=32, lanes=20)
        _say(process)
        said = json.loads(_line(process))
        assert said["strangers_lost"] == 0, "descriptors of the host were closed"
        assert said["open"] == 0
    now = keeper.settle(count_errors=0)
    # While the lane is lost and not claimed anew nothing counts: a hundred short requests may fall into that time.
    assert sent - 100 <= now.dispatched <= sent
    assert sent - never_ended - 100 <= now.ended <= sent - never_ended
    wait_until(lambda: not Path(f"/proc/{said['pid']}").exists(), what="the end of the daemon")


@pytest.mark.parametrize("core", CORES)
def test_a_child_forked_after_all_descriptors_were_closed_has_all_of_its_parent_s(
    keeper: Keeper, core: str
) -> None:
    said = run(PROGRAMS, "fork_after_closing_all_descriptors", keeper.table, core, quiet=False)
    assert said == {"open": 0, "strangers_lost": 0}
    keeper.settle(count_errors=0)
