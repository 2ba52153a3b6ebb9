"""The loop of one instance: what reaches the sink, what the others do not notice, what it survives."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest

from monitor.clock import SystemClock
from monitor.engines.probe import Prober
from monitor.polling.failure import FailureKind
from monitor.polling.fetch import Body, Fetcher, Target
from monitor.polling.poller import _READ_AT_ONCE, Getter, Poller, ProberLike
from monitor.polling.schedule import Schedule
from monitor.sample import Reading
from tests import servers
from tests.waiting import wait_until_async

FAST_S = 0.01
NEVER_S = 3600.0  # an interval that no test lives to see the second poll of

VLLM = b'vllm:num_requests_running{model_name="m"} 3\nvllm:num_requests_waiting{model_name="m"} 2\n'


class Sampled(NamedTuple):
    key: int
    reading: Reading
    engine: str
    boot_ns: int
    mono_ns: int


class Failed(NamedTuple):
    key: int
    kind: FailureKind
    reason: str
    mono_ns: int


@dataclass
class Notes:
    """A sink that writes everything down, and raises where a test wants it to."""

    samples: list[Sampled] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)
    breaks_for: int | None = None

    def sampled(self, key: int, reading: Reading, engine: str, boot_ns: int, mono_ns: int) -> None:
        self.samples.append(Sampled(key, reading, engine, boot_ns, mono_ns))
        if key == self.breaks_for:
            raise RuntimeError("a sink with a bug")

    def failed(self, key: int, kind: FailureKind, reason: str, mono_ns: int) -> None:
        self.failures.append(Failed(key, kind, reason, mono_ns))

    def of(self, key: int) -> int:
        return sum(1 for sample in self.samples if sample.key == key)

    def kinds(self) -> list[FailureKind]:
        return [failure.kind for failure in self.failures]


class OnePath:
    """A prober that takes any 200 for a reading and knows one path."""

    engine = "any"
    reason = "nothing in it"

    def __init__(self, path: str = "/load") -> None:
        self.path = path
        self.restarts = 0
        self.failures = 0
        self.statuses: list[int] = []

    def next_path(self) -> str:
        return self.path

    def answered(self, path: str, status: int, body: bytes) -> Reading | None:
        self.statuses.append(status)
        return Reading(running=float(len(body))) if status == 200 else None

    def failed(self, path: str) -> None:
        self.failures += 1

    def restarted(self) -> None:
        self.restarts += 1


@dataclass
class Fleet:
    """Pollers that share a fetcher and a limiter, as in the daemon; their keys are 0, 1, ..."""

    fetcher: Getter
    notes: Notes = field(default_factory=Notes)
    limiter: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(64))
    pollers: list[Poller] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def add(
        self,
        url: str,
        prober: ProberLike | None = None,
        *,
        interval_s: float = FAST_S,
        timeout_s: float = 5.0,
        cap_s: float = 30.0,
    ) -> Poller:
        key = len(self.pollers)
        poller = Poller(
            key,
            Target(f"gpu-{key}", url),
            prober or OnePath(),
            Schedule(interval_s, 0.1, random.Random(key), back_off_cap_s=cap_s, first_spread_s=0.0),
            self.fetcher,
            self.notes,
            self.limiter,
            SystemClock(),
            timeout_s,
        )
        self.pollers.append(poller)
        self.tasks.append(asyncio.ensure_future(poller.run()))
        return poller

    async def stop(self) -> None:
        for task in self.tasks:
            task.cancel()
        ends = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)


@contextlib.asynccontextmanager
async def fleet_of(fetcher: Getter | None = None) -> AsyncIterator[Fleet]:
    own = None if fetcher else Fetcher()
    fleet = Fleet(fetcher or own)  # type: ignore[arg-type]
    try:
        yield fleet
    finally:
        await fleet.stop()
        if own is not None:
            await own.aclose()


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run the test; no task and no descriptor may be left at its end."""

    async def whole() -> None:
        fds, tasks = servers.open_fds(), asyncio.all_tasks()
        await test()
        await wait_until_async(lambda: asyncio.all_tasks() <= tasks, what="all tasks to end")
        await wait_until_async(lambda: servers.open_fds() <= fds, what="all descriptors to be closed")

    asyncio.run(asyncio.wait_for(whole(), 60))


# What reaches the sink


def test_a_sample_carries_both_clocks_of_the_arrival_of_its_answer() -> None:
    async def test() -> None:
        async with servers.serving(servers.answer(b"abc")) as server, fleet_of() as fleet:
            clock = SystemClock()
            before = clock.boot_ns(), clock.mono_ns()
            fleet.add(server.url, interval_s=NEVER_S)
            await wait_until_async(lambda: fleet.notes.samples, what="a sample")
            after = clock.boot_ns(), clock.mono_ns()
            [sample] = fleet.notes.samples
            assert (sample.key, sample.engine, sample.reading) == (0, "any", Reading(running=3.0))
            assert before[0] <= sample.boot_ns <= after[0]
            assert before[1] <= sample.mono_ns <= after[1]

    run(test)


