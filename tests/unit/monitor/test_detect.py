"""Engines are told by the names in their answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from monitor.engines import ENGINES
from monitor.engines.detect import DETECTION_PATHS, detect, engine_named

SAMPLES = Path(__file__).parents[2] / "data" / "samples"


def found(path: str, body: bytes) -> str | None:
    engine = detect(path, body)
    return None if engine is None else engine.name


@pytest.mark.parametrize("name", sorted(path.name for path in SAMPLES.glob("*.txt")))
def test_the_engine_of_every_sample_page_is_found(name: str) -> None:
    expected = "sglang" if "sglang" in name else None if "disable-log-stats" in name else "vllm"
    assert found("/metrics", (SAMPLES / name).read_bytes()) == expected


def test_sglang_is_found_by_its_load_endpoints() -> None:
    assert found("/v1/loads?include=core", (SAMPLES / "sglang-0.5.23-v1-loads.json").read_bytes()) == "sglang"
    assert found("/get_load", (SAMPLES / "sglang-0.5.6-get-load.json").read_bytes()) == "sglang"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"python_info 1\n",
        b"llamacpp:requests_processing 1\n",
        b'{"error": "vllm:num_requests_running"}',
        b"<html>vllm:x</html>",
        b'up{job="vllm:x"} 1\nray_vllm_num_requests_running 1\n',
        b'{"load": 5}',
        b"\x00\xff",
    ],
)
def test_other_answers_are_no_engine(body: bytes) -> None:
    assert found("/metrics", body) is None


def test_detection_asks_only_what_some_engine_answers_and_the_metrics_page_first() -> None:
    assert DETECTION_PATHS[0] == "/metrics"
    assert set(DETECTION_PATHS) <= {path for engine in ENGINES for path in engine.endpoints}


def test_an_engine_is_had_by_its_name() -> None:
    assert [engine_named(engine.name) for engine in ENGINES] == list(ENGINES)


def test_an_unknown_engine_name_is_refused_with_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="unknown engine: tgi; known are auto, vllm, sglang"):
        engine_named("tgi")
