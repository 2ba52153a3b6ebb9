"""The monitor as a process, polling real servers into a real table."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from monitor import daemon
from monitor import service as service_module
from monitor.clock import SystemClock
from monitor.config import InstanceConfig, load_config
from monitor.daemon import Daemon, open_table
from monitor.sd_notify import Notifier
from monitor.service import Service
from score_table.errors import (
    MonitorRunning,
    TableCreateFailed,
    TableError,
    TableIncompatible,
    TableNoSpace,
    TablePermission,
    TableUntrusted,
)
from score_table.lane import Lane
from score_table.reader import TableReader
from tests.tables import opened
from tests.unit.monitor.daemon_rig import START_S, Engine, Silence, Start, engines
from tests.unit.monitor.rig import config
from tests.waiting import wait_until, wait_until_async


def test_what_engines_say_is_in_the_table(monitor: Start) -> None:
    with engines(2) as (first, second):
        first.says(num_requests_running=6, num_requests_waiting=3, kv_cache_usage_perc=0.25)
        running = monitor({"one": first.url, "two": second.url})
        running.start()
        one = running.wait_for("one", state="up")
        running.wait_for("two", state="up")
        assert (one.engine, one.url) == ("vllm", first.url)
        assert (one.inflight, one.running, one.waiting, one.kv_usage) == (9.0, 6.0, 3.0, 0.25)
        assert (one.own, one.others, one.estimated) == (0.0, 9.0, False)
        # n + 1, and 5 k/(1-k) for the polled usage and 2 * 220 tokens of 64,000 for each that waited.
        one = running.wait_for("one", score=pytest.approx(10 + 5 * 0.27063 / 0.72937, abs=0.01))
        assert one.age_s is not None
        assert 0 <= one.age_s < START_S
        first.says(num_requests_waiting=0)
        running.wait_for("one", inflight=6.0)


def test_the_first_tick_does_not_wait_for_any_poll(monitor: Start, tmp_path: Path) -> None:
    with engines(1) as (engine,), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(START_S)
        engine.answering.clear()
        running = monitor({"one": engine.url})
        running.start(NOTIFY_SOCKET=str(tmp_path / "notify"), WATCHDOG_USEC="200000")
        assert running.wait_for("one", state="new").score == 1.0
        assert manager.recv(200) == b"READY=1"
        assert manager.recv(200) == b"WATCHDOG=1"
        running.signal(signal.SIGTERM)
        while (message := manager.recv(200)) != b"STOPPING=1":
            assert message == b"WATCHDOG=1" or message.startswith(b"STATUS=")
        assert running.ended() == 0


def test_sigterm_leaves_the_table_stopped(monitor: Start) -> None:
    with engines(1) as (engine,):
        running = monitor({"one": engine.url})
        running.start()
        running.wait_for("one", state="up")
        running.signal(signal.SIGTERM)
        assert running.ended() == 0
        facts = running.snapshot()
        assert (facts.state, facts.degraded) == ("stopped", "outstanding")
        assert [each.id for each in facts.instances] == ["one"]


def test_a_killed_monitor_is_followed_by_one_that_adopts_its_table(monitor: Start) -> None:
    with engines(2) as (first, second):
        first.says(num_requests_running=20)
        running = monitor({"one": first.url, "two": second.url})
        running.start()
        running.wait_for("one", others=20.0)
        inode = os.stat(f"/dev/shm{running.table}").st_ino
        running.signal(signal.SIGKILL)
        running.ended()
        for engine in (first, second):
            engine.answering.clear()
        running.start()
        assert os.stat(f"/dev/shm{running.table}").st_ino == inode
        # No poll has answered yet: this is what the killed one left.
        one = running.wait_for("one", state="new")
        assert (one.slot, one.generation) == (0, 1)
        assert one.others == pytest.approx(20.0, abs=1.0)
        running.wait_for_log('"adopted": true')


def test_a_second_monitor_ends_and_names_the_first(monitor: Start) -> None:
    with engines(1) as (engine,):
        first, second = monitor({"one": engine.url}), monitor({"one": engine.url})
        first.start()
        second.spawn()
        assert second.ended() == os.EX_TEMPFAIL
        assert f"another monitor (pid {first.pid}) already writes table {first.table}" in second.log()
        assert first.ready()


def test_an_odd_value_makes_its_field_unknown_and_nothing_else(monitor: Start) -> None:
    fields = {
        "num_requests_running": "running",
        "num_requests_waiting": "waiting",
        "kv_cache_usage_perc": "kv_usage",
    }
    good = {"num_requests_running": 4, "num_requests_waiting": 2, "kv_cache_usage_perc": 0.5}
    cases = {
        f"{family} is {odd}": (family, odd)
        for family in fields
        for odd in ("NaN", "+Inf", "-Inf", "-1", "1e300", None)
    }
    with engines(len(cases)) as listed:
        for engine, (family, odd) in zip(listed, cases.values(), strict=True):
            engine.says(**{**good, family: odd})
        running = monitor(dict(zip(cases, (engine.url for engine in listed), strict=True)), slots=32)
        running.start()
        for name, (family, _) in cases.items():
            field = fields[family]
            facts = running.wait_for(name, state="up")
            expected: dict[str, float | None] = {"running": 4.0, "waiting": 2.0, "kv_usage": 0.5, field: None}
            assert {each: getattr(facts, each) for each in expected} == expected
            assert facts.inflight == (6.0 if field == "kv_usage" else None)
            numbers = (facts.score, facts.own, facts.others)
            assert all(number is not None and math.isfinite(number) for number in numbers)


def test_a_refused_instance_is_unreachable_and_comes_back(monitor: Start) -> None:
    with engines(2) as listed:
        listed[0].says(num_requests_running=2)
        running = monitor({"one": listed[0].url, "two": listed[1].url})
        running.start()
        running.wait_for("one", state="up")
        listed[0].close()
        one = running.wait_for("one", state="unreachable")
        assert (one.mark, one.score) == ("unreachable", None)
        assert running.wait_for("two").mark == ""
        listed[0] = Engine(listed[0].port)
        listed[0].says(num_requests_running=7)
        one = running.wait_for("one", state="up", inflight=7.0)
        assert one.mark == ""


def test_a_hanging_instance_is_stale_and_the_others_are_polled_on(monitor: Start) -> None:
    with engines(2) as (slow, well):
        running = monitor({"slow": slow.url, "well": well.url}, timeout=0.2, staleness=0.5)
        running.start()
        running.wait_for("slow", state="up")
        slow.answering.clear()
        assert running.wait_for("slow", state="stale").mark == ""
        polls = well.polls
        wait_until(lambda: well.polls > polls + 5, START_S, "polls of the other one")
        slow.answering.set()
        running.wait_for("slow", state="up")


#: ``loadboard`` where look-ups of names with "hang" in them never end.
_HANGING_NAMES = """
import socket, sys, threading
from loadboard.cli import main