def test_an_instance_is_polled_again_and_again() -> None:
    async def test() -> None:
        async with servers.serving(servers.answer()) as server, fleet_of() as fleet:
            fleet.add(server.url)
            await wait_until_async(lambda: fleet.notes.of(0) >= 10, what="ten samples")
            assert server.connections == 1
            assert fleet.notes.failures == []

    run(test)


def test_the_engine_is_found_within_the_first_poll_although_a_path_is_absent() -> None:
    async def test() -> None:
        behaviour = servers.by_path({"/metrics": servers.answer(VLLM)})
        async with servers.serving(behaviour) as server, fleet_of() as fleet:
            fleet.add(server.url, Prober(), interval_s=NEVER_S)
            await wait_until_async(lambda: fleet.notes.samples or fleet.notes.failures, what="the poll")
            assert fleet.notes.failures == []
            assert fleet.notes.samples[0].engine == "vllm"
            assert fleet.notes.samples[0].reading.running == 3
            assert fleet.notes.samples[0].reading.waiting == 2

    run(test)


def test_a_large_answer_is_read_beside_the_event_loop() -> None:
    readers: dict[int, bool] = {}

    class Watching(OnePath):
        def answered(self, path: str, status: int, body: bytes) -> Reading | None:
            readers[len(body)] = threading.current_thread() is threading.main_thread()
            return super().answered(path, status, body)

    async def test() -> None:
        large = servers.answer(b"x" * (_READ_AT_ONCE + 1))
        behaviour = servers.one_after_another(servers.answer(b"abc"), large)
        async with servers.serving(behaviour) as server, fleet_of() as fleet:
            fleet.add(server.url, Watching())
            await wait_until_async(lambda: len(readers) == 2 and fleet.notes.of(0) >= 2, what="both answers")
            assert readers == {3: True, _READ_AT_ONCE + 1: False}
            assert fleet.notes.samples[1].reading.running == _READ_AT_ONCE + 1

    run(test)


def test_no_path_is_asked_twice_in_one_poll_of_an_instance_without_any() -> None:
    async def test() -> None:
        async with servers.serving(servers.answer(b"", 404)) as server, fleet_of() as fleet:
            fleet.add(server.url, Prober(), interval_s=NEVER_S)
            await wait_until_async(lambda: fleet.notes.failures, what="the poll")
            paths = [request.path for request in server.requests]
            assert len(paths) == len(set(paths)) >= 2
            [failure] = fleet.notes.failures
            assert failure.kind is FailureKind.UNUSABLE
            assert failure.reason.startswith(f"instance gpu-0: no load from {server.url}: ")
            assert "404" in failure.reason

    run(test)


@pytest.mark.parametrize("status", [401, 403])
def test_a_missing_key_is_named_as_such(status: int) -> None:
    async def test() -> None:
        async with servers.serving(servers.answer(b"", status)) as server, fleet_of() as fleet:
            fleet.add(server.url, Prober(), interval_s=NEVER_S)
            await wait_until_async(lambda: fleet.notes.failures, what="the poll")
            [failure] = fleet.notes.failures
            assert failure.kind is FailureKind.UNUSABLE
            assert str(status) in failure.reason
            assert "token" in failure.reason

    run(test)


@pytest.mark.parametrize(
    ("behaviour", "kind"),
    [
        (servers.answer(b"", 503), FailureKind.STATUS),
        (servers.hang, FailureKind.TIMEOUT),
        (servers.trickle, FailureKind.TIMEOUT),
        (servers.break_off_mid_body, FailureKind.PROTOCOL),
        (servers.flood(5_000_000), FailureKind.TOO_LARGE),
        (servers.redirect("http://elsewhere.invalid/"), FailureKind.REDIRECT),
        (servers.answer(b"", 204), FailureKind.UNUSABLE),
    ],
)
def test_a_failed_poll_reaches_the_sink_with_its_kind_and_a_reason(
    behaviour: servers.Behaviour, kind: FailureKind
) -> None:
    async def test() -> None:
        async with servers.serving(behaviour) as server, fleet_of() as fleet:
            timeout_s = 0.2 if kind is FailureKind.TIMEOUT else 20.0
            fleet.add(server.url, interval_s=NEVER_S, timeout_s=timeout_s)
            await wait_until_async(lambda: fleet.notes.failures, timeout=20, what="the failure")
            assert fleet.notes.kinds() == [kind]
            assert fleet.notes.failures[0].reason.startswith("instance gpu-0: ")
            assert fleet.notes.samples == []

    run(test)


