"""What proxies do today, written for the comparison: scanning a list of objects; asking a scheduler process.

As a program this is the scheduler process: ``python -m bench.comparators ADDRESS KEY INSTANCES``.
"""

from __future__ import annotations

import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.managers import BaseManager
from typing import Any

from bench.children import child, die_with_parent
from bench.tables import Instance


class ListScan:
    """The least load by the objects themselves: known before unknown, lowest inflight, then qps; ties rotate."""

    def __init__(self) -> None:
        self._turn = 0

    def select(self, instances: list[Instance]) -> Instance:
        """One of ``instances``."""
        best: list[Instance] = []
        best_key = (float("inf"), float("inf"))
        for instance in instances:
            load = getattr(instance, "load", None)
            inflight = getattr(load, "inflight", None)
            qps = getattr(load, "qps_1m", None)
            key = (float("inf") if inflight is None else inflight, float("inf") if qps is None else qps)
            if key < best_key:
                best, best_key = [instance], key
            elif key == best_key:
                best.append(instance)
        self._turn += 1
        return best[self._turn % len(best)]


class Scheduler:
    """One process that counts for all workers. ``min`` over a list of ints is the fastest it can do in Python."""

    def __init__(self, instances: int) -> None:
        self._inflight = [0] * instances
        self._lock = threading.Lock()

    def acquire(self) -> int:
        """The index of the least loaded instance, counted."""
        with self._lock:
            least = min(self._inflight)
            index = self._inflight.index(least)
            self._inflight[index] = least + 1
            return index

    def release(self, index: int) -> None:
        """The request there is over."""
        with self._lock:
            self._inflight[index] -= 1


class SchedulerManager(BaseManager):
    """Serves one :class:`Scheduler` over a Unix socket."""


class RemoteScheduler:
    """A client of a scheduler process. ``proxy`` has its methods."""

    def __init__(self, pid: int, proxy: Any) -> None:
        self.proxy = proxy
        # What clock_getcpuclockid(3) gives for a process.
        self._server_clock = (~pid << 3) | 2

    def cpu_ns(self) -> int:
        """CPU time of this thread and of the whole server."""
        return time.thread_time_ns() + time.clock_gettime_ns(self._server_clock)


@contextmanager
def remote_scheduler(instances: int, cores: Sequence[int]) -> Iterator[RemoteScheduler]:
    """A scheduler process on ``cores`` (empty: anywhere), and a connection to it."""
    key = secrets.token_bytes(16)
    SchedulerManager.register("scheduler")
    with tempfile.TemporaryDirectory(prefix="loadboard-bench-") as place:
        address = f"{place}/scheduler"
        manager = SchedulerManager(address, key)

        def connected() -> bool:
            try:
                manager.connect()
            except (FileNotFoundError, ConnectionRefusedError):
                return False
            return True

        arguments = [address, key.hex(), str(instances)]
        with child("bench.comparators", arguments, cores=cores, ready=connected) as process:
            yield RemoteScheduler(process.pid, manager.scheduler())  # type: ignore[attr-defined]


def main() -> None:
    """Serve until killed."""
    die_with_parent()
    address, key, instances = sys.argv[1:]
    scheduler = Scheduler(int(instances))
    SchedulerManager.register("scheduler", lambda: scheduler, exposed=("acquire", "release"))
    SchedulerManager(address, bytes.fromhex(key)).get_server().serve_forever()


if __name__ == "__main__":
    main()