real = socket.getaddrinfo

def look_up(host, *args, **kwargs):
    if b"hang" in (host if isinstance(host, bytes) else host.encode()):
        threading.Event().wait()
    return real(host, *args, **kwargs)

socket.getaddrinfo = look_up
sys.exit(main())
"""


def test_names_that_hang_keep_neither_an_instance_with_a_name_nor_a_reload_nor_the_end(
    monitor: Start,
) -> None:
    hanging = {f"h{number}": f"http://hang{number}.test:8000" for number in range(40)}
    with engines(1) as (engine,):
        running = monitor(hanging, slots=48, timeout=0.2)
        running.program = ["-c", _HANGING_NAMES]
        running.start()
        for name in hanging:
            running.wait_for_log(f"{name}: still new")
        assert "check this host's DNS" in running.log()
        running.configure({**hanging, "well": f"http://localhost:{engine.port}"})
        running.signal(signal.SIGHUP)
        running.wait_for("well", state="up")
        assert {each.state for each in running.snapshot().instances if each.id != "well"} == {"new"}
        running.signal(signal.SIGTERM)
        assert running.ended() == 0


def test_a_suspicion_makes_a_poll_at_once(monitor: Start) -> None:
    with engines(1) as (engine,):
        running = monitor({"one": engine.url}, interval=60.0, timeout=2.0, staleness=120.0)
        running.start()
        running.wait_for("one", state="up")
        engine.close()
        lane = Lane(running.table)
        lane.attach()
        opened(lane, "one", 10).fail(ConnectionRefusedError())
        running.wait_for("one", state="unreachable", held=1)
        lane.close()


def test_a_dead_workers_requests_are_taken_back(monitor: Start) -> None:
    worker = """
