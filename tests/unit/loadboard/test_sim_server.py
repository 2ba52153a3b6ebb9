"""The simulated engine over HTTP: its answers, its metrics page, and what happens when clients go away."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadboard.sim import exposition, server
from loadboard.sim.live import LiveEngine
from loadboard.sim.model import EngineModel, EngineParameters, Gauges
from tests.waiting import wait_until, wait_until_async

FAST = EngineParameters(slots=8, kv_capacity=20_000, speed=200.0)


@asynccontextmanager
async def served(
    parameters: EngineParameters, *, stream_interval: int = 1
) -> AsyncIterator[httpx.AsyncClient]:
    listener = socket.create_server(("127.0.0.1", 0))
    service = server.create_server(parameters, stream_interval=stream_interval)
    serving = threading.Thread(target=service.run, kwargs={"sockets": [listener]})
    serving.start()
    try:
        await wait_until_async(lambda: service.started, what="the server's start")
        port = listener.getsockname()[1]
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=20.0
        ) as client:
            yield client
    finally:
        service.should_exit = True
        await asyncio.to_thread(serving.join)
        listener.close()


def on_engine(
    parameters: EngineParameters,
    scenario: Callable[[httpx.AsyncClient], Awaitable[None]],
    *,
    stream_interval: int = 1,
) -> None:
    async def main() -> None:
        async with served(parameters, stream_interval=stream_interval) as client:
            await scenario(client)

    asyncio.run(main())


async def values(client: httpx.AsyncClient) -> dict[str, float]:
    return values_on((await client.get("/metrics")).text)


def values_on(page: str) -> dict[str, float]:
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        if sample.labels.get("finished_reason", "length") == "length" and "reason" not in sample.labels
    }


async def events(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> list[str]:
    async with client.stream("POST", path, json=body | {"stream": True}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        return [line async for line in answer.aiter_lines() if line]


# -- answers --------------------------------------------------------------------------------------------


def test_a_completion_has_exactly_the_tokens_asked_for() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/completions", json={"prompt": "x" * 400, "max_tokens": 7})
        assert answer.status_code == 200
        assert answer.headers["server"] == "loadboard-sim"
        body = answer.json()
        assert body["model"] == "simulated"
        assert body["object"] == "text_completion"
        assert body["usage"] == {"prompt_tokens": 100, "completion_tokens": 7, "total_tokens": 107}
        assert body["choices"][0]["text"].split() == ["simulated"] * 7
        assert body["choices"][0]["finish_reason"] == "length"

    on_engine(FAST, scenario)


def test_a_chat_answers_with_a_message() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        messages = [
            {"role": "system", "content": "be short"},
            {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        ]
        answer = await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 3})
        body = answer.json()
        assert body["object"] == "chat.completion"
        assert body["choices"][0]["message"] == {"role": "assistant", "content": " simulated" * 3}
        assert body["usage"]["prompt_tokens"] == 4

    on_engine(FAST, scenario)


def test_a_stream_is_one_event_per_token_and_ends_with_done() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        lines = await events(client, "/v1/completions", {"prompt": "hi", "max_tokens": 5})
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert [chunk["choices"][0]["text"] for chunk in chunks] == [" simulated"] * 5
        reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
        assert reasons == [None, None, None, None, "length"]

    on_engine(FAST, scenario)


def test_a_longer_stream_interval_sends_the_first_token_alone_and_then_groups() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
        lines = await events(client, "/v1/chat/completions", body)
        deltas = [json.loads(line.removeprefix("data: "))["choices"][0]["delta"] for line in lines[:-1]]
        assert [len(delta["content"].split()) for delta in deltas] == [1, 4, 4, 1]
        assert [delta.get("role") for delta in deltas] == ["assistant", None, None, None]

    # Slow enough that a handler is always back before the next token.
    on_engine(EngineParameters(speed=5.0), scenario, stream_interval=4)


def test_a_stream_tells_its_usage_when_asked() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = {"prompt": [1, 2, 3], "max_tokens": 2, "stream_options": {"include_usage": True}}
        lines = await events(client, "/v1/completions", body)
        assert lines[-1] == "data: [DONE]"
        last = json.loads(lines[-2].removeprefix("data: "))
        assert last["choices"] == []
        assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}

    on_engine(FAST, scenario)


@pytest.mark.parametrize(
    ("path", "body", "status", "part"),
    [
        ("/v1/completions", b"{", 400, "not JSON"),
        ("/v1/completions", b"[]", 400, "JSON object"),
        ("/v1/completions", b"{}", 400, "prompt must be"),
        ("/v1/completions", b'{"prompt": ["a", "b"]}', 400, "prompt must be"),
        ("/v1/completions", b'{"prompt": "a", "max_tokens": 0}', 400, "max_tokens must be"),
        ("/v1/completions", b'{"prompt": "a", "max_tokens": true}', 400, "max_tokens must be"),
        ("/v1/completions", b'{"prompt": "a", "n": 2}', 400, "n must be 1"),
        (
            "/v1/completions",
            b'{"prompt": "a", "max_tokens": 30000}',
            400,
            "30001 tokens, the KV cache has 20000",
        ),
        ("/v1/completions", b'{"prompt": "a", "model": "other"}', 404, "`other` does not exist"),
        ("/v1/chat/completions", b'{"messages": []}', 400, "at least one message"),
        ("/v1/chat/completions", b'{"messages": [{"role": "user"}]}', 400, "needs a content"),
    ],
)
def test_a_wrong_request_is_answered_with_its_fault(path: str, body: bytes, status: int, part: str) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        answer = await client.post(path, content=body)
        assert answer.status_code == status
        error = answer.json()["error"]
        assert part in error["message"]
        assert error["code"] == status

    on_engine(FAST, scenario)


def test_models_and_health_answer() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        assert [model["id"] for model in (await client.get("/v1/models")).json()["data"]] == ["simulated"]
        assert (await client.get("/health")).status_code == 200

    on_engine(FAST, scenario)


# -- clients that go away -------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_away_frees_its_place_in_the_engine(stream: bool) -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        body = {"prompt": "hi", "max_tokens": 5000, "stream": stream}
        patient = asyncio.create_task(client.post("/v1/completions", json=body))

        with httpx.Client(base_url=client.base_url, trust_env=False) as viewer:

            async def until(count: int) -> None:
                def reached() -> bool:
                    return values_on(viewer.get("/metrics").text)["vllm:num_requests_running"] == count

                await asyncio.to_thread(wait_until, reached, 20.0, f"{count} running")

            await until(1)
            patient.cancel()
            await until(0)
        assert (await values(client))["vllm:request_success_total"] == 0

    on_engine(EngineParameters(slots=1, kv_capacity=20_000), scenario)


# -- metrics --------------------------------------------------------------------------------------------


def test_the_metrics_page_counts_what_happened() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        before = await values(client)
        assert before["vllm:num_requests_running"] == before["vllm:request_success_total"] == 0
        for _ in range(3):
            await client.post("/v1/completions", json={"prompt": "x" * 40, "max_tokens": 5})
        after = await values(client)
        assert after["vllm:request_success_total"] == 3
        assert after["vllm:generation_tokens_total"] == 15
        assert after["vllm:prompt_tokens_total"] == 30
        assert after["vllm:num_requests_running"] == after["vllm:kv_cache_usage_perc"] == 0
        assert after["process_start_time_seconds"] == before["process_start_time_seconds"] > 1e9

    on_engine(FAST, scenario)


def test_the_metrics_page_has_the_form_of_vllm() -> None:
    gauges = Gauges(4, 2, 500, 7, 8, 9, 1)
    text = exposition.page(gauges, kv_capacity=1000, started=1.5)
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert families["vllm:num_requests_running"].type == "gauge"
    assert families["vllm:request_success"].type == "counter"
    running = families["vllm:num_requests_running"].samples[0]
    assert running.labels == {"engine": "0", "model_name": "simulated"}
    assert running.value == 4
    assert families["vllm:num_requests_waiting"].samples[0].value == 2
    by_reason = families["vllm:num_requests_waiting_by_reason"].samples
    assert sum(sample.value for sample in by_reason) == 2
    assert families["vllm:kv_cache_usage_perc"].samples[0].value == 0.5
    config = families["vllm:cache_config_info"].samples[0].labels
    assert config["kv_cache_size_tokens"] == "1000"
    assert int(config["num_gpu_blocks"]) * int(config["block_size"]) <= 1000
    reasons = {s.labels["finished_reason"]: s.value for s in families["vllm:request_success"].samples}
    assert reasons == {"stop": 0, "length": 7, "abort": 0, "error": 0, "repetition": 0}


def test_only_the_path_with_the_slash_filters_by_name() -> None:
    async def scenario(client: httpx.AsyncClient) -> None:
        query = {"name[]": ["vllm:num_requests_running", "vllm:request_success_total"]}
        filtered = (await client.get("/metrics/", params=query)).text
        names = {line.split("{")[0] for line in filtered.splitlines() if not line.startswith("#")}
        assert names == set(query["name[]"])
        whole = (await client.get("/metrics", params=query)).text
        assert "vllm:kv_cache_usage_perc" in whole
        assert (await client.get("/metrics/", params={"name[]": ["none"]})).content == b""

    on_engine(FAST, scenario)


# -- real time ------------------------------------------------------------------------------------------


def test_a_long_stall_is_not_made_up_for() -> None:
    async def main() -> None:
        now = 100.0
        live = LiveEngine(EngineModel(), clock=lambda: now)
        steps = asyncio.create_task(live.run())
        with live.request(1, 1000, 1) as ticket:
            await asyncio.sleep(0)
            now += 50.0
            assert await ticket.take() == 1
            assert live.gauges().generated_tokens == 1
        steps.cancel()
        await asyncio.gather(steps, return_exceptions=True)

    asyncio.run(main())


# -- the process ----------------------------------------------------------------------------------------


@contextmanager
def process(*arguments: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-m", "loadboard.sim.server", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def test_the_process_says_where_it_listens_and_ends_on_sigterm(tmp_path: Path) -> None:
    with process("--port", "0", "--speed", "0.01", cwd=tmp_path) as child:
        assert child.stdout is not None
        line = child.stdout.readline()
        found = re.fullmatch(r"simulated engine on (http://127\.0\.0\.1:\d+)\n", line)
        assert found, line
        with httpx.Client(base_url=found[1], trust_env=False) as client:

            def answers() -> bool:
                return client.get("/health").headers["server"] == "loadboard-sim"

            wait_until(answers, timeout=10.0, what="the health endpoint")
            # A request under way does not keep it from ending.
            with client.stream("POST", "/v1/completions", json={"prompt": "hi", "stream": True}):
                os.kill(child.pid, signal.SIGTERM)
                wait_until(lambda: child.poll() is not None, timeout=10.0, what="the engine's end")
    assert child.returncode in (0, -signal.SIGTERM)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--slots", "0"], "slots must be"),
        (["--speed", "0"], "speed must be"),
        (["--stream-interval", "0"], "--stream-interval must be"),
    ],
)
def test_impossible_arguments_are_refused(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        server.main(arguments)
    assert part in capsys.readouterr().err


def test_a_taken_port_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert server.main(["--port", str(port)]) == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in capsys.readouterr().err
