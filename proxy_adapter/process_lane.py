"""One lane per process and table, with its housekeeping thread; made anew in forked children."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from typing import Protocol

from score_table.lane import Lane

logger = logging.getLogger("loadboard.proxy_adapter")

_PERIOD_S = 0.1


class ProcessLane:
    """A :class:`Lane` shared by all strategies of this process that use the same table."""

    def __init__(self, location: str) -> None:
        self.lane = Lane(location)
        self._users = 0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._degraded = ""
        self._start = threading.Lock()
        self._said_no_thread = False
        self._closed = False

    def ensure_running(self) -> None:
        """Attach and start housekeeping, once per process; cheap when it runs.

        Never waits: while another thread, or the code a signal handler interrupted, is starting it, the
        caller goes on without.
        """
        if self._thread is not None or not self._start.acquire(blocking=False):
            return
        try:
            if self._thread is None and not self._closed:
                stop = threading.Event()
                thread = threading.Thread(
                    target=self._run, args=(stop,), name="loadboard-housekeeping", daemon=True
                )
                # First: what counts in a table needs somebody to keep house.
                thread.start()
                self._thread, self._stop = thread, stop
                self.lane.attach()
        except RuntimeError as error:
            # No thread can be started (a limit, or the interpreter is ending): picks go on, the next one retries.
            if not self._said_no_thread:
                self._said_no_thread = True
                logger.warning("housekeeping of table %s cannot start: %s", self.lane.location.text, error)
        finally:
            self._start.release()

    def after_fork(self) -> None:
        """In the child: threads and lane are the parent's; both start anew at the next pick."""
        self._start = threading.Lock()
        self._stop = threading.Event()
        self._thread = None
        self.lane.after_fork()

    def close(self) -> None:
        """Stop housekeeping and give the lane back."""
        # Not forever: the caller may be a signal handler that has interrupted a start.
        starting = not self._start.acquire(timeout=2.0)
        self._closed = True
        if not starting:
            self._start.release()
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2.0)
        self.lane.close()

    def _run(self, stop: threading.Event) -> None:
        while not stop.wait(_PERIOD_S):
            try:
                self.lane.housekeep()
                self._say_mode()
            except Exception:
                logger.exception("housekeeping of table %s failed; it goes on", self.lane.location.text)

    def _say_mode(self) -> None:
        """Log each change between fresh and degraded, not each pick."""
        attached = self.lane.attached
        degraded = self.lane.mode(attached).degraded if attached is not None else ""
        if degraded == self._degraded:
            return
        table = self.lane.location.text
        if degraded == "outstanding":
            logger.warning(
                "the monitor of table %s is silent: instances are chosen by what this host has outstanding",
                table,
            )
        elif degraded:
            logger.warning("table %s holds no scores yet: instances are chosen in rotation", table)
        else:
            logger.info("the monitor of table %s is back: instances are chosen by score", table)
        self._degraded = degraded


class Forked(Protocol):
    """What has something to do in a forked child."""

    def after_fork(self) -> None:
        """Called in the child, once."""


_lanes: dict[str, ProcessLane] = {}
_told: weakref.WeakSet[Forked] = weakref.WeakSet()
_guard = threading.Lock()


def acquire(location: str) -> ProcessLane:
    """The process's lane at ``location``; pair it with :func:`release`. ``ValueError`` for a bad name."""
    with _guard:
        found = _lanes.get(location)
        if found is None:
            found = _lanes[location] = ProcessLane(location)
        found._users += 1
        return found


def release(lane: ProcessLane) -> None:
    """The last user's release closes the lane."""
    with _guard:
        lane._users -= 1
        last = lane._users <= 0
        if last:
            _lanes.pop(lane.lane.location.text, None)
    if last:
        lane.close()


def tell_of_forks(strategy: Forked) -> None:
    """Call its ``after_fork`` in forked children for as long as it lives."""
    _told.add(strategy)


def _after_fork_in_child() -> None:
    global _guard
    _guard = threading.Lock()
    for lane in _lanes.values():
        lane.after_fork()
    for strategy in list(_told):
        strategy.after_fork()


def _at_exit() -> None:
    for lane in list(_lanes.values()):
        lane.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
