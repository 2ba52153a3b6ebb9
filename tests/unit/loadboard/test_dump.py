"""``loadboard dump``: what it prints of literal snapshots and of tables that are not there."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from loadboard import dump
from loadboard.cli import main
from loadboard.tables import tables_in
from score_table.reader import InstanceFacts, LaneFacts, TableSnapshot
from score_table.records import Detail
from tests.tables import make_table, publish

UP = InstanceFacts(
    id="10.20.30.40:8000",
    url="http://10.20.30.40:8000",
    tags={},
    slot=0,
    generation=1,
    state="up",
    mark="",
    reason="",
    engine="sglang",
    mode="token_aware",
    pool="",
    share=1.0,
    outstanding=1234,
    held=12,
    dispatched=1234567,
    decisions={"score": 1234567},
    ended=1233333,
    score=1234.25,
    age_s=0.44,
    inflight=1300.0,
    running=250.0,
    waiting=1050.0,
    qps_1m=123.45,
    kv_usage=0.987,
    queued_tokens=None,
    throughput=900.0,
    own=7.0,
    others=0.0,
    others_queued=None,
    others_waiting=None,
    scored_qps=None,
    estimated=False,
)
REFUSES = dataclasses.replace(
    UP, id="10.20.30.41:8000", state="unreachable", mark="unreachable", score=None, estimated=True
)
SNAPSHOT = TableSnapshot(
    table="/loadboard",
    layout="1.0",
    state="ready",
    degraded=None,
    heartbeat_age_s=0.012,
    monitor_pid=4711,
    ticks=12,
    n=3,
    capacity=64,
    lanes_in_use=1,
    lane_capacity=32,
    lanes_wanted=0,
    lanes=(LaneFacts(0, 4712, 7, 1234, {"outstanding": 0, "marked": 2}, 0, 0),),
    instances=(UP, REFUSES),
)


def text(**changes: Any) -> list[str]:
    return dump.as_text(dataclasses.replace(SNAPSHOT, **changes))


def state_of(instance: InstanceFacts, degraded: str | None = None) -> str:
    lines = text(instances=(instance,), degraded=degraded)
    row = next(line for line in lines if line.startswith(instance.id))
    return row.removeprefix(instance.id).partition("sglang")[0].strip()


def call(*words: str) -> int:
    parser = argparse.ArgumentParser()
    dump.add_parser(parser.add_subparsers())
    args = parser.parse_args(["dump", *words])
    status = args.run(args)
    assert isinstance(status, int)
    return status


def test_the_text_fits_a_hundred_columns_with_addresses_as_ids() -> None:
    lines = text()
    assert max(map(len, lines)) <= 100
    heading = next(line for line in lines if line.startswith("instance"))
    assert heading.split() == [
        *("instance", "state", "engine", "score", "standing", "held", "flight", "ing", "1m", "use", "age"),
        "patched",
    ]
    row = next(line for line in lines if line.startswith(UP.id))
    assert row.split()[1:] == [
        *("up", "sglang", "1234.25", "1234", "12", "1300", "1050", "123.45", "98.7%", "0.4", "s", "1234567")
    ]


@pytest.mark.parametrize(
    ("state", "mark", "estimated", "said"),
    [
        ("up", "", False, "up"),
        ("up", "", True, "up, estimated"),
        ("stale", "", True, "stale"),
        ("new", "", True, "new"),
        ("stale", "avoided", True, "stale, avoided"),
        ("up", "draining", False, "up, draining"),
        ("unreachable", "unreachable", True, "unreachable"),
    ],
)
def test_the_state_says_each_thing_once(state: str, mark: str, estimated: bool, said: str) -> None:
    assert state_of(dataclasses.replace(UP, state=state, mark=mark, estimated=estimated)) == said


def test_without_a_monitor_no_instance_is_said_to_be_up() -> None:
    assert state_of(UP, degraded="outstanding") == "up?"
    lines = text(degraded="outstanding")
    assert "picks: DEGRADED (outstanding)" in lines[0]
    assert any(line.startswith("The monitor is silent") for line in lines)


def test_instances_are_counted_apart_from_slots() -> None:
    assert "2 instances (3 slots used of 64)  lanes 1 of 32" in text()
    assert "1 instance (1 slot used of 64)  lanes 1 of 32" in text(instances=(UP,), n=1)


def test_a_table_that_is_kept_up_is_picked_from_by_score() -> None:
    assert text()[0] == "table /loadboard  layout 1.0  ready  picks: by score"


def test_a_lane_tells_its_degraded_picks() -> None:
    assert text()[-1] == "lane 0  pid 4712  outstanding 7  picks 1234  degraded: marked 2"


def test_an_absent_table_leads_to_those_that_are_there(
    table_name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = make_table(table_name, 1)
    try:
        assert call("--table", f"{table_name}-absent") == 69
    finally:
        writer.close()
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"there is no table {table_name}-absent: ")
    assert second.startswith("tables in /dev/shm: ")
    assert table_name in second.removeprefix("tables in /dev/shm: ").split(", ")


def test_only_whole_tables_are_listed(table_name: str, tmp_path: Path) -> None:
    file = tmp_path / "real"
    make_table(str(file), 1).close()
    head = file.read_bytes()[:64]
    (tmp_path / "real.tmp-00ff").write_bytes(head)
    (tmp_path / "other").write_bytes(b"something else")
    (tmp_path / "empty").touch()
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to(file)
    os.mkfifo(tmp_path / "pipe")
    assert tables_in(tmp_path) == ["/real"]


def test_a_copy_is_told_as_of_its_last_heartbeat(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer = make_table(str(tmp_path / "table"), 2)
    writer.write_detail(0, Detail(1, "up", mode="token_aware", pool="role=a", share=0.5))
    publish(writer, [2, 1], now_ns=10**9)
    shutil.copy(tmp_path / "table", tmp_path / "kept")
    assert main(["dump", "--table", str(tmp_path / "kept")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("picks: by score")
    assert lines[1].startswith("A copy of a table")
    assert main(["dump", "--table", str(tmp_path / "kept"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["degraded"], told["heartbeat_age_s"]) == (None, 0.0)
    one = told["instances"][0]
    assert (one["mode"], one["pool"], one["share"]) == ("token_aware", "role=a", 0.5)
    assert main(["dump", "--table", str(tmp_path / "table")]) == 0
    assert "DEGRADED (outstanding)" in capsys.readouterr().out
    writer.close()