def test_an_error_status_is_told_to_the_prober_as_an_answer_and_a_timeout_as_none() -> None:
    async def test() -> None:
        behaviour = servers.one_after_another(servers.answer(b"", 503), servers.hang)
        async with servers.serving(behaviour) as server, fleet_of() as fleet:
            prober = OnePath()
            fleet.add(server.url, prober, timeout_s=1.0)
            await wait_until_async(lambda: prober.failures == 1, what="the timeout")
            assert prober.statuses == [503]

    run(test)


# Refused and back


def test_a_refused_instance_is_sampled_again_as_soon_as_it_listens() -> None:
    async def test() -> None:
        async with fleet_of() as fleet:
            prober = OnePath()
            with servers.refused_port() as port:
                fleet.add(f"http://127.0.0.1:{port}", prober)
                await wait_until_async(lambda: len(fleet.notes.failures) >= 8, what="refusals")
                assert set(fleet.notes.kinds()) == {FailureKind.REFUSED}
            async with servers.serving(servers.answer(), port=port):
                await wait_until_async(lambda: fleet.notes.samples, what="the first sample")
            assert prober.restarts >= 1

    run(test)


def test_a_suspect_instance_is_polled_at_once() -> None:
    async def test() -> None:
        async with fleet_of() as fleet:
            async with servers.serving(servers.answer()) as server:
                poller = fleet.add(server.url, interval_s=NEVER_S)
                await wait_until_async(lambda: fleet.notes.samples, what="the first sample")
            poller.poll_now()
            await wait_until_async(lambda: fleet.notes.failures, what="the poll on demand")
            assert fleet.notes.kinds() == [FailureKind.REFUSED]

    run(test)


def test_a_demand_during_a_poll_is_met_by_one_poll_after_it() -> None:
    async def test() -> None:
        release = asyncio.Event()

        async def wait(request: servers.Request, writer: asyncio.StreamWriter) -> None:
            await release.wait()
            await servers.answer()(request, writer)

        async with servers.serving(wait) as server, fleet_of() as fleet:
            poller = fleet.add(server.url, interval_s=NEVER_S, timeout_s=30)
            await wait_until_async(lambda: server.under_way == 1, what="the first poll")
            for _ in range(5):
                poller.poll_now()
            release.set()
            await wait_until_async(lambda: fleet.notes.of(0) == 2, what="the poll on demand")
            assert server.most_under_way == 1

    run(test)


# Apart from each other


def test_a_hanging_instance_takes_nothing_from_the_others() -> None:
    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            healthy = [await stack.enter_async_context(servers.serving(servers.answer())) for _ in range(3)]
            hanging = await stack.enter_async_context(servers.serving(servers.hang))
            fleet = await stack.enter_async_context(fleet_of())
            fleet.add(hanging.url, timeout_s=60)
            await wait_until_async(lambda: hanging.under_way == 1, what="the poll that hangs")
            for server in healthy:
                fleet.add(server.url)
            await wait_until_async(
                lambda: all(fleet.notes.of(key) >= 20 for key in (1, 2, 3)), 20, "the others' samples"
            )
            # All that happened within one poll of the hanging one.
            assert len(hanging.requests) == 1
            assert fleet.notes.failures == []

    run(test)


def test_instances_that_fail_in_every_way_take_nothing_from_the_others() -> None:
    failing = [
        servers.trickle,
        servers.break_off_mid_body,
        servers.reset,
        servers.speak_no_http,
        servers.redirect("http://elsewhere.invalid/"),
        servers.answer(b"", 500),
        servers.answer(b"<html>", 404),
    ]

    async def test() -> None:
        async with contextlib.AsyncExitStack() as stack:
            healthy = await stack.enter_async_context(servers.serving(servers.answer()))
            running = [await stack.enter_async_context(servers.serving(each)) for each in failing]
            port = stack.enter_context(servers.refused_port())
            fleet = await stack.enter_async_context(fleet_of())
            fleet.add(healthy.url)
            for url in [*(server.url for server in running), f"http://127.0.0.1:{port}"]:
                fleet.add(url, timeout_s=0.3, interval_s=0.05, cap_s=0.1)
            others = range(1, len(fleet.pollers))
            await wait_until_async(
                lambda: (
                    fleet.notes.of(0) >= 20
                    and {failure.key for failure in fleet.notes.failures} == set(others)
                ),
                20,
                "samples of the healthy one and a failure of every other",
            )
            assert all(failure.key != 0 for failure in fleet.notes.failures)
            assert all(server.most_under_way == 1 for server in [healthy, *running])
            assert [poller.errors for poller in fleet.pollers] == [0] * len(fleet.pollers)

    run(test)


