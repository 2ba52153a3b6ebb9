"""The executor of the monitor's loop: what hangs in it keeps neither others nor the end."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest

from monitor.threads import Threads
from tests.waiting import wait_until

WAIT_S = 20.0


class Names:
    """A name server: look-ups of names that begin with "hang" wait for ``release``."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked: list[str] = []

    def look_up(self, host: str, *_: object) -> str:
        self.asked.append(host)
        if host.startswith("hang"):
            self.release.wait(WAIT_S)
        if host.startswith("bad"):
            raise socket.gaierror(socket.EAI_NONAME, host)
        return f"address of {host}"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[Names]:
    made = Names()
    monkeypatch.setattr(socket, "getaddrinfo", made.look_up)
    yield made
    made.release.set()


def look_up(threads: Threads, *args: Any) -> Future[Any]:
    return threads.submit(socket.getaddrinfo, *args)


def test_calls_return_and_raise_what_the_function_does() -> None:
    threads = Threads(2)
    assert threads.submit(divmod, 7, 2).result(WAIT_S) == (3, 1)
    assert threads.submit(dict, a=1).result(WAIT_S) == {"a": 1}
    with pytest.raises(ZeroDivisionError):
        threads.submit(divmod, 1, 0).result(WAIT_S)
    assert [each.result(WAIT_S) for each in [threads.submit(str, n) for n in range(50)]] == [
        str(n) for n in range(50)
    ]


def test_no_more_threads_run_than_allowed() -> None:
    threads, release, running = Threads(3), threading.Event(), []

    def call() -> None:
        running.append(threading.current_thread())
        release.wait(WAIT_S)

    futures = [threads.submit(call) for _ in range(10)]
    wait_until(lambda: len(running) == 3, what="three calls under way")
    release.set()
    for future in futures:
        future.result(WAIT_S)
    assert len(running) == 10
    assert all(thread.daemon for thread in running)


def test_a_name_that_hangs_holds_one_thread_however_often_it_is_asked_for(names: Names) -> None:
    threads = Threads(2)
    hanging = [look_up(threads, "hang", 80) for _ in range(20)]
    assert look_up(threads, "well", 80).result(WAIT_S) == "address of well"
    assert names.asked == ["hang", "well"]
    for future in hanging[1:]:
        assert future.cancel()
    names.release.set()
    assert hanging[0].result(WAIT_S) == "address of hang"


def test_everybody_who_waits_for_a_name_gets_its_answer_or_its_error(names: Names) -> None:
    threads = Threads(1)
    look_up(threads, "hang")
    waiting = [
        look_up(threads, "well"),
        look_up(threads, "well"),
        look_up(threads, "bad"),
        look_up(threads, "bad"),
    ]
    names.release.set()
    assert [future.result(WAIT_S) for future in waiting[:2]] == ["address of well"] * 2
    for future in waiting[2:]:
        with pytest.raises(socket.gaierror):
            future.result(WAIT_S)
    assert names.asked == ["hang", "well", "bad"]


def test_a_name_is_looked_up_again_after_its_answer_and_apart_for_another_port(names: Names) -> None:
    threads = Threads(2)
    for port in (80, 80, 81):
        look_up(threads, "well", port).result(WAIT_S)
    assert names.asked == ["well"] * 3


def test_a_call_that_nobody_waits_for_any_more_is_not_begun(names: Names) -> None:
    threads = Threads(1)
    first = look_up(threads, "hang")
    assert look_up(threads, "well").cancel()
    names.release.set()
    first.result(WAIT_S)
    # Nor does it keep a later one from being made.
    assert look_up(threads, "well").result(WAIT_S) == "address of well"
    assert names.asked == ["hang", "well"]


def test_it_ends_without_waiting_for_what_hangs(names: Names) -> None:
    threads = Threads(1)
    hanging, waiting = look_up(threads, "hang"), look_up(threads, "well")
    wait_until(lambda: names.asked, what="the look-up that hangs")
    threads.shutdown(wait=True)
    assert not hanging.done()
    with pytest.raises(CancelledError):
        waiting.result(WAIT_S)
    with pytest.raises(RuntimeError, match="about to end"):
        look_up(threads, "well")


def test_a_loop_ends_while_a_look_up_hangs(names: Names) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(Threads(2))
        hanging = asyncio.ensure_future(loop.getaddrinfo("hang", 80))
        await loop.getaddrinfo("well", 80)
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)

    asyncio.run(main())
    assert not names.release.is_set()
