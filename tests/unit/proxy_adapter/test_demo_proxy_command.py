"""``loadboard proxy``: what its flags come to, and real processes with real strategies."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from loadboard import proxy as command
from proxy_adapter.demo_proxy.serve import check_address
from proxy_adapter.demo_proxy.settings import ProxySettings
from score_table.identity import Identity, Prices
from score_table.writer import TableWriter
from tests.unit.proxy_adapter.demo_proxy_rig import answer_ok, serving
from tests.waiting import wait_until, wait_until_async

MAIN = (
    "import argparse, sys; from loadboard import proxy; parser = argparse.ArgumentParser();"
    "proxy.add_parser(parser.add_subparsers()); args = parser.parse_args(['proxy', *sys.argv[1:]]);"
    "sys.exit(args.run(args))"
)


def parsed(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["proxy", *flags])


def settings(*flags: str) -> ProxySettings:
    return command.settings_from(parsed(*flags))


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PROXY_INSTANCE_STRATEGY", "PROXY_TAG_STRATEGIES", "LOADBOARD_TABLE"):
        monkeypatch.delenv(name, raising=False)


def test_the_strategy_is_that_of_the_flag_then_of_the_variable_then_round_robin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert settings().strategy == "round_robin"
    monkeypatch.setenv("PROXY_INSTANCE_STRATEGY", "P2C")
    assert settings().strategy == "power_of_two"
    assert settings("--strategy", " Least-Load ").strategy == "least_load"
    monkeypatch.setenv("PROXY_INSTANCE_STRATEGY", "")
    assert settings().strategy == "round_robin"


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_an_unknown_strategy_is_a_usage_error_that_lists_the_names(
    by: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_INSTANCE_STRATEGY", "lest_load")
    args = parsed("--strategy", "lest_load") if by == "flag" else parsed()
    assert args.run(args) == 2
    said = capsys.readouterr().err
    assert said.startswith("unknown instance strategy: lest_load\n")
    for name in ("round_robin", "least_load", "power_of_two", "p2c", "ll", "rr"):
        assert name in said


def test_strategies_by_tag_are_those_of_the_flag_then_of_the_variable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert settings().pools == ""
    monkeypatch.setenv("PROXY_TAG_STRATEGIES", "role=decode:p2c")
    assert settings().pools == "role=decode:power_of_two"
    assert settings("--tag-strategies", "role=prefill: LL, b=1+a=2:rr").pools == (
        "role=prefill:least_load,a=2+b=1:round_robin"
    )
    assert settings("--tag-strategies", "").pools == ""
    assert ProxySettings.from_json(settings().to_json()) == settings()


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_a_malformed_pool_is_a_usage_error_that_names_it(
    by: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROXY_TAG_STRATEGIES", "role=decode:fastest")
    args = parsed("--tag-strategies", "role=decode:fastest") if by == "flag" else parsed()
    assert args.run(args) == 2
    said_by = "--tag-strategies" if by == "flag" else "PROXY_TAG_STRATEGIES"
    assert capsys.readouterr().err == (f"{said_by}: pool 'role=decode': unknown instance strategy: fastest\n")


def test_the_table_is_that_of_the_flag_then_of_the_variable_then_of_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "loadboard.toml"
    file.write_text('table = "/of-file"\n[[instances]]\nurl = "http://h:1"\n')
    assert settings().table == "/loadboard"
    assert settings("--config", str(file)).table == "/of-file"
    monkeypatch.setenv("LOADBOARD_TABLE", "/of-variable")
    assert settings("--config", str(file)).table == "/of-variable"
    assert settings("--config", str(file), "--table", "/of-flag").table == "/of-flag"
    assert settings("--config", str(file), "--table", "none").table is None


def test_the_instances_are_those_of_the_flags_then_of_the_file_then_of_the_table(tmp_path: Path) -> None:
    file = tmp_path / "loadboard.toml"
    file.write_text('[[instances]]\nurl = "http://h:1"\n[[instances]]\nid = "b"\nurl = "http://h:2"\n')
    assert settings().instances == ()
    assert settings("--config", str(file)).instances == (("h:1", "http://h:1"), ("b", "http://h:2"))
    flags = ("--instance", "x=http://h:3", "--instance", "http://h:4")
    assert settings("--config", str(file), *flags).instances == (("x", "http://h:3"), ("h:4", "http://h:4"))


def test_the_other_options_reach_the_settings() -> None:
    made = settings("--max-body-bytes", "5", "--upstream-timeout", "2.5")
    assert (made.max_body_bytes, made.upstream_timeout_s) == (5, 2.5)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--table", "none"], "use --instance or --config"),
        (["--table", "loadboard"], "write /loadboard"),
        (["--instance", "h:1"], "must start with http"),
        (["--instance", "a=http://h:1", "--instance", "a=http://h:2"], "'a' is used twice"),
    ],
)
def test_a_mistake_is_a_usage_error(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    args = parsed(*flags)
    assert args.run(args) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [["--port", "70000"], ["--workers", "0"], ["--upstream-timeout", "nan"], ["--graceful-timeout", "-1"]],
)
def test_a_number_out_of_range_is_a_usage_error(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parsed(*flags)
    assert caught.value.code == 2
    assert "is not a" in capsys.readouterr().err


def test_a_bad_file_is_a_configuration_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "loadboard.toml"
    file.write_text("tabel = 1\n")
    args = parsed("--config", str(file))
    assert args.run(args) == 78
    assert "tabel" in capsys.readouterr().err


def test_a_missing_package_is_named_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    args = parsed()
    assert args.run(args) == 1
    assert capsys.readouterr().err == (
        "loadboard proxy needs uvicorn: install loadboard with its extra, in the source tree: "
        "pip install '.[proxy]'\n"
    )


@contextlib.contextmanager
def started(log: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], str]]]:
    """The command in a process of its own; its log is in a file."""
    with log.open("wb") as stream:
        process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", MAIN, "--port", "0", *flags],
            stderr=stream,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
    try:
        yield process, log.read_text
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def address(said: str) -> str:
    found = re.search(r"running on (http://\S+)", said)
    return found.group(1) if found else ""


@pytest.mark.parametrize(
    ("flag", "canonical", "workers"),
    [("rr", "round_robin", 1), ("Least-Load", "least_load", 2)],
)
def test_each_worker_logs_the_canonical_name_and_serves_before_there_is_a_table(
    flag: str, canonical: str, workers: int, tmp_path: Path, table_name: str
) -> None:
    async def main() -> None:
        async with serving(answer_ok) as server:
            flags = ["--strategy", flag, "--workers", str(workers), "--table", table_name]
            with started(tmp_path / "log", *flags, "--instance", f"one={server.url}") as (process, said):
                line = f"instance strategy: {canonical} (table: {table_name})"
                await wait_until_async(lambda: said().count(line) == workers, 30, "the strategy in the log")
                await wait_until_async(lambda: address(said()), 30, "the address in the log")
                async with httpx.AsyncClient(base_url=address(said()), trust_env=False) as client:
                    response = await client.post(
                        "/v1/completions",
                        json={"prompt": "private words"},
                        headers={"Authorization": "Bearer private-key"},
                    )
                    assert response.status_code == 200
                    assert response.headers["x-loadboard-instance"] == "one"
                    health = (await client.get("/health")).json()
                    assert health["strategy"] == canonical
                    assert health["table"]["table"] == table_name
                process.send_signal(signal.SIGTERM)
                await asyncio.to_thread(process.wait, 20)
                assert process.returncode == 0
                assert "private" not in said()
                assert "Traceback" not in said()

    asyncio.run(main())


def test_instances_that_appear_in_the_table_are_served(tmp_path: Path, table_name: str) -> None:
    async def main() -> None:
        async with serving(answer_ok) as server:
            with started(tmp_path / "log", "--strategy", "least_load", "--table", table_name) as (_, said):
                await wait_until_async(lambda: address(said()), 30, "the address in the log")
                async with httpx.AsyncClient(base_url=address(said()), trust_env=False) as client:
                    response = await client.post("/v1/completions", json={})
                    assert response.status_code == 503
                    assert "no instances yet" in response.json()["error"]["message"]
                    writer = TableWriter.open(table_name, slots=16, lanes=4)
                    try:
                        identity = Identity(
                            id="one", url=server.url, tags={}, generation=1, prices=Prices(1024.0, 0.0, 0.0)
                        )
                        writer.assign(0, identity)
                        row = np.zeros(1, np.int32)
                        writer.publish(row, row, time.monotonic_ns())
                        await wait_until_async(lambda: f"{table_name}: one" in said(), 20, "the instances")
                        await wait_until_async(
                            lambda: f"table {table_name} is there now" in said(), 20, "the lane"
                        )
                        response = await client.post("/v1/completions", json={})
                        assert response.headers["x-loadboard-instance"] == "one"
                        await wait_until_async(lambda: writer.naturals().ended[0] == 1, 20, "the count")
                        assert writer.naturals().dispatched[0] == 1
                        assert writer.naturals().outstanding[0] == 0
                    finally:
                        writer.close()

    asyncio.run(main())


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_in_use_is_told_in_one_line_before_anything_starts(
    host: str, workers: int, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        flags = ["--table", "none", "--instance", "http://127.0.0.1:9", "--port", str(port)]
        with started(tmp_path / "log", *flags, "--host", host, "--workers", str(workers)) as (process, said):
            assert process.wait(30) == 1
            assert said() == f"port {port} is in use: choose another with --port\n"


def test_an_address_that_is_not_of_this_machine_is_told_in_one_line(tmp_path: Path) -> None:
    flags = ["--table", "none", "--instance", "http://127.0.0.1:9", "--host", "192.0.2.1", "--port", "8000"]
    with started(tmp_path / "log", *flags) as (process, said):
        assert process.wait(30) == 1
        assert said() == "cannot listen on 192.0.2.1 port 8000: Cannot assign requested address\n"


def test_a_port_that_was_in_use_a_moment_ago_is_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            accepted.close()  # first, so that the port is left in TIME_WAIT
            assert client.recv(1) == b""
    check_address("127.0.0.1", port)


def test_a_stop_that_is_asked_for_during_the_start_is_no_failure(tmp_path: Path) -> None:
    with started(tmp_path / "log", "--table", "none", "--instance", "http://127.0.0.1:9") as (process, said):
        wait_until(lambda: "Started server process" in said(), 30, "the start")
        process.terminate()
        assert process.wait(20) == 0


def test_each_option_stands_in_the_documentation_with_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "demo-proxy.md").read_text()
    for name, value in vars(parsed()).items():
        if name == "run":
            continue
        rows = [
            line
            for line in page.splitlines()
            if line.startswith("|") and f"`--{name.replace('_', '-')}`" in line
        ]
        assert rows, f"{name} is not documented"
        if isinstance(value, (int, float, str)):
            assert f"{value:g}" in rows[0] if isinstance(value, float) else str(value) in rows[0], rows[0]
