"""``loadboard why``: the conclusion, the parts and the reasons it prints, of live tables and of copies."""

from __future__ import annotations

import argparse
import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadboard import why
from loadboard.cli import main
from loadboard.why_text import as_text, conclusions
from proxy_adapter import LeastLoadStrategy
from score_table.explanation import Explained, Explanation
from score_table.identity import Identity
from score_table.lane import Lane
from score_table.pick.rules import Mark
from score_table.records import Detail
from score_table.writer import TableWriter
from tests.tables import PRICES, make_table, publish
from tests.unit.proxy_adapter.instances import plain

B = Explained(
    id="10.20.30.41:8000",
    slot=1,
    generation=1,
    state="up",
    estimated="",
    score=1234.25,
    base=1000.0,
    lanes=234.25,
    outstanding=1234,
    others=-12.5,
    requests=1221.5,
    prompt_tokens=123456,
    kv_demand=0.987,
    speed=1.25,
    tick_score=1230.0,
    decisions={"score": 1234567, "outstanding": 12, "marked": 0, "round_robin": 0, "unmatched": 0},
    tied=True,
)
C = Explained(
    id="10.20.30.42:8000", slot=2, state="unreachable", mark="unreachable", estimated="unreachable", score=9.0
)
EXPLANATION = Explanation(
    table="/loadboard",
    state="ready",
    degraded=None,
    because="",
    heartbeat_age_s=0.012,
    rest_share=None,
    decided_by="score",
    rule="least",
    cursor=None,
    tie_window=0.125,
    least=1234.25,
    tied=(0,),
    picked=0,
    instances=(B, C),
)


def changed(**changes: Any) -> Explanation:
    return Explanation(**{**vars(EXPLANATION), **changes})


@pytest.fixture
def on(tmp_path: Path) -> Iterator[TableWriter]:
    writer = make_table(str(tmp_path / "table"), 3)
    publish(writer, [2, 1, 1])
    yield writer
    writer.close()


def call(tmp_path: Path, *words: str, table: str = "table") -> int:
    return main(["why", "--table", str(tmp_path / table), *words])


def test_the_conclusion_comes_first() -> None:
    assert (
        as_text(EXPLANATION)[0]
        == "with least_load, the next request goes to 10.20.30.41:8000 (score 1234.25)"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"tied": (0, 1), "picked": None},
            "with least_load, the next request goes to one of 10.20.30.41:8000, 10.20.30.42:8000 (score 1234.25): each "
            "worker takes the next in its own rotation",
        ),
        (
            {"tied": (0, 1), "picked": 1},
            "with least_load, the next request goes to 10.20.30.42:8000 (score 1234.25); tied: 10.20.30.41:8000, 10.20.30.42:8000",
        ),
        (
            {"decided_by": "marked", "tied": (1,), "least": 9.0, "picked": 1},
            "with least_load, the next request goes to 10.20.30.42:8000 (score 9.00, unreachable: all are marked)",
        ),
        (
            {"decided_by": "round_robin", "tied": (), "least": None},
            "with least_load, the next request goes to any of them: in turn, or by what the proxy's instance objects say",
        ),
        ({"instances": (), "tied": ()}, "there is no instance that a request could go to"),
        (
            {"instances": (B,) * 12, "tied": tuple(range(12)), "picked": None},
            f"with least_load, the next request goes to one of {', '.join([B.id] * 8)} and 4 more (score 1234.25): each worker takes the "
            "next in its own rotation",
        ),
    ],
)
def test_each_kind_of_decision_has_its_conclusion(changes: dict[str, Any], said: str) -> None:
    assert conclusions(changed(**changes)) == [said]


def test_the_text_fits_110_columns_with_addresses_as_ids() -> None:
    lines = as_text(EXPLANATION)
    assert max(map(len, lines)) <= 110, lines
    assert next(line for line in lines if line.startswith(">")).split()[2:] == [
        *(
            "up",
            "1234.25",
            "1000.00",
            "234.25",
            "1234",
            "-12.50",
            "1221.50",
            "123456",
            "98.7%",
            "1.25",
            "1230.00",
        )
    ]


