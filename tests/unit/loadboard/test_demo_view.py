"""The demo's frame, drawn from literal tables."""

from __future__ import annotations

import copy
import io
import re
from typing import Any

import pytest
from rich.console import Console

from loadboard.demo.hints import own_request
from loadboard.demo.view import About, Frame, PickRates

ABOUT = About(
    proxy_url="http://127.0.0.1:38000",
    command=".venv/bin/loadboard",
    notes={"127.0.0.1:9002": "a slower machine"},
)

KNOWN: dict[str, Any] = {
    "id": "127.0.0.1:9001",
    "url": "http://127.0.0.1:9001",
    "tags": {},
    "slot": 0,
    "generation": 1,
    "state": "up",
    "mark": "",
    "reason": "",
    "engine": "vllm",
    "outstanding": 7,
    "held": 0,
    "dispatched": 1234,
    "ended": 1227,
    "score": 8.25,
    "age_s": 0.4,
    "inflight": 9.0,
    "running": 9.0,
    "waiting": 0.0,
    "qps_1m": 4.5,
    "kv_usage": 0.371,
    "queued_tokens": None,
    "throughput": 900.0,
    "own": 7.0,
    "others": 0.0,
    "estimated": False,
}
UNKNOWN = KNOWN | {
    "id": "127.0.0.1:9002",
    "slot": 1,
    "state": "unreachable",
    "mark": "unreachable",
    "reason": "connection refused",
    "outstanding": 0,
    "score": None,
    "age_s": None,
    "inflight": None,
    "running": None,
    "waiting": None,
    "qps_1m": None,
    "kv_usage": None,
}
TABLE: dict[str, Any] = {
    "table": "/loadboard-demo-1",
    "layout": "1.0",
    "state": "ready",
    "degraded": None,
    "heartbeat_age_s": 0.012,
    "monitor_pid": 4711,
    "n": 2,
    "lanes_in_use": 2,
    "lanes": [
        {"lane": 0, "pid": 4712, "outstanding": 5, "picks": 800},
        {"lane": 1, "pid": 4713, "outstanding": 2, "picks": 434},
    ],
    "instances": [KNOWN, UNKNOWN],
}


def drawn(
    table: dict[str, Any], rates: dict[str, float | None] | None = None, width: int = 120, height: int = 100
) -> str:
    console = Console(width=width, height=height, no_color=True, file=io.StringIO(), record=True)
    console.print(Frame(table, rates or {}, ABOUT))
    return console.export_text()


def headings(text: str) -> list[str]:
    """The names of the columns, the parts of broken ones together."""
    lines = text.splitlines()
    lower = next(index for index, line in enumerate(lines) if line.startswith("instance"))
    found = []
    for name in re.finditer(r"\S+", lines[lower]):
        above = re.search(r"\S*$", lines[lower - 1][: name.end()])
        found.append(f"{above[0] if above else ''} {name[0]}".strip().replace("- ", ""))
    return found


def fleet() -> list[dict[str, Any]]:
    return [
        KNOWN | {"id": f"127.0.0.1:3876{i}", "dispatched": 123456, "score": -10.25, "inflight": 1234.0}
        for i in range(4)
    ]


def row(text: str, instance_id: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(instance_id)).split()


def test_an_instance_shows_every_known_field() -> None:
    cells = row(drawn(TABLE, {"127.0.0.1:9001": 4.31}), "127.0.0.1:9001")
    assert cells == [
        *("127.0.0.1:9001", "up", "vllm", "9", "0", "7", "0", "4.50", "37.1%", "0.4", "s", "8.25", "1234"),
        "4.3",
    ]


def test_what_is_unknown_is_a_dash_and_what_is_zero_is_a_zero() -> None:
    cells = row(drawn(TABLE), "127.0.0.1:9002")
    assert cells == [
        *("127.0.0.1:9002*", "unreachable", "vllm", "-", "-", "0", "0", "-", "-", "-", "-", "1234", "-")
    ]


def test_the_header_names_table_monitor_and_mode() -> None:
    text = drawn(TABLE)
    assert "table /loadboard-demo-1" in text
    assert "monitor pid 4711, heartbeat 0.01 s old" in text
    assert "2 proxy workers (lanes)" in text
    assert "picks: by score" in text


def test_a_note_is_a_star_and_a_line_below() -> None:
    assert "* 127.0.0.1:9002: a slower machine" in drawn(TABLE)


