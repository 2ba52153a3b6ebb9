"""Threads for what blocks: look-ups of host names, reading authorities and the configuration.

The loop's own executor has a handful of threads and waits for them at the end. A name server that hangs keeps
a look-up for half a minute, long beyond the poll it was for: some dozen of them, and no instance with a name
could be polled, and the monitor would not end.
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

_T = TypeVar("_T")


class _Call:
    """One call and everybody who waits for it."""

    def __init__(self, function: Callable[[], Any], name: object) -> None:
        self.function = function
        self.name = name
        self.futures: list[Future[Any]] = []


class Threads(ThreadPoolExecutor):
    """An executor of daemon threads, ``limit`` > 0 of them at most; a loop takes no other class.

    The same name is never looked up twice at a time: whoever asks meanwhile gets the answer of the look-up under
    way. So a name that hangs holds one thread, however often it is polled.
    """

    def __init__(self, limit: int) -> None:
        super().__init__(max_workers=limit)
        self._limit = limit
        self._guard = threading.Lock()
        self._running = 0
        self._waiting: deque[_Call] = deque()
        self._look_ups: dict[object, _Call] = {}
        self._ended = False

    def submit(self, fn: Callable[..., _T], /, *args: Any, **kwargs: Any) -> Future[_T]:
        """As :meth:`Executor.submit`."""
        future: Future[_T] = Future()
        name = (args, tuple(kwargs.items())) if fn is socket.getaddrinfo else None
        with self._guard:
            if self._ended:
                raise RuntimeError("no more calls are taken, the loop is about to end")
            call = self._look_ups.get(name) if name is not None else None
            if call is not None:
                call.futures.append(future)
                return future
            call = _Call(lambda: fn(*args, **kwargs), name)
            call.futures.append(future)
            if name is not None:
                self._look_ups[name] = call
            self._waiting.append(call)
            if self._running < self._limit:
                self._running += 1
                threading.Thread(target=self._work, name="loadboard-call", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls. Never waits: a look-up that hangs must not keep the process."""
        with self._guard:
            self._ended = True
            waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            for future in call.futures:
                future.cancel()

    def _work(self) -> None:
        while True:
            with self._guard:
                if not self._waiting:
                    self._running -= 1
                    return
                call = self._waiting.popleft()
                abandoned = all(future.cancelled() for future in call.futures)
                if abandoned:
                    self._look_ups.pop(call.name, None)
            if abandoned:
                continue
            error: BaseException | None = None
            result = None
            try:
                result = call.function()
            except BaseException as raised:
                error = raised
            with self._guard:
                self._look_ups.pop(call.name, None)
            # Nobody can join any more.
            for future in call.futures:
                if not future.set_running_or_notify_cancel():
                    continue
                if error is None:
                    future.set_result(result)
                else:
                    future.set_exception(error)