def test_at_most_one_request_is_under_way_for_an_instance_that_is_slower_than_its_interval() -> None:
    demands = 0

    async def slow(request: servers.Request, writer: asyncio.StreamWriter) -> None:
        # Several intervals, with a demand in each.
        enough = demands + 5
        await wait_until_async(lambda: demands >= enough, 20, "demands meanwhile")
        await servers.answer()(request, writer)

    async def test() -> None:
        async with servers.serving(slow) as server, fleet_of() as fleet:
            poller = fleet.add(server.url, timeout_s=30)

            def eight_samples() -> bool:
                nonlocal demands
                demands += 1
                poller.poll_now()
                return fleet.notes.of(0) >= 8

            await wait_until_async(eight_samples, 20, "eight samples")
            assert server.most_under_way == 1

    run(test)


def test_the_limiter_bounds_the_polls_under_way_over_all_instances() -> None:
    async def test() -> None:
        begun = 0

        async def in_company(request: servers.Request, writer: asyncio.StreamWriter) -> None:
            # Each waits for another one to come in, so as many are under way as the limiter lets through.
            nonlocal begun
            begun += 1
            enough = begun + 1
            await wait_until_async(lambda: begun >= enough, 20, "another request")
            await servers.answer()(request, writer)

        async with servers.serving(in_company) as server, fleet_of() as fleet:
            fleet.limiter = asyncio.Semaphore(2)
            for _ in range(6):
                fleet.add(server.url, timeout_s=30)
            await wait_until_async(lambda: all(fleet.notes.of(key) >= 3 for key in range(6)), 20, "samples")
            assert server.most_under_way == 2

    run(test)


# What it survives


def test_an_error_of_the_sink_is_logged_with_the_instance_and_ends_no_loop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test() -> None:
        async with servers.serving(servers.answer()) as server, fleet_of() as fleet:
            fleet.notes.breaks_for = 0
            broken = fleet.add(server.url, cap_s=FAST_S)
            fleet.add(server.url)
            await wait_until_async(
                lambda: broken.errors >= 3 and fleet.notes.of(1) >= 10, 20, "errors of one, samples of both"
            )
            assert fleet.pollers[1].errors == 0

    run(test)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert errors
    assert all("gpu-0" in record.getMessage() for record in errors)
    assert errors[0].name == "loadboard.monitor.polling"


class BrokenGetter:
    """A fetcher with a bug."""

    def __init__(self) -> None:
        self.calls = 0
        self.forgotten: list[Target] = []

    async def get(self, target: Target, path: str, timeout_s: float) -> Body:
        self.calls += 1
        raise ZeroDivisionError

    async def forget(self, target: Target) -> None:
        self.forgotten.append(target)


def test_an_error_that_comes_back_at_once_is_no_busy_loop() -> None:
    async def test() -> None:
        getter = BrokenGetter()
        async with fleet_of(getter) as fleet:
            poller = fleet.add("http://unused", interval_s=NEVER_S)
            await wait_until_async(lambda: poller.errors == 1, what="the error")
            for _ in range(100):
                await asyncio.sleep(0)
            assert getter.calls == 1
        assert len(getter.forgotten) == 1

    run(test)


@pytest.mark.parametrize("behaviour", [servers.hang, servers.trickle, servers.answer()])
def test_cancelling_ends_a_poller_and_its_connection_wherever_it_is(behaviour: servers.Behaviour) -> None:
    async def test() -> None:
        async with servers.serving(behaviour) as server:
            async with fleet_of() as fleet:
                fleet.add(server.url, interval_s=NEVER_S, timeout_s=60)
                await wait_until_async(lambda: server.requests, what="the poll")
            await wait_until_async(lambda: server.under_way == 0, what="the connection to be closed")

    run(test)


# What the log says


def test_the_log_tells_of_a_change_and_not_of_every_failure(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "loadboard")

    async def test() -> None:
        async with fleet_of() as fleet:
            with servers.refused_port() as port:
                fleet.add(f"http://127.0.0.1:{port}")
                await wait_until_async(lambda: len(fleet.notes.failures) >= 5, what="refusals")
            async with servers.serving(servers.answer(), port=port):
                await wait_until_async(lambda: len(fleet.notes.samples) >= 5, what="samples")

    run(test)
    told = [(record.levelname, record.getMessage()) for record in caplog.records]
    told = [line for line in told if "broke" not in line[1] and "no valid" not in line[1]]
    # What it means for the instance is the fleet's to say, once.
    assert {level for level, _ in told} == {"DEBUG"}
    assert "refuses connections" in told[0][1]
    assert told[1][1] == "instance gpu-0: answers with its load, engine any"
    assert len(told) <= 3  # a last refusal, as the server has gone before the poller
