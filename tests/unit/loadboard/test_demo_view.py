"""The demo's frame, drawn from literal tables."""

from __future__ import annotations

import copy
import io
from typing import Any

from rich.console import Console

from loadboard.demo.view import About, PickRates, frame

ABOUT = About(proxy_url="http://127.0.0.1:38000", notes={"127.0.0.1:9002": "a slower machine"})

KNOWN: dict[str, Any] = {
    "id": "127.0.0.1:9001",
    "url": "http://127.0.0.1:9001",
    "tags": {},
    "slot": 0,
    "generation": 1,
    "state": "up",
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
    "lanes": [],
    "instances": [KNOWN, UNKNOWN],
}


def drawn(table: dict[str, Any], rates: dict[str, float | None] | None = None, width: int = 120) -> str:
    console = Console(width=width, no_color=True, file=io.StringIO(), record=True)
    console.print(frame(table, rates or {}, ABOUT))
    return console.export_text()


def row(text: str, instance_id: str) -> list[str]:
    return next(line for line in text.splitlines() if line.startswith(instance_id)).split()


def test_an_instance_shows_every_known_field() -> None:
    cells = row(drawn(TABLE, {"127.0.0.1:9001": 4.31}), "127.0.0.1:9001")
    assert cells == ["127.0.0.1:9001", "up", "9", "7", "4.50", "37.1%", "0.4", "s", "8.25", "1234", "4.3"]


def test_what_is_unknown_is_a_dash_and_what_is_zero_is_a_zero() -> None:
    cells = row(drawn(TABLE), "127.0.0.1:9002")
    assert cells == ["127.0.0.1:9002*", "unreachable", "-", "0", "-", "-", "-", "-", "1234", "-"]


def test_the_header_names_table_monitor_and_mode() -> None:
    text = drawn(TABLE)
    assert "table /loadboard-demo-1" in text
    assert "monitor pid 4711, heartbeat 0.01 s old" in text
    assert "2 proxy workers (lanes)" in text
    assert "picks: by score" in text


def test_a_note_is_a_star_and_a_line_below() -> None:
    assert "* 127.0.0.1:9002: a slower machine" in drawn(TABLE)


def test_a_frame_fits_eighty_columns() -> None:
    known = [KNOWN | {"id": f"127.0.0.1:3876{i}", "dispatched": 123456, "score": -10.25} for i in range(4)]
    text = drawn(TABLE | {"instances": known}, width=80)
    assert row(text, "127.0.0.1:38763")[-3:] == ["-10.25", "123456", "-"]
    assert "…" not in text


def test_a_degraded_table_says_its_mode() -> None:
    assert "picks: degraded (outstanding)" in drawn(TABLE | {"degraded": "outstanding"})


def test_a_table_without_a_monitor_shows_dashes() -> None:
    text = drawn(TABLE | {"monitor_pid": None, "heartbeat_age_s": None, "degraded": "outstanding"})
    assert "monitor pid -, heartbeat - old" in text


def test_the_curl_line_is_whole_on_eighty_columns() -> None:
    command = """curl http://127.0.0.1:38000/v1/completions -d '{"prompt":"hi","max_tokens":20}'"""
    assert command in drawn(TABLE, width=80).splitlines()


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
