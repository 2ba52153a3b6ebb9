"""Several worker processes, killed workers and killed monitors, on a real monitor's table."""

from __future__ import annotations

import logging
import subprocess
from collections import Counter

import pytest

from proxy_adapter import build_instance_strategy
from tests.stress.rig import (
    COMMAND,
    Monitor,
    Worker,
    idle_engines,
    look,
    monitor,
    outstanding,
    segments,
)
from tests.unit.proxy_adapter.instances import plain
from tests.waiting import wait_until

#: No second poll during a test.
SELDOM = ("--interval", "30", "--staleness", "60")


def _burst(table: str, picks: int) -> dict[str, int]:
    strategy = build_instance_strategy("least_load", table=table)
    instances = plain(8)
    guards = [strategy.dispatch(instances, prompt_tokens=100) for _ in range(picks)]
    _burst.guards = guards  # type: ignore[attr-defined]
    return dict(Counter(guard.instance.instance_id for guard in guards))


def test_a_burst_of_four_workers_between_two_polls_spreads_within_five_percent(table_name: str) -> None:
    with idle_engines(8) as engines, monitor(table_name, engines, *SELDOM):
        workers = [Worker(lambda: _burst(table_name, 250)) for _ in range(4)]
        try:
            total: Counter[str] = Counter()
            for worker in workers:
                total.update(worker.report())
            assert sum(total.values()) == 1000
            assert len(total) == 8
            assert all(119 <= count <= 131 for count in total.values()), total
            assert outstanding(table_name) == [total[f"i{n}"] for n in range(8)]
        finally:
            for worker in workers:
                worker.kill()
        wait_until(lambda: sum(outstanding(table_name)) == 0, what="the lanes of four dead workers")


def test_one_worker_alone_spreads_a_burst_exactly(table_name: str) -> None:
    with idle_engines(8) as engines, monitor(table_name, engines, *SELDOM):
        worker = Worker(lambda: _burst(table_name, 1000))
        try:
            counts = worker.report()
            assert all(124 <= count <= 126 for count in counts.values()), counts
        finally:
            worker.kill()


def test_a_killed_worker_s_counts_are_gone_within_a_second_and_others_stay(table_name: str) -> None:
    with idle_engines(8) as engines, monitor(table_name, engines):
        survivor = Worker(lambda: _burst(table_name, 7))
        kept = Counter(survivor.report())
        victim = Worker(lambda: _burst(table_name, 50))
        try:
            victim.report()
            assert sum(outstanding(table_name)) == 57
            victim.kill()
            wait_until(lambda: sum(outstanding(table_name)) == 7, timeout=1.0, what="the reclaim")
            assert outstanding(table_name) == [kept[f"i{n}"] for n in range(8)]
        finally:
            survivor.kill()
            victim.kill()


def test_a_killed_monitor_leaves_picks_on_outstanding_counts_and_its_return_is_noticed(
    table_name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "loadboard")
    with idle_engines(4) as engines:
        instances = plain(4)
        first = Monitor(table_name, engines)
        strategy = build_instance_strategy("least_load", table=table_name)
        try:
            first.wait_until_all_sampled(4)
            held = [strategy.dispatch(instances, prompt_tokens=0) for _ in range(4)]
            assert strategy.status()["degraded"] is None
            first.kill()
            guards = [strategy.dispatch(instances, prompt_tokens=0) for _ in range(40)]
            counts = Counter(guard.instance.instance_id for guard in guards)
            assert set(counts.values()) == {10}, "at once, and by what is outstanding"
            wait_until(lambda: strategy.status()["degraded"] == "outstanding", what="the degraded mode")
            counts = Counter(strategy.dispatch(instances).instance.instance_id for _ in range(40))
            assert set(counts) == {"i0", "i1", "i2", "i3"}
            wait_until(lambda: _said(caplog, "is silent") == 1, what="one log line")
            assert strategy.status()["degraded_picks"]["outstanding"] >= 40
            shown = subprocess.run(
                [COMMAND, "dump", "--table", table_name], capture_output=True, text=True, check=True
            ).stdout
            assert "DEGRADED (outstanding)" in shown
            assert "degraded: outstanding 40" in shown
            with monitor(table_name, engines):
                wait_until(lambda: strategy.status()["degraded"] is None, what="recovery")
                wait_until(lambda: _said(caplog, "is back") == 1, what="one log line")
                assert sum(outstanding(table_name)) == 44, "adopted with what is outstanding"
                del held, guards
                wait_until(lambda: sum(outstanding(table_name)) == 0, what="the releases")
        finally:
            strategy.close()
            first.stop()


def _said(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


def test_twenty_kills_and_restarts_leave_one_segment_and_a_reader_s_exit_removes_nothing(
    table_name: str,
) -> None:
    expected = {table_name[1:], table_name[1:] + ".lock"}
    with idle_engines(1) as engines:
        ticks = 0
        for _ in range(20):
            running = Monitor(table_name, engines)
            wait_until(
                lambda running=running: (
                    (now := look(table_name)) is not None  # type: ignore[misc]
                    and now.monitor_pid == running.process.pid
                    and now.degraded is None
                ),
                timeout=60,
                what="the restarted monitor",
            )
            running.kill()
            subprocess.run([COMMAND, "dump", "--table", table_name], capture_output=True, check=True)
            now = look(table_name)
            assert now is not None
            assert segments(table_name) == expected
            assert now.ticks >= ticks, "adopted, not made anew"
            ticks = now.ticks


def test_a_second_monitor_is_refused_with_status_75_and_the_holder_s_pid(table_name: str) -> None:
    with idle_engines(1) as engines, monitor(table_name, engines) as first:
        second = subprocess.run(
            [COMMAND, "run", "--table", table_name, "--instance", engines[0]],
            capture_output=True,
            text=True,
            check=False,
        )
        assert second.returncode == 75
        assert f"pid {first.process.pid}" in second.stdout + second.stderr


def test_a_stopped_table_is_removed_by_the_documented_command_only_then(table_name: str) -> None:
    def remove() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [COMMAND, "remove", "--table", table_name], capture_output=True, text=True, check=False
        )

    with idle_engines(1) as engines:
        with monitor(table_name, engines) as running:
            refused = remove()
            assert refused.returncode == 75
            assert f"pid {running.process.pid}" in refused.stderr
            worker = Worker(lambda: _burst(table_name, 1))
            worker.report()
        try:
            refused = remove()
            assert refused.returncode == 1
            assert "1 proxy worker" in refused.stderr
        finally:
            worker.kill()
        assert remove().returncode == 0
        assert segments(table_name) == set()
        assert remove().stdout.startswith("there is no table")