import sys, time
from score_table.lane import Lane
lane = Lane(sys.argv[1])
lane.attach()
seat = lane.seat("one", None, None)
kept = [lane.ledger.dispatch(None, seat, 100, True) for _ in range(3)]
print("counted", flush=True)
time.sleep(60)
"""
    with engines(1) as (engine,):
        running = monitor({"one": engine.url})
        running.start()
        process = subprocess.Popen([sys.executable, "-c", worker, running.table], stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"counted\n"
            running.wait_for("one", outstanding=3, own=3.0)
            process.kill()
            running.wait_for("one", outstanding=0, own=0.0)
            running.wait_for_log(f"its worker (pid {process.pid}) is gone, 3 requests")
        finally:
            process.kill()
            process.communicate()


def test_a_table_that_somebody_removed_is_made_anew(monitor: Start) -> None:
    with engines(1) as (engine,):
        running = monitor({"one": engine.url})
        running.start()
        inode = os.stat(f"/dev/shm{running.table}").st_ino
        os.unlink(f"/dev/shm{running.table}")
        wait_until(
            lambda: os.path.exists(f"/dev/shm{running.table}") and running.ready(), START_S, "a new table"
        )
        assert os.stat(f"/dev/shm{running.table}").st_ino != inode
        running.wait_for("one", state="up")


def test_the_log_is_json_lines_without_secrets(monitor: Start) -> None:
    with engines(1) as (engine,):
        running = monitor({"one": engine.url})
        running.configure({"one": engine.url}, extra='bearer_token = "s3cret-token"')
        running.start()
        running.wait_for("one", state="up")
        running.signal(signal.SIGTERM)
        assert running.ended() == 0
        lines = [json.loads(line) for line in running.log().splitlines()]
        assert {"started", "one: up, was new"} <= {line["event"] for line in lines}
        assert all({"event", "level", "logger", "timestamp"} <= set(line) for line in lines)
        assert "s3cret" not in running.log()
        assert "Bearer s3cret-token" in engine.headers[0]


# -- in this process


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (MonitorRunning("/t", "another monitor (pid 7)", 7), 75),
        (TablePermission("/t", "may not"), 77),
        (TableUntrusted("/t", "not yours"), 77),
        (TableNoSpace("/t", "full"), 73),
        (TableCreateFailed("/t", "no directory"), 73),
        (TableIncompatible("/t", "another layout"), 69),
    ],
)
def test_a_table_that_cannot_be_had_ends_it_with_the_code_of_the_reason(
    monkeypatch: pytest.MonkeyPatch, error: TableError, code: int
) -> None:
    def refuse(_: Any) -> Any:
        raise error

    monkeypatch.setattr(daemon, "open_table", refuse)
    loaded = config("a")

    async def run() -> int:
        return await Daemon(loaded, lambda: loaded, Silence(), notifier=Notifier()).run()

    assert asyncio.run(run()) == code


def test_a_missing_directory_is_a_table_that_cannot_be_created(monitor: Start, tmp_path: Path) -> None:
    running = monitor({"one": "http://127.0.0.1:1"})
    running.table = str(tmp_path / "nowhere" / "table")
    running.spawn()
    assert running.ended() == os.EX_CANTCREAT
    assert "no directory" in running.log()


def test_a_failing_tick_is_survived_and_stores_no_heartbeat(
    table_name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loaded = config("a", table=table_name, slots=16, interval=60.0, staleness=100.0)

    async def run() -> None:
        table = open_table(loaded)
        service = Service(loaded, table, SystemClock(), Notifier())
        await service.start()
        beat = asyncio.create_task(service.beat())
        with TableReader.open(table_name) as reader:
            seen = reader.snapshot().ticks
            await wait_until_async(lambda: reader.snapshot().ticks > seen, START_S, "a tick")

            def broken() -> Any:
                raise RuntimeError("made up")

            with monkeypatch.context() as patch, caplog.at_level(logging.ERROR):
                patch.setattr(table, "naturals", broken)
                seen = reader.snapshot().ticks
                await wait_until_async(lambda: service.failed_ticks > 5, START_S, "failing ticks")
                assert reader.snapshot().ticks == seen
            await wait_until_async(lambda: reader.snapshot().ticks > seen, START_S, "ticks to go on")
        # Not a line for each of them.
        assert len([record for record in caplog.records if "tick failed" in record.message]) == 1
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)
        await service.aclose()
        table.close()

    asyncio.run(run())


class _Stalling(SystemClock):
    """A clock that can be put forward, as if the process had not run meanwhile."""

    ahead_ns = 0

    def mono_ns(self) -> int:
        return super().mono_ns() + self.ahead_ns


def test_missed_ticks_are_left_out_and_not_made_up_for(table_name: str) -> None:
    loaded = config("a", table=table_name, slots=16, tick=0.05, interval=60.0, staleness=100.0)
    clock = _Stalling()

    async def run() -> None:
        table = open_table(loaded)
        service = Service(loaded, table, clock, Notifier())
        await service.start()
        beat = asyncio.create_task(service.beat())
        with TableReader.open(table_name) as reader:
            clock.ahead_ns = 60 * 10**9
            seen = reader.snapshot().ticks
            await wait_until_async(lambda: reader.snapshot().ticks >= seen + 3, START_S, "ticks")
            # 1200 grid points passed.
            assert reader.snapshot().ticks < seen + 100
        beat.cancel()
        await asyncio.gather(beat, return_exceptions=True)
        await service.aclose()
        table.close()

    asyncio.run(run())


class _Told(Notifier):
    """Keeps what the service manager would be told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def status(self, text: str) -> None:
        self.told.append(text)


def test_the_status_line_counts_the_states_and_comes_when_they_change(
    table_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "CHORES_S", 0.01)
    notifier = _Told()

    async def run(listed: list[Engine]) -> None:
        loaded = load_config(
            None,
            {"table": table_name, "slots": "16", "interval": "0.05"},
            {},
            [f"i{number}={listed[number % 2].url}" for number in range(16)],
        )
        table = open_table(loaded)
        service = Service(loaded, table, SystemClock(), notifier)
        await service.start()
        tasks = [asyncio.create_task(run) for run in (service.beat(), service.look_after())]

        async def told(text: str) -> None:
            await wait_until_async(lambda: notifier.told[-1:] == [text], START_S, text)

        await told("16 instances: 16 up")
        listed[1].close()
        listed[1:] = []
        await told("16 instances: 8 up, 8 unreachable")
        late = InstanceConfig(id="late", url="http://late.test")
        await service.configure(loaded.model_copy(update={"instances": (*loaded.instances, late)}))
        await told("17 instances: 8 up, 8 unreachable, 1 not admitted")
        assert len(notifier.told) == len({*notifier.told})
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await service.aclose()
        table.close()

    with engines(2) as listed:
        asyncio.run(run(listed))
