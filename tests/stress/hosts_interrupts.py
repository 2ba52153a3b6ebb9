"""Programs in which something comes in between: garbage collection, signal handlers, a stack that is used up."""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from proxy_adapter import Dispatch
from score_table.reader import TableReader
from tests.stress.hosts import INSTANCES, attached, main, open_in, until, until_read
from tests.unit.proxy_adapter.instances import Plain, plain


class _Cycle:
    """Garbage that only the collector finds. It may end its guard by itself when it is found."""

    def __init__(self, guard: Dispatch[Plain], last_act: Callable[[Dispatch[Plain]], None] | None) -> None:
        self.guard, self.last_act, self.itself = guard, last_act, self

    def __del__(self) -> None:
        if self.last_act is not None:
            self.last_act(self.guard)


def collections_inside_dispatch(table: str, rounds: str = "1500") -> dict[str, Any]:
    """Every allocation may collect, and so end requests in the middle of a dispatch, in two threads."""
    strategy, instances = attached(table), plain(INSTANCES)
    sent = [0, 0, 0]

    def dispatch_in_a_finalizer(guard: Dispatch[Plain]) -> None:
        sent[2] += 1
        with strategy.dispatch(instances, prompt_tokens=7) as other:
            other.first_token()
        guard.release()

    acts = (None, lambda guard: guard.release(), lambda guard: guard.first_token(), dispatch_in_a_finalizer)

    def work(index: int) -> None:
        rng = random.Random(index)
        for _ in range(int(rounds)):
            _Cycle(strategy.dispatch(instances, prompt_tokens=rng.randrange(1000)), rng.choice(acts))
            with strategy.dispatch(instances, {"stream": True}, prompt_tokens=5) as guard:
                guard.first_token()
            sent[index] += 2

    gc.set_threshold(1)
    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.set_threshold(700, 10, 10)
    gc.collect()
    until(lambda: open_in(table) == 0, "what finalizers ended", timeout=2.0)
    assert strategy.status()["outstanding"] == 0
    until_read(table)
    return {"dispatched": sum(sent)}


def guards_left_to_the_end_of_the_interpreter(table: str) -> dict[str, Any]:
    """Guards in globals, in cycles and in another thread while the interpreter ends."""
    strategy, instances = attached(table), plain(INSTANCES)
    globals()["kept"] = [strategy.dispatch(instances) for _ in range(5)]
    globals()["cycles"] = [
        _Cycle(strategy.dispatch(instances), lambda guard: guard.release()) for _ in range(5)
    ]
    gc.disable()

    def work() -> None:
        while True:
            with strategy.dispatch(instances):
                pass

    threading.Thread(target=work, daemon=True).start()
    until(lambda: strategy.status()["picks"] > 100, "a busy thread")
    return {}


def handler_that_dispatches(table: str, rounds: str = "20000") -> dict[str, Any]:
    """A timer of 0.5 ms whose handler sends a request and ends the one before, at any point of the others."""
    strategy, instances = attached(table), plain(INSTANCES)
    kept: list[Dispatch[Plain]] = []
    by_handler = [0]

    def handler(number: int, frame: FrameType | None) -> None:
        by_handler[0] += 1
        with strategy.dispatch(instances, prompt_tokens=50) as guard:
            guard.first_token()
        kept.append(strategy.dispatch(instances, prompt_tokens=60))
        if len(kept) > 5:
            kept.pop(0).release()

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    sent = 0
    while sent < int(rounds) or by_handler[0] < 200:
        with strategy.dispatch(instances, prompt_tokens=sent % 300) as guard:
            guard.first_token()
        sent += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    handled = 2 * by_handler[0]
    until(lambda: open_in(table) == len(kept), "the requests that the handler keeps", timeout=2.0)
    for guard in kept:
        guard.release()
    until(lambda: open_in(table) == 0, "no request", timeout=2.0)
    until_read(table)
    return {"dispatched": sent + handled, "by_handler": handled}


class _Alarm(BaseException):
    """As ``KeyboardInterrupt``: nothing but this program catches it."""


def handler_that_raises(table: str, rounds: str = "5000", seed: str = "1") -> dict[str, Any]:
    """An exception out of a signal handler at any point of a dispatch or a release, thousands of times."""
    strategy, instances = attached(table), plain(INSTANCES)
    rng = random.Random(int(seed))
    armed, raised, swallowed = [False], [0], [0]

    def handler(number: int, frame: FrameType | None) -> None:
        if armed[0]:
            armed[0] = False
            raised[0] += 1
            raise _Alarm

    def unraisable(args: Any) -> None:
        swallowed[0] += 1

    sys.unraisablehook = unraisable
    signal.signal(signal.SIGALRM, handler)
    with strategy.dispatch(instances) as guard:
        del guard
    gc.collect()
    gc.disable()  # a collection would take the exception for itself
    for _ in range(int(rounds)):
        try:
            armed[0] = True
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1e-4))
            for _ in range(5000):
                if not armed[0]:
                    break
                with strategy.dispatch(instances, prompt_tokens=100) as guard:
                    guard.first_token()
            armed[0] = False
        except _Alarm:
            pass
        signal.setitimer(signal.ITIMER_REAL, 0)
        guard = None  # type: ignore[assignment]
    gc.enable()
    gc.collect()
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(60)
    assert raised[0] > int(rounds) // 2, f"only {raised[0]} were raised"
    until(lambda: open_in(table) == 0, f"no request, after {raised[0]} exceptions", timeout=2.0)
    assert strategy.status()["outstanding"] == 0
    with TableReader.open(table) as reader:
        errors = [lane.count_errors for lane in reader.snapshot().lanes]
    return {"raised": raised[0], "swallowed": swallowed[0], "count_errors": sum(errors)}


def recursion_that_ends_in_a_dispatch(table: str, rounds: str = "3") -> dict[str, Any]:
    """``RecursionError`` at every depth of a dispatch and of a release."""
    strategy, instances = attached(table), plain(INSTANCES)
    raised = [0]

    def dive(depth: int) -> None:
        if depth:
            dive(depth - 1)
            return
        with strategy.dispatch(instances, prompt_tokens=100) as guard:
            guard.first_token()

    sys.setrecursionlimit(300)
    for _ in range(int(rounds)):
        for depth in range(200, 300):
            try:
                dive(depth)
            except RecursionError:
                raised[0] += 1
    sys.setrecursionlimit(1000)
    gc.collect()
    until(lambda: open_in(table) == 0, "no request after all errors", timeout=2.0)
    assert strategy.status()["outstanding"] == 0
    return {"raised": raised[0]}


if __name__ == "__main__":
    main(
        {
            program.__name__: program
            for program in (
                collections_inside_dispatch,
                guards_left_to_the_end_of_the_interpreter,
                handler_that_dispatches,
                handler_that_raises,
                recursion_that_ends_in_a_dispatch,
            )
        }
    )