def test_a_silent_monitor_is_said_with_what_the_scores_are_then() -> None:
    lines = as_text(
        changed(
            degraded="outstanding",
            because="the last heartbeat is 21.0 s old",
            rest_share=0.25,
            decided_by="outstanding",
        )
    )
    assert lines[1].endswith("picks: DEGRADED (outstanding)")
    assert "the last heartbeat is 21.0 s old" in lines
    assert "Scores are what the lanes hold, and as base 25% of what others last had there." in lines
    assert any("= base" in line for line in lines)
    assert any("up?" in line for line in lines)


def test_marks_and_estimates_have_their_reasons_and_decisions_their_counts() -> None:
    lines = as_text(EXPLANATION)
    assert any(line.startswith(f"  {C.id}: unreachable: taken only where all") for line in lines)
    assert any(line.startswith(f"  {C.id}: estimated, it refuses connections") for line in lines)
    assert lines[-2].split() == ["requests", "sent", "by", "score", "outstanding"]
    assert lines[-1].split() == [B.id, "1234567", "12"]


def test_it_says_what_a_worker_picks_next(
    on: TableWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strategy = LeastLoadStrategy(lane=Lane(on.location), rng=random.Random(1))
    strategy._lane.attach()  # type: ignore[union-attr]
    cursor = strategy.why(plain(3)).cursor
    publish(on, [2, 1, 1])
    assert call(tmp_path, "--cursor", str(cursor), "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["instances"][told["picked"]]["id"] == strategy.dispatch(plain(3)).instance.instance_id
    assert told["tied"] == [1, 2]
    strategy._lane.close()  # type: ignore[union-attr]


def test_candidates_are_named_or_have_tags(
    on: TableWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on.assign(3, Identity("i3", "http://i3", 1, PRICES, {"role": "decode", "rack": "a=1"}))
    publish(on, [2, 1, 1, 5])

    def ids(*words: str) -> list[str]:
        assert call(tmp_path, "--json", *words) == 0
        return [each["id"] for each in json.loads(capsys.readouterr().out)["instances"]]

    assert ids() == ["i0", "i1", "i2", "i3"]
    assert ids("--instances", "i2, i0") == ["i2", "i0"]
    assert ids("--tag", "role=decode", "--tag", "rack=a=1") == ["i3"]
    assert ids("--tag", "role=decode", "--instances", "i3,i0") == ["i3"]
    assert call(tmp_path, "--tag", "role=prefill") == 1
    assert capsys.readouterr().err.startswith("no instance has role=prefill")
    assert call(tmp_path, "--tag", "role") == 2
    assert "not written as key=value" in capsys.readouterr().err


def test_candidates_are_named_by_address_as_a_proxy_s_objects_are(
    on: TableWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on.assign(3, Identity("six", "http://[::1]:81/v1", 1, PRICES))
    on.assign(4, Identity("a", "http://HOST", 1, PRICES))
    on.assign(5, Identity("b", "http://host:80", 1, PRICES))
    publish(on, [2, 1, 1, 5, 5, 5])

    def told(text: str) -> tuple[int, Any]:
        status = call(tmp_path, "--json", "--instances", text)
        said = capsys.readouterr()
        return status, said.err if status else [each["id"] for each in json.loads(said.out)["instances"]]

    assert told("127.0.0.1:9001,i0, [::1]:81 ,i1") == (0, ["i1", "i0", "six"])
    status, said = told("i0,elsewhere")
    assert (status, said) == (
        2,
        "--instances: no instance 'elsewhere': in the table are i0, i1, i2, six, a, b\n",
    )
    assert told("host:80")[1].startswith("--instances: no instance 'host:80': a, b have this address")
    for nothing in ("", " , "):
        assert told(nothing)[1].startswith("--instances names no instance")


def test_one_without_a_slot_has_its_words_in_the_text() -> None:
    lines = as_text(changed(instances=(B, Explained("elsewhere", score=2.0))))
    assert any("elsewhere" in line and "no slot" in line for line in lines)
    assert any(line.startswith("  elsewhere: not in the table") for line in lines)


def pooled(on: TableWriter, mode: str = "expected_wait") -> None:
    """i0 and i1 are the pool of prefill, i2 is in none; i3 has no record yet."""
    make = Detail(generation=1, state="up")
    on.assign(3, Identity("i3", "http://i3", 1, PRICES))
    on.write_detail(0, make._replace(mode=mode, pool="role=prefill", share=0.5, others_queued=900.0))
    on.write_detail(1, make._replace(mode=mode, pool="role=prefill", share=1.0, others_queued=0.0))
    on.write_detail(2, make._replace(mode="token_aware", others=-0.0))
    publish(on, [2, 2, 1, 7])


def test_instances_of_several_pools_are_not_compared(
    on: TableWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pooled(on)
    assert call(tmp_path, "--at", "heartbeat") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "with least_load, the next request of pool role=prefill goes to one of i0, i1 (score 2.00): each worker takes "
        "the next in its own rotation",
        "with least_load, the next request of those in no pool goes to i2 (score 1.00)",
        "with least_load, the next request of those whose pool is not known goes to i3 (score 7.00)",
        "scores of different pools are not comparable: a proxy has to pass instances of one, or say tags",
    ]
    marked = [line[:4] for line in lines[lines.index("pool role=prefill:") :]][:7]
    assert marked == ["pool", "= i0", "= i1", "thos", "> i2", "thos", "> i3"]
    assert call(tmp_path, "--at", "heartbeat", "--json", "--cursor", "1") == 0
    told = json.loads(capsys.readouterr().out)
    assert [(each["pool"], each["tied"], each["picked"]) for each in told["pools"]] == [
        ("role=prefill", [0, 1], 1),
        ("", [2], 2),
        (None, [3], 3),
    ]
    assert call(tmp_path, "--at", "heartbeat", "--instances", "i0,i1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["pools"] == []


def test_columns_are_there_where_they_say_something(
    on: TableWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(*words: str) -> list[str]:
        assert call(tmp_path, "--at", "heartbeat", *words) == 0
        return capsys.readouterr().out.splitlines()

    def headings(lines: list[str]) -> set[str]:
        return set(next(line for line in lines if "instance" in line and "speed" in line).split())

    pooled(on)
    assert {"mode", "share"} <= headings(told())
    one_mode = told("--instances", "i0,i1")
    assert "mode" not in headings(one_mode)
    assert one_mode[1].endswith("mode expected_wait")
    assert any("900" in line for line in one_mode)
    assert not {"mode", "share", "waiting"} & headings(told("--instances", "i2"))


def test_zeros_have_no_sign(on: TableWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    on.write_detail(0, Detail(generation=1, state="up", others=-0.0, score=2.0))
    on.write_detail(1, Detail(generation=1, state="up", others=-0.001, score=1.001))
    publish(on, [2, 1, 1])
    for words in ((), ("--json",)):
        assert call(tmp_path, "--at", "heartbeat", *words) == 0
        said = capsys.readouterr().out
        assert "-0.0\n" not in said
        assert "-0.0," not in said
        assert words or "-0.00" not in said


def test_the_only_one_that_ties_is_the_one_that_is_picked(
    on: TableWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(on, [2, 1, 4])
    assert call(tmp_path, "--at", "heartbeat", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["tied"], told["picked"], told["instances"][1]["picked"]) == ([1], 1, True)


def test_a_moment_that_was_asked_for_is_blamed_itself(
    on: TableWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(on, [2, 1, 4], now_ns=10**10)
    for at, said in (
        (14 * 10**9, "--at is 4.0 s after the last heartbeat"),
        (10**9, "--at is 9.0 s before the last heartbeat"),
    ):
        assert call(tmp_path, "--at", str(at)) == 0
        assert any(line.startswith(said) for line in capsys.readouterr().out.splitlines())


def test_a_copy_is_called_one(on: TableWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(tmp_path / "table", tmp_path / "copy")
    for table, number in (("copy", 1), ("table", 0)):
        assert call(tmp_path, table=table) == 0
        assert capsys.readouterr().out.count("A copy of a table") == number


def test_a_copy_is_explained_at_its_heartbeat_and_a_live_table_now(
    on: TableWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on.write_detail(1, Detail(generation=1, state="up", sample_boot_ns=1))
    publish(on, [2, 1, 4], rest=[0, 5, 5], now_ns=10**9)
    shutil.copy(tmp_path / "table", tmp_path / "copy")

    def told(*words: str, table: str) -> tuple[str, str | None, str]:
        assert call(tmp_path, *words, "--json", table=table) == 0
        said = json.loads(capsys.readouterr().out)
        return said["decided_by"], said["degraded"], said["instances"][said["tied"][0]]["id"]

    assert told(table="copy") == ("score", None, "i1")
    assert told(table="table") == ("outstanding", "outstanding", "i0")
    assert told("--at", "heartbeat", table="table") == ("score", None, "i1")
    assert told("--at", str(10**9 + 5), table="copy") == ("score", None, "i1")
    assert told("--at", str(5 * 10**9), table="copy") == ("outstanding", "outstanding", "i0")


@pytest.mark.parametrize(
    "words",
    [
        ("--at", "then"),
        ("--at", "-5"),
        ("--watch", "0"),
        ("--watch", "nan"),
        ("--watch", "abc"),
        ("--cursor", "x"),
    ],
)
def test_wrong_usage_is_told(
    on: TableWriter, tmp_path: Path, words: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(tmp_path, *words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert words[0] in said
    assert "_pause" not in said
    assert "_moment" not in said


def test_an_absent_table_and_a_bad_name_have_their_statuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(tmp_path, table="absent") == 69
    assert "tables in /dev/shm" in capsys.readouterr().err
    assert main(["why", "--table", "loadboard"]) == 2


def _watched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str, between: Any = lambda: None
) -> tuple[int, list[float]]:
    """``--watch`` for three times, then Ctrl-C."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        between()
        if len(pauses) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("loadboard.why.time.sleep", pause)
    return call(tmp_path, "--watch", *words), pauses


def test_watching_prints_a_block_each_time_until_interrupted(
    on: TableWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = [Mark.NONE, Mark.UNREACHABLE, Mark.NONE]
    status, pauses = _watched(monkeypatch, tmp_path, "0.5", between=lambda: publish(on, [2, 1, 1], marks))
    assert (status, pauses) == (130, [0.5] * 3)
    firsts = [line for line in capsys.readouterr().out.splitlines() if line.startswith("with least_load")]
    assert len(firsts) == 3
    assert "i1, i2" in firsts[0]
    assert firsts[1] == firsts[2] == "with least_load, the next request goes to i2 (score 1.00)"


def test_watching_in_json_prints_one_line_each_time(
    on: TableWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _watched(monkeypatch, tmp_path, "--json") == (130, [1.0] * 3)
    assert [json.loads(line)["decided_by"] for line in capsys.readouterr().out.splitlines()] == ["score"] * 3


def test_on_a_terminal_watching_draws_over_the_last_one(
    on: TableWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loadboard.why.sys.stdout.isatty", lambda: True, raising=False)
    _watched(monkeypatch, tmp_path)
    assert capsys.readouterr().out.count("\x1b[H\x1b[2J") == 3


def test_control_characters_of_ids_do_not_reach_the_terminal(
    on: TableWriter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(tmp_path, "--instances", "a\x1b[31m") == 2
    assert "\x1b" not in capsys.readouterr().err
    on.assign(2, Identity("a\x1b[31m", "http://i2", 1, PRICES))
    assert call(tmp_path) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_the_command_stands_in_the_help() -> None:
    parser = argparse.ArgumentParser()
    why.add_parser(parser.add_subparsers())
    assert parser.parse_args(["why", "--watch"]).watch == 1.0
