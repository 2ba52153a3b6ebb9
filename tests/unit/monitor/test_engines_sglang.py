"""The SGLang adapter: the values of every sample, rank rules, and unknown instead of idle for whatever is odd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.engines.base import MAX_RANKS, MAX_SERIES
from monitor.engines.sglang import GET_LOAD, LOADS, Sglang
from monitor.sample import FINISHED, GENERATED_TOKENS, PROMPT_TOKENS, Reading

SAMPLES = Path(__file__).parents[2] / "data" / "samples"

# file -> running, waiting, kv, tokens per second, capacity
EXPECTED: dict[str, tuple[float | None, ...]] = {
    "sglang-0.5.23-tp1.txt": (7, 0, 0.31, 213.5, 100_000),
    "sglang-0.5.23-dp4.txt": (22, 7, 0.3275, 702.75, 400_000),
    "sglang-0.5.23-priority.txt": (7, 0, 0.31, 213.5, 100_000),
    "sglang-0.5.23-v1-loads.json": (10, 2, 0.215, 427, 200_000),
    "sglang-0.5.23-v1-loads-prometheus.txt": (10, 2, 0.215, 427, 200_000),
    "sglang-0.5.6-get-load.json": (10, 2, None, None, None),
    "sglang-0.4.10-get-load.json": (None, None, None, None, None),
    "sglang-0.5.1-busy.txt": (1, None, 0.0, 0.8371284457403783, None),
    "sglang-0.5.9-via-smg-underscore.txt": (None, None, None, None, None),
    "sglang-0.4.4-idle.txt": (0, None, 0, 0, None),
    "sglang-0.3.4-initial.txt": (None, None, None, None, 570_979),
    "sglang-pre-0.3.4-draft.txt": (0, 0, 0, 0, None),
    "collector-sglang-0.5.23-idle.txt": (0, 0, 0, 0, None),
    "collector-sglang-0.5.23-busy.txt": (7, 3, 0.42, 812.5, None),
}


def path_of(name: str) -> str:
    if name.endswith(".txt"):
        return "/metrics"
    return GET_LOAD if "get-load" in name else LOADS


def sample(name: str) -> Reading:
    return Sglang().read(path_of(name), (SAMPLES / name).read_bytes())


def page(text: str) -> Reading:
    return Sglang().read("/metrics", text.encode())


def entry(**changed: object) -> dict[str, object]:
    return {
        "dp_rank": 0,
        "num_running_reqs": 3,
        "num_waiting_reqs": 2,
        "num_used_tokens": 100,
        "num_total_tokens": 150,
        "max_total_num_tokens": 1000,
        "max_running_requests": 8,
        "token_usage": 0.1,
        "gen_throughput": 50.0,
        **changed,
    }


def loads(*entries: Any) -> Reading:
    return Sglang().read(LOADS, json.dumps({"loads": list(entries)}).encode())


@pytest.mark.parametrize("name", EXPECTED)
def test_every_sample_has_its_documented_values(name: str) -> None:
    reading = sample(name)
    running, waiting, kv_usage, throughput, capacity = EXPECTED[name]
    assert (reading.running, reading.waiting, reading.kv_capacity) == (running, waiting, capacity)
    assert reading.kv_usage == (None if kv_usage is None else pytest.approx(kv_usage, rel=1e-12))
    assert reading.throughput == throughput


def test_every_sglang_sample_in_the_folder_is_tested_and_recognised() -> None:
    names = {path.name for path in SAMPLES.glob("*sglang*")}
    assert names <= EXPECTED.keys()
    assert all(Sglang().recognises(path_of(name), (SAMPLES / name).read_bytes()) for name in names)


@pytest.mark.parametrize(
    "name", ["sglang-0.5.23-tp1.txt", "sglang-0.5.23-dp4.txt", "sglang-0.5.23-priority.txt"]
)
def test_counters_add_up_over_streaming_and_others(name: str) -> None:
    counters = {counter: sum(series.values()) for counter, series in sample(name).counters.items()}
    assert counters == {FINISHED: 321, GENERATED_TOKENS: 20481, PROMPT_TOKENS: 51234}


def test_one_nan_gauge_of_an_idle_server_costs_nothing_but_itself() -> None:
    name = "collector-sglang-0.5.23-idle.txt"
    assert b"} NaN" in (SAMPLES / name).read_bytes()
    reading = sample(name)
    assert (reading.running, reading.waiting, reading.kv_usage, reading.throughput) == (0, 0, 0, 0)


# -- the metrics page ----------------------------------------------------------------------------------------


def series(metric: str, **values: str) -> str:
    return f"sglang:{metric}" + "{" + ",".join(f'{key}="{value}"' for key, value in values.items()) + "}"


@pytest.mark.parametrize("rank", ["tp_rank", "pp_rank", "moe_ep_rank", "attn_cp_rank", "pid"])
def test_ranks_that_repeat_a_number_are_not_added(rank: str) -> None:
    text = "".join(
        series("num_running_reqs", dp_rank="0", **{rank: str(i)}) + f" {5 - i}\n" for i in range(3)
    )
    assert page(text).running == 5


def test_data_parallel_ranks_and_engine_types_are_added() -> None:
    text = "".join(
        series("num_running_reqs", dp_rank=str(dp), engine_type=kind, tp_rank=str(dp)) + " 2\n"
        for dp in range(3)
        for kind in ("prefill", "decode")
    )
    assert page(text).running == 12


def test_of_priority_series_only_the_total_counts() -> None:
    text = "".join(
        series("num_running_reqs", priority=priority) + f" {value}\n"
        for priority, value in (("1", 6), ("", 7), ("10", 1))
    )
    assert page(text).running == 7


def test_priority_series_without_a_total_are_added() -> None:
    text = (
        series("num_running_reqs", priority="1") + " 6\n" + series("num_running_reqs", priority="2") + " 1\n"
    )
    assert page(text).running == 7


def test_queues_of_disaggregated_serving_wait_too() -> None:
    text = "".join(
        f"sglang:{name} {value}\n"
        for name, value in (
            ("num_queue_reqs", 1),
            ("num_grammar_queue_reqs", 2),
            ("num_prefill_bootstrap_queue_reqs", 4),
            ("num_prefill_prealloc_queue_reqs", 4),  # the older name of the one above
            ("num_decode_prealloc_queue_reqs", 8),
            ("num_decode_transfer_queue_reqs", 16),
            ("num_prefill_inflight_queue_reqs", 100),  # computed already
            ("num_retracted_reqs", 100),  # in the main queue already
        )
    )
    assert page(text).waiting == 31
    assert page(text.replace("num_prefill_bootstrap_queue_reqs", "x")).waiting == 31


def test_a_broken_queue_makes_waiting_unknown_and_nothing_else() -> None:
    reading = page("sglang:num_running_reqs 3\nsglang:num_queue_reqs 1\nsglang:num_grammar_queue_reqs NaN\n")
    assert (reading.running, reading.waiting) == (3, None)
    assert "sglang:num_grammar_queue_reqs is nan" in " ".join(reading.problems)


def test_other_queues_alone_are_no_empty_main_queue() -> None:
    assert page("sglang:num_running_reqs 3\nsglang:num_grammar_queue_reqs 0\n").waiting is None


@pytest.mark.parametrize("prefix", ["sglang:", "sglang_"])
def test_both_prefixes_are_read(prefix: str) -> None:
    reading = page(f"{prefix}num_running_reqs 3\n{prefix}num_queue_reqs 2\n{prefix}token_usage 0.5\n")
    assert (reading.running, reading.waiting, reading.kv_usage) == (3, 2, 0.5)


def test_the_kv_usage_is_that_of_the_full_pool_and_weighted_by_capacity() -> None:
    text = "".join(
        series(metric, dp_rank=rank) + f" {value}\n"
        for metric, rank, value in (
            ("token_usage", "0", 0.9),
            ("token_usage", "1", 0.9),
            ("full_token_usage", "0", 0.2),
            ("full_token_usage", "1", 0.8),
        )
    )
    assert page(text).kv_usage == pytest.approx(0.5)
    text += series("max_total_num_tokens", dp_rank="0") + " 300\n"
    assert page(text).kv_usage == pytest.approx(0.5)  # one capacity is unknown: no weights
    text += series("max_total_num_tokens", dp_rank="1") + " 100\n"
    assert page(text).kv_usage == pytest.approx(0.35)


@pytest.mark.parametrize("value", ["NaN", "-0.5", "87.5", "+Inf"])
def test_an_odd_share_makes_only_the_kv_usage_unknown(value: str) -> None:
    reading = page(f"sglang:num_running_reqs 3\nsglang:num_queue_reqs 2\nsglang:token_usage {value}\n")
    assert (reading.running, reading.waiting, reading.kv_usage) == (3, 2, None)
    assert f"sglang:token_usage is {float(value)!r}" in " ".join(reading.problems)


def test_a_throughput_of_zero_while_requests_run_is_unknown() -> None:
    assert page("sglang:num_running_reqs 3\nsglang:gen_throughput 0\n").throughput is None
    assert page("sglang:num_running_reqs 0\nsglang:gen_throughput 0\n").throughput == 0


def test_a_page_without_any_sglang_line_is_unknown_with_the_reason() -> None:
    (problem,) = page("python_info 1\n").problems
    assert "--enable-metrics" in problem


# -- the load endpoints --------------------------------------------------------------------------------------


def test_loads_give_every_field_at_once() -> None:
    reading = sample("sglang-0.5.23-v1-loads.json")
    assert (reading.queued_tokens, reading.slots, reading.problems) == (3200, 512, ())


def test_loads_add_up_over_ranks_and_weight_the_kv_usage() -> None:
    reading = loads(
        entry(), entry(dp_rank=1, num_used_tokens=900, num_total_tokens=900, max_total_num_tokens=1000)
    )
    assert (reading.running, reading.waiting, reading.queued_tokens) == (6, 4, 50)
    assert (reading.kv_usage, reading.kv_capacity, reading.slots, reading.throughput) == (0.5, 2000, 16, 100)


@pytest.mark.parametrize("value", [None, "7", True, -1, float("nan"), float("inf"), 10**400, [], {}])
@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("num_running_reqs", "running"),
        ("num_waiting_reqs", "waiting"),
        ("num_total_tokens", "queued_tokens"),
        ("max_total_num_tokens", "kv_capacity"),
        ("max_running_requests", "slots"),
        ("gen_throughput", "throughput"),
    ],
)
def test_an_odd_number_makes_only_its_field_unknown(key: str, field: str, value: object) -> None:
    reading = loads(entry(), entry(dp_rank=1, **{key: value}))
    fields = ("running", "waiting", "queued_tokens", "kv_capacity", "slots", "throughput")
    assert [name for name in fields if getattr(reading, name) is None] == [field]
    assert any(key in problem and problem.endswith(f"{field} is unknown") for problem in reading.problems)
    assert reading.kv_usage == pytest.approx(0.1)


def test_without_used_tokens_the_kv_usage_is_what_the_engine_says_it_is() -> None:
    first, second = entry(token_usage=0.2), entry(dp_rank=1, token_usage=0.4)
    del first["num_used_tokens"]
    reading = loads(first, second)
    assert reading.kv_usage == pytest.approx(0.3)
    assert reading.queued_tokens is None


def test_more_used_tokens_than_there_are_make_the_kv_usage_unknown() -> None:
    reading = loads(entry(num_used_tokens=1100, num_total_tokens=1150))
    assert (reading.running, reading.kv_usage) == (3, None)


def test_no_queued_tokens_while_requests_wait_are_unknown_and_no_empty_queue() -> None:
    assert loads(entry(num_total_tokens=100)).queued_tokens is None
    assert loads(entry(num_total_tokens=100, num_waiting_reqs=0)).queued_tokens == 0


def test_fewer_total_than_used_tokens_are_unknown() -> None:
    assert loads(entry(num_total_tokens=50)).queued_tokens is None


def test_entries_filled_with_zeros_are_no_idle_server() -> None:
    reading = loads(entry(), dict.fromkeys(entry(), 0) | {"dp_rank": 1})
    assert (reading.running, reading.waiting, reading.kv_usage, reading.kv_capacity) == (None,) * 4
    assert "not filled in" in reading.problems[0]


def test_no_entries_are_no_idle_server() -> None:
    reading = loads()
    assert (reading.running, reading.waiting) == (None, None)
    assert reading.problems


def test_entries_without_or_with_repeated_ranks_are_all_counted() -> None:
    assert loads(entry(), entry()).running == 6


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"loads": 5}',
        b'{"loads": [5]}',
        b'{"loads": [{}]}',
        b"[" * 100_000,
        b"\xff",
    ],
)
def test_what_is_not_the_load_list_is_not_recognised_and_reads_as_unknown(body: bytes) -> None:
    assert not Sglang().recognises(LOADS, body)
    reading = Sglang().read(LOADS, body)
    assert reading.running is None
    assert reading.problems


def test_get_load_tells_running_and_waiting_apart() -> None:
    reading = sample("sglang-0.5.6-get-load.json")
    assert (reading.running, reading.waiting, reading.inflight) == (10, 2, 12)


def test_get_load_with_more_waiting_than_requests_leaves_running_unknown() -> None:
    reading = Sglang().read(GET_LOAD, b'[{"dp_rank":0,"num_reqs":1,"num_waiting_reqs":2}]')
    assert (reading.running, reading.waiting, reading.inflight) == (None, 2, 1)


def test_get_load_without_waiting_still_tells_what_is_in_flight() -> None:
    reading = Sglang().read(GET_LOAD, b'[{"dp_rank":0,"num_reqs":4}]')
    assert (reading.running, reading.waiting, reading.inflight) == (None, None, 4)


@pytest.mark.parametrize("count", [MAX_RANKS + 1, 400_000])
@pytest.mark.parametrize(
    ("path", "one", "start", "end"),
    [(LOADS, b'{"num_running_reqs":0}', b'{"loads":[', b"]}"), (GET_LOAD, b'{"num_reqs":0}', b"[", b"]")],
)
def test_more_ranks_than_any_engine_has_are_not_believed(
    count: int, path: str, one: bytes, start: bytes, end: bytes
) -> None:
    body = start + b",".join([one] * count) + end
    assert Sglang().recognises(path, body)
    read = Sglang().read(path, body)
    assert read == Reading(problems=read.problems)
    assert read.problems == (f"the JSON has more than {MAX_RANKS} ranks: nothing of it is believed",)


def test_an_answer_with_very_many_parts_is_not_even_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(body: bytes) -> object:
        raise AssertionError("parsed")

    monkeypatch.setattr("monitor.engines.sglang.json.loads", refuse)
    body = b'{"loads":[' + b"{}," * 1_000_000 + b'{"num_running_reqs":1}]}'
    assert Sglang().read(LOADS, body).running is None


def test_a_counter_of_more_series_than_any_engine_has_is_unknown() -> None:
    series = "".join(f'sglang:num_requests_total{{i="{number}"}} 1\n' for number in range(MAX_SERIES + 1))
    read = page("sglang:num_running_reqs 1\n" + series)
    assert FINISHED not in read.counters
    assert any(f"more than {MAX_SERIES}" in problem for problem in read.problems)