ALL = ["inflight", "waiting", "outstanding", "held", "qps 1m", "KV use", "sample age", "score", "picks"]
MUCH = ["inflight", "outstanding", "KV use", "sample age", "score", "picks"]


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (110, ["engine", *ALL, "picks /s"]),
        (109, ["inflight", "outstanding", "qps 1m", "KV use", "sample age", "score", "picks", "picks /s"]),
        (80, [*MUCH, "picks /s"]),
        (60, ["inflight", "outstanding", "score", "picks /s"]),
        (40, ["score"]),
    ],
)
def test_columns_are_shown_whole_or_left_out_in_order(width: int, shown: list[str]) -> None:
    text = drawn(TABLE | {"instances": fleet()}, width=width)
    assert headings(text) == ["instance", "state", *shown]
    assert len(row(text, "127.0.0.1:38763")) == len(shown) + 2 + ("sample age" in shown)
    assert "…" not in text


def test_the_columns_stay_when_a_value_grows() -> None:
    early = drawn(TABLE | {"instances": [KNOWN | {"dispatched": 1, "state": "new"}]}, width=80)
    late = drawn(TABLE | {"instances": [KNOWN | {"dispatched": 123456, "state": "unreachable"}]}, width=80)
    assert headings(early) == headings(late)


def test_an_id_that_is_longer_than_the_screen_is_cut_and_nothing_else() -> None:
    text = drawn(TABLE | {"instances": [KNOWN | {"id": "i" * 190}]}, width=80)
    assert headings(text)[:2] == ["instance", "state"]
    assert headings(text)[2:] == ["inflight", "outstanding", "KV use", "score", "picks", "picks /s"]
    cells = row(text, "iii")
    assert cells[0].endswith("i…")
    assert cells[1:] == ["up", "9", "7", "37.1%", "8.25", "1234", "-"]


def test_the_legend_explains_the_columns_that_are_shown() -> None:
    wide, narrow = (re.sub(r"\s+", " ", drawn(TABLE, width=width)) for width in (120, 60))
    for name in ("inflight: polled", "outstanding: of this host's proxies, now", "score: what a pick"):
        assert name in wide
        assert name in narrow
    assert "held: " in wide
    assert "held: " not in narrow


def test_the_workers_are_shown_where_there_is_height() -> None:
    lines = drawn(TABLE, width=80).splitlines()
    assert [line.split() for line in lines if line.split()[:1] == ["lane"]] == [
        ["lane", "0", "4712", "5", "800"],
        ["lane", "1", "4713", "2", "434"],
    ]
    frame = {height: drawn(TABLE, width=80, height=height) for height in range(10, 40)}
    assert all(len(text.splitlines()) < height for height, text in frame.items() if height >= 20)
    assert "lane 0" not in frame[20]
    assert "inflight: " in frame[20]
    assert "inflight: " not in frame[15]
    assert ".venv/bin/loadboard dump" in frame[10]


def test_a_silent_monitor_leaves_no_state_without_a_doubt() -> None:
    text = drawn(TABLE | {"degraded": "outstanding"})
    assert "picks: DEGRADED (outstanding)" in text
    assert "The monitor is silent" in text
    assert row(text, "127.0.0.1:9001")[1] == "up?"


def test_a_table_without_a_monitor_shows_dashes() -> None:
    text = drawn(TABLE | {"monitor_pid": None, "heartbeat_age_s": None, "degraded": "outstanding"})
    assert "monitor pid -, heartbeat - old" in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_commands_to_copy_are_whole(width: int) -> None:
    text = drawn(TABLE, width=width)
    for command in (
        ".venv/bin/loadboard dump --table /loadboard-demo-1",
        own_request("http://127.0.0.1:38000", width),
    ):
        assert f"\n{command}\n" in text
    assert "simulated: they take a model's time and generate nothing." in re.sub(r"\s+", " ", text)


def test_ids_are_shown_as_they_are_and_never_read_as_markup() -> None:
    table = copy.deepcopy(TABLE)
    table["instances"][0]["id"] = "[red]a[/red]"
    assert "[red]a[/red]" in drawn(table)


# -- picks per second -----------------------------------------------------------------------------------


def look(dispatched: int | None, generation: int = 1) -> list[dict[str, Any]]:
    return [KNOWN | {"id": "a", "dispatched": dispatched, "generation": generation}]


def test_the_pick_rate_is_unknown_at_the_first_look() -> None:
    assert PickRates().update(0.0, look(100)) == {"a": None}


def test_the_pick_rate_is_the_totals_difference_over_the_window() -> None:
    rates = PickRates()
    rates.update(0.0, look(100))
    assert rates.update(2.0, look(110)) == {"a": 5.0}
    for second in range(3, 20):
        rates.update(float(second), look(110))
    assert rates.update(20.0, look(110)) == {"a": 0.0}


def test_the_pick_rate_is_unknown_across_a_new_generation_or_a_smaller_total() -> None:
    rates = PickRates()
    rates.update(0.0, look(100))
    assert rates.update(1.0, look(110, generation=2)) == {"a": None}
    rates = PickRates()
    rates.update(0.0, look(100))
    assert rates.update(1.0, look(3)) == {"a": None}
    assert rates.update(2.0, look(None)) == {"a": None}
