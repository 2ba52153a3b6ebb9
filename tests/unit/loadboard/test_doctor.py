"""``loadboard doctor``: what it finds, and its exit status."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

import score_table
from loadboard.cli import main
from score_table.lane import Lane
from tests.tables import make_table, publish


def _run(table: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str]]:
    status = main(["doctor", "--table", table])
    lines = capsys.readouterr().out.splitlines()
    return status, {line[6:].split(": ")[0]: line for line in lines}


def test_a_table_with_a_living_monitor_is_fine(table_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    writer = make_table(table_name, 2)
    publish(writer)
    status, found = _run(table_name, capsys)
    assert status == 0
    assert all(line.startswith("ok") for line in found.values())
    assert score_table.implementation in found["pick"]
    assert f"pid {os.getpid()}" in found["monitor"]
    writer.close()


def test_no_table_is_a_fault_that_says_what_to_do(
    table_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, found = _run(table_name, capsys)
    assert status == 1
    assert found["table"].startswith("BAD")
    assert "start `loadboard run`" in found["table"]


def test_a_stopped_monitor_and_a_full_table_are_faults(
    table_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = make_table(table_name, 1, lanes=1)
    lane = Lane(table_name)
    lane.attach()
    writer.close()
    status, found = _run(table_name, capsys)
    assert status == 1
    assert found["monitor"].startswith("BAD")
    assert "stopped" in found["monitor"]
    assert found["lanes"].startswith("BAD")
    lane.close()


def test_an_unknown_pick_core_is_a_fault(
    table_name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOADBOARD_PICK_CORE", "fortran")
    status, found = _run(table_name, capsys)
    assert status == 1
    assert "'fortran'" in found["pick"]


@pytest.mark.parametrize(
    ("ago_s", "said"),
    [
        (5.0, "ready, silent: ticked 5."),
        (-60.0, "its clock is another host's"),
    ],
)
def test_a_monitor_that_does_not_tick_is_a_fault_that_says_what_to_do(
    table_name: str, capsys: pytest.CaptureFixture[str], ago_s: float, said: str
) -> None:
    writer = make_table(table_name, 2)
    publish(writer, now_ns=time.monotonic_ns() - round(ago_s * 1e9))
    status, found = _run(table_name, capsys)
    assert status == 1
    assert found["monitor"].startswith("BAD")
    assert said in found["monitor"]
    if ago_s > 0:
        assert "from 1 s on picks are made without it; see whether the process lives" in found["monitor"]
    writer.close()


def test_a_copy_is_called_one_and_no_monitor_is_missed_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = make_table(str(tmp_path / "table"), 2)
    publish(writer, now_ns=10**9)
    shutil.copy(tmp_path / "table", tmp_path / "kept")
    status, found = _run(str(tmp_path / "kept"), capsys)
    assert status == 0
    assert found["copy"].endswith(f"see `loadboard why --table {tmp_path / 'kept'}`")
    assert "monitor" not in found
    writer.close()
