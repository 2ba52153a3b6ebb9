"""A reload: what it changes, what it leaves, and that a failing one changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import pytest
from structlog.testing import capture_logs

from monitor import pollers
from monitor.clock import SystemClock
from monitor.config import ConfigError, MonitorConfig, options
from monitor.config.problems import Problem
from monitor.config.score_sections import OWN_MODES
from monitor.daemon import Daemon, keep_fixed, open_table
from monitor.fleet import Fleet
from monitor.membership import Membership
from monitor.pools import Rules
from monitor.scores.base import ScoreMode
from monitor.sd_notify import Notifier
from monitor.service import Service
from score_table.errors import TableError
from score_table.reader import TableReader
from tests.unit.monitor.daemon_rig import START_S, Silence, Start, engines
from tests.unit.monitor.rig import config
from tests.waiting import wait_until, wait_until_async


def test_a_reload_adds_and_removes_instances(monitor: Start) -> None:
    with engines(3) as (first, second, third):
        running = monitor({"one": first.url, "two": second.url})
        running.start()
        running.wait_for("two", state="up")
        running.configure({"two": second.url, "three": third.url})
        running.signal(signal.SIGHUP)
        running.wait_for_log("reload: instance one: removed")
        running.wait_for_log(f"reload: instance three: added, {third.url}")
        assert running.wait_for("three", state="up").slot == 2
        wait_until(lambda: running.instance("one") is None, what="the removal")
        assert running.wait_for("two").state == "up"
        polls = first.polls
        before = second.polls
        wait_until(lambda: second.polls > before + 5, START_S, "more polls of the one that stayed")
        assert first.polls <= polls + 1


def test_what_looks_like_a_mistake_is_noted_in_the_log_as_check_notes_it(monitor: Start) -> None:
    with engines(1) as (engine,):
        running = monitor({"one": f"{engine.url}/v1"})
        running.start()
        running.wait_for_log("ends in /v1, but the paths of requests begin with /v1 themselves: remove it")
        running.configure({"one": engine.url, "two": engine.url})
        running.signal(signal.SIGHUP)
        running.wait_for_log("is the url of instances[0] too")


def test_a_bad_reload_keeps_the_configuration_and_names_every_fault(monitor: Start) -> None:
    with engines(1) as (engine,):
        running = monitor({"one": engine.url})
        running.start()
        running.wait_for("one", state="up")
        running.configure({"one": engine.url}, interval=-1, kv_wait=3)
        running.signal(signal.SIGHUP)
        running.wait_for_log("configuration stays as it was")
        assert "interval" in running.log()
        assert "kv_wait" in running.log()
        engine.says(num_requests_running=5)
        running.wait_for("one", inflight=5.0)


def test_an_instance_drains_and_comes_back_by_reloads(monitor: Start) -> None:
    with engines(1) as (engine,):
        running = monitor({"one": engine.url})
        running.start()
        running.wait_for("one", state="up", mark="")
        for extra, mark in (("draining = true", "draining"), ("draining = false", "")):
            running.configure({"one": engine.url}, extra)
            running.signal(signal.SIGHUP)
            running.wait_for("one", state="up", mark=mark)
        assert running.instance("one").generation == 1


def test_pools_and_weights_follow_a_reload(monitor: Start) -> None:
    with engines(2) as (first, second):
        listed = {"one": first.url, "two": second.url}
        running = monitor(listed)
        running.start()
        running.wait_for("one", state="up", score=1.0)
        running.configure(listed, "weight = 0.5")
        running.signal(signal.SIGHUP)
        running.wait_for("one", score=2.0)
        extra = 'weight = 0.5\ntags = { role = "a" }\n[[pools]]\ntags = { role = "a" }\nscore = "inflight_kv"'
        running.configure(listed, extra)
        running.signal(signal.SIGHUP)
        running.wait_for("one", score=0.0, tags={"role": "a"})
        assert running.wait_for("two").score == 1.0


def test_what_only_a_restart_can_change_is_said(monitor: Start) -> None:
    with engines(1) as (engine,):
        running = monitor({"one": engine.url})
        running.start()
        running.configure({"one": engine.url}, slots=32, unknown="avoid")
        running.signal(signal.SIGHUP)
        running.wait_for_log("slots stays 16, 32 needs a restart")
        running.wait_for_log("configuration reloaded")
        assert running.snapshot().capacity == 16


def test_keep_fixed_takes_over_what_can_be_changed() -> None:
    running = config("a", slots=16, lanes=8, tick=0.02)
    kept = keep_fixed(running, config("a", "b", slots=32, lanes=8, tick=0.04))
    assert (kept.slots, kept.tick, len(kept.instances)) == (16, 0.04, 2)


def test_instances_that_a_reload_adds_beyond_the_slots_are_refused_and_the_others_stay(
    monitor: Start,
) -> None:
    with engines(1) as (engine,):
        names = [f"i{number}" for number in range(16)]
        running = monitor(dict.fromkeys(names, engine.url))
        running.start()
        running.wait_for("i15", state="up")
        # It fits the file, but the slots are those of the start.
        running.configure(dict.fromkeys([*names, "late"], engine.url), slots=32)
        running.signal(signal.SIGHUP)
        running.wait_for_log("slots stays 16, 32 needs a restart")
        running.wait_for_log("late: not admitted")
        running.wait_for_log("configuration reloaded")
        facts = running.snapshot()
        assert [each.id for each in facts.instances] == names
        assert running.ready()
        running.signal(signal.SIGTERM)
        assert running.ended() == 0
        running.start()
        assert running.wait_for("late", state="up").slot == 16


# -- every option


class _Still(SystemClock):
    """A clock that stands still."""

    def mono_ns(self) -> int:
        return 10**15


class _Polls:
    """Stands in for a poller: notes what it was made from and polls nothing."""

    made: list[_Polls] = []  # noqa: RUF012 - emptied by each test

    def __init__(self, *args: Any) -> None:
        _, self.target, _, self.schedule, self.fetcher, self.sink, self.limiter, _, self.timeout_s = args
        _Polls.made.append(self)

    async def run(self) -> None:
        await asyncio.Event().wait()


class InForce(NamedTuple):
    """What the parts of a monitor work by."""

    interval: float
    jitter: float
    timeout: float
    concurrency: int
    max_body_bytes: int
    staleness: float
    tick: float
    log_level: str
    mode: ScoreMode
    rules: Rules
    first_means: tuple[float, float]


class Watched:
    """A service whose parts tell what they were given last."""

    def __init__(self, patch: pytest.MonkeyPatch, loaded: MonitorConfig) -> None:
        self._patch = patch
        self._given: dict[str, Any] = {}
        _Polls.made = []
        patch.setattr(pollers, "Poller", _Polls)
        self._note(pollers, "Schedule", lambda interval, jitter, _: {"interval": interval, "jitter": jitter})
        self._note(pollers, "Fetcher", lambda most: {"max_body_bytes": most})
        self.log = Silence()
        self.log.level = loaded.log_level
        self.wanted: Callable[[], MonitorConfig] = lambda: loaded
        self.daemon = Daemon(loaded, lambda: self.wanted(), self.log, notifier=Notifier())
        self._table = open_table(loaded)
        self.service = Service(loaded, self._table, _Still(), Notifier())

    def _note(self, module: Any, name: str, told: Callable[..., dict[str, Any]]) -> None:
        real = getattr(module, name)

        def make(*args: Any) -> Any:
            self._given.update(told(*args))
            return real(*args)

        self._patch.setattr(module, name, make)

    async def reload(self, wanted: MonitorConfig) -> None:
        self.wanted = lambda: wanted
        await self.daemon.reload(self.service)

    async def in_force(self) -> InForce:
        latest = _Polls.made[-1]
        fleet: Fleet = latest.sink
        pool = fleet.pools.at(0)
        permits = 0
        while not latest.limiter.locked():
            await latest.limiter.acquire()
            permits += 1
        for _ in range(permits):
            latest.limiter.release()
        return InForce(
            timeout=latest.timeout_s,
            concurrency=permits,
            staleness=fleet.staleness_s,
            tick=await self._pace(),
            log_level=self.log.level,
            mode=pool.mode,
            rules=pool.rules,
            first_means=(pool.means.prompt_tokens, pool.means.generated_tokens),
            **self._given,
        )

    async def _pace(self) -> float:
        """Seconds from one tick to the next, as the service means to sleep them."""
        sleeps: list[float] = []

        async def sleep(seconds: float) -> None:
            sleeps.append(seconds)
            if len(sleeps) == 2:
                raise asyncio.CancelledError

        with self._patch.context() as patch, contextlib.suppress(asyncio.CancelledError):
            patch.setattr(asyncio, "sleep", sleep)
            await self.service.beat()
        return round(sleeps[1] - sleeps[0], 9)

    async def aclose(self) -> None:
        await self.service.aclose()
        self._table.close()


Scenario = Callable[[Watched], Awaitable[None]]


def watching(patch: pytest.MonkeyPatch, loaded: MonitorConfig, scenario: Scenario) -> None:
    async def main() -> None:
        watched = Watched(patch, loaded)
        await watched.service.start()
        try:
            await scenario(watched)
        finally:
            await watched.aclose()

    asyncio.run(main())


#: For each option another value, and which part of what is in force has to follow it.
CHANGES: dict[str, tuple[Any, str]] = {
    "interval": (0.5, "interval"),
    "timeout": (0.7, "timeout"),
    "jitter": (0.3, "jitter"),
    "staleness": (9.0, "staleness"),
    "tick": (0.05, "tick"),
    "concurrency": (3, "concurrency"),
    "max_body_bytes": (70_000, "max_body_bytes"),
    "score": ("inflight_kv", "mode"),
    "unknown": ("avoid", "rules"),
    "overload_waiting": (10, "rules"),
    "overload_kv": (0.9, "rules"),
    "log_level": ("debug", "log_level"),
    "token_aware.prefill_weight": (1.0, "mode"),
    "token_aware.kv_weight": (1.0, "mode"),
    "token_aware.kv_limit": (0.9, "mode"),
    "token_aware.slots_weight": (1.0, "mode"),
    "token_aware.prompt_tokens": (1000, "first_means"),
    "token_aware.generated_tokens": (1000, "first_means"),
    "token_aware.nominal_kv_capacity": (10_000, "rules"),
    "token_aware.speed_dead_band": (0.5, "rules"),
    "inflight_kv.lambda": (3.0, "mode"),
    "inflight_kv.kv_limit": (0.9, "mode"),
    "expected_wait.throughput": (900.0, "mode"),
    "expected_wait.request_tokens": (50.0, "mode"),
    "expected_wait.kv_weight": (1.0, "mode"),
    "expected_wait.kv_limit": (0.9, "mode"),
    "weighted_sum.prefill_weight": (2.0, "mode"),
    "weighted_sum.decode_weight": (0.2, "mode"),
    "weighted_sum.waiting_weight": (1.0, "mode"),
    "weighted_sum.backlog_weight": (0.0, "mode"),
    "weighted_sum.prefill_rate": (900.0, "mode"),
    "weighted_sum.qps_weight": (0.1, "mode"),
}


def test_every_reloadable_option_is_tried_here() -> None:
    assert set(CHANGES) == {option.key_path for option in options() if option.reloadable}


@pytest.mark.parametrize("key", CHANGES)
def test_a_reloadable_option_is_followed_by_what_works_by_it(
    table_name: str, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    value, part = CHANGES[key]
    section, dot, name = key.rpartition(".")
    common: dict[str, Any] = {"table": table_name, "slots": 16}
    if section in OWN_MODES:
        common["score"] = section
    changed = {section: {name: value}} if dot else {name: value}

    async def scenario(watched: Watched) -> None:
        before = await watched.in_force()
        await watched.reload(config("a", **common, **changed))
        after = await watched.in_force()
        assert getattr(after, part) != getattr(before, part)
        if key in InForce._fields:
            assert getattr(after, key) == value
        others = set(InForce._fields) - {part, "mode"}
        assert {each: getattr(after, each) for each in others} == {
            each: getattr(before, each) for each in others
        }

    watching(monkeypatch, config("a", **common), scenario)


# -- reloads that fail


def test_a_reload_that_breaks_halfway_is_taken_back(table_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    common: dict[str, Any] = {"table": table_name, "slots": 16}
    apply = Membership.apply
    failures = [RuntimeError("made up")]

    def breaks_once(membership: Membership, *args: Any) -> Any:
        if failures:
            raise failures.pop()
        return apply(membership, *args)

    monkeypatch.setattr(Membership, "apply", breaks_once)

    async def scenario(watched: Watched) -> None:
        before = await watched.in_force()
        wanted = config("a", **common, staleness=9.0, tick=0.05, score="inflight_kv", log_level="debug")
        await watched.reload(wanted)
        assert failures == []
        assert await watched.in_force() == before
        await watched.reload(wanted)
        after = await watched.in_force()
        assert (after.staleness, after.tick, after.log_level) == (9.0, 0.05, "debug")

    with capture_logs() as told:
        watching(monkeypatch, config("a", **common), scenario)
    assert any("going back to the configuration as it was" in line["event"] for line in told)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConfigError([Problem("interval", "is too short")]), "interval: is too short"),
        (RuntimeError("made up"), "the configuration stays as it was"),
    ],
)
def test_a_configuration_that_cannot_be_read_changes_nothing(
    table_name: str,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    reason: str,
) -> None:
    async def scenario(watched: Watched) -> None:
        before = await watched.in_force()

        def unreadable() -> MonitorConfig:
            raise error

        watched.wanted = unreadable
        await watched.daemon.reload(watched.service)
        assert await watched.in_force() == before

    with capture_logs() as told:
        watching(monkeypatch, config("a", table=table_name, slots=16), scenario)
    assert any(reason in line["event"] for line in told)
    assert "the configuration stays as it was" in told[-1]["event"]


def test_a_reload_that_meets_the_loss_of_the_table_is_made_up_for(table_name: str) -> None:
    common: dict[str, Any] = {"table": table_name, "slots": 16, "interval": 60.0, "staleness": 100.0}
    reading, go_on = threading.Event(), threading.Event()

    def read_slowly() -> MonitorConfig:
        reading.set()
        go_on.wait(START_S)
        return config("a", "b", **common)

    def ids() -> list[str]:
        with contextlib.suppress(TableError), TableReader.open(table_name) as reader:
            facts = reader.snapshot()
            return [each.id for each in facts.instances] if facts.state == "ready" else []
        return []

    async def main() -> None:
        monitor = Daemon(config("a", **common), read_slowly, Silence(), notifier=Notifier())
        running = asyncio.create_task(monitor.run())
        await wait_until_async(lambda: ids() == ["a"], START_S, "the table")
        os.kill(os.getpid(), signal.SIGHUP)
        await wait_until_async(reading.is_set, START_S, "the reload to begin")
        os.unlink(f"/dev/shm{table_name}")
        await wait_until_async(lambda: ids() == ["a"], START_S, "the new table")
        go_on.set()
        await wait_until_async(lambda: ids() == ["a", "b"], START_S, "the new configuration")
        os.kill(os.getpid(), signal.SIGTERM)
        assert await running == 0

    asyncio.run(main())
