"""Score modes of other packages, found by their entry points.

An entry point of the group ``loadboard.scores`` gives its name to a value of ``score``. The object it points
at is a factory::

    def factory(options: Mapping[str, Any]) -> ScoreMode

``options`` is what the configuration has under ``[score_options]``, ``{}`` if nothing. The factory raises for
options it cannot use. What it returns has to be a :class:`monitor.scores.base.ScoreMode` whose ``name`` is that
of the entry point. It is tried once on a made-up fleet (:mod:`trial`) and then used for as long as the options
are the same: a factory may take its time, and ticks must not wait for it. While it is in use, a score that fails
is replaced by request counts, for all instances at once: a formula next to another one in one comparison would
mean nothing.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np

from monitor.config.installed import GROUP, installed, origin, shown
from monitor.scores.base import FloatArray, Loads, ScoreMode
from monitor.scores.trial import fault_of, finite_score, reason, sound_prices
from score_table.identity import Prices
from score_table.layout import SCORE_LIMIT, UNITS

log = logging.getLogger("loadboard.monitor")

#: What a request costs where a mode's own price fails.
PLAIN_PRICES = Prices(request=float(UNITS), prompt_token=0.0, kv_token=0.0)

#: Sound scores in a row after which one that failed counts as well again: a second of ticks. One that fails at every
#: other tick must not fill the log.
RECOVERED_AFTER = 50

#: A score that takes longer is slow: everything else of a tick needs less. The machine may hold one up as well, so
#: it is told of so many in a row, or of one that took longer than from tick to tick.
SLOW_S = 0.005
SLOW_IN_A_ROW = 3

#: What is only warned of is told so often, and shown for as long after it was last so.
WARN_EVERY_S = 60.0

#: Modes that are kept for the next time that somebody asks for the same, those of other options than now too.
_MOST_KEPT = 32
_kept: dict[tuple[str, str], ScoreMode] = {}
_guard = threading.Lock()  # a reload reads the configuration in a thread of its own


class PluginError(Exception):
    """An installed score mode cannot be used; the message names the entry point and what to do."""


def load(
    name: str,
    options: Mapping[str, Any],
    *,
    tick_s: float = 0.02,
    clock: Callable[[], float] = time.perf_counter,
) -> Plugin:
    """The installed mode ``name``, tried once. :class:`PluginError` if there is none or it does not work.

    ``tick_s`` is the time between two ticks, ``clock`` is in seconds.
    """
    found = installed(name)
    if not found:
        raise PluginError(f"no package has an entry point {name!r} in the group {GROUP}: install it")
    if len(found) > 1:
        raise PluginError(f"{origin(name)} have one name: uninstall all but one of them")
    label = shown(found[0])
    key = label, repr(dict(options))
    with _guard:
        mode = _kept.get(key)
    if mode is None:
        mode = _made(found[0], label, options)
        with _guard:
            _kept[key] = mode
            while len(_kept) > _MOST_KEPT:
                del _kept[next(iter(_kept))]
    return Plugin(mode, label, tick_s=tick_s, clock=clock)


def _made(point: EntryPoint, label: str, options: Mapping[str, Any]) -> ScoreMode:
    # A package may also end the interpreter, or cancel a task that is none of its own; the monitor must outlive that.
    try:
        factory = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise PluginError(f"{label} cannot be loaded: {reason(error)}; report it to its package") from error
    try:
        mode: ScoreMode = factory(copy.deepcopy(dict(options)))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        given = f"with {', '.join(options)} in it" if options else "which is empty"
        raise PluginError(
            f"{label} does not work with [score_options], {given}: {reason(error)}; correct that section by the "
            "package's documentation, and if it is right, report it to the package"
        ) from error
    fault = fault_of(mode, point.name)
    if fault:
        raise PluginError(f"{label} is no score mode: {fault}; report it to its package")
    return mode


class Plugin:
    """A mode of another package. Nothing that it does or returns gets out but prices and sound scores."""

    def __init__(self, mode: ScoreMode, label: str, *, tick_s: float, clock: Callable[[], float]) -> None:
        self._mode = mode
        self._label = label
        self._tick_s, self._clock = tick_s, clock
        self._slow_in_a_row = 0
        self._slow_until = 0.0
        self._next_warning: dict[str, float] = {}
        self._told: set[str] = set()
        self._sound = 0
        self.name = mode.name
        #: Why its score is not used now; empty while it is.
        self.failing = ""
        #: That its scores take so long that ticks come late; empty while they do not.
        self.slow = ""
        #: Calls so far that failed and were answered with request counts.
        self.failures = 0

    def prices(self, kv_capacity: float | None) -> Prices:
        """Its prices, or those of request counts."""
        try:
            return sound_prices(self._mode, kv_capacity)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._failed("prices", reason(error))
            return PLAIN_PRICES

    def score(self, loads: Loads) -> FloatArray:
        """Its scores, or request counts for all slots where one of them is not sound; none is negative."""
        began = self._clock()
        try:
            score = finite_score(self._mode, loads)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            self._sound = 0
            self.failing = (
                f"score mode {self.name} fails ({reason(error)}): requests are counted instead of it"
            )
            self._failed(f"score {type(error).__name__}", reason(error))
            score = loads.n + 1.0
        else:
            self.failing = ""
            if self._told:
                self._worked()
        now = self._clock()
        self._timed(now, now - began)
        if score.min(initial=0.0) < 0.0:
            self._warn(
                "negative",
                now,
                "score mode %s has given the score %g, which counts as 0: report it to its package",
                self._label,
                score.min(),
            )
        return np.clip(score, 0.0, SCORE_LIMIT / UNITS)

    def _timed(self, now: float, seconds: float) -> None:
        """A score has taken ``seconds``."""
        if seconds <= SLOW_S:
            self._slow_in_a_row = 0
            if now >= self._slow_until:
                self.slow = ""
            return
        self._slow_in_a_row += 1
        if self._slow_in_a_row < SLOW_IN_A_ROW and seconds <= self._tick_s:
            return
        self._slow_until = now + WARN_EVERY_S
        took = f"{seconds * 1e3:.0f} ms for one score, and a tick has {self._tick_s * 1e3:.0f} ms"
        self.slow = f"score mode {self.name} is slow: it took {took}"
        self._warn(
            "slow",
            now,
            "score mode %s is slow: it took %s; the monitor does nothing else meanwhile, and picks go without it where "
            "no tick comes for max_heartbeat_age: report it to its package",
            self._label,
            took,
        )

    def _warn(self, kind: str, now: float, message: str, *values: object) -> None:
        if now >= self._next_warning.get(kind, now):
            self._next_warning[kind] = now + WARN_EVERY_S
            log.warning(message, *values)

    def _worked(self) -> None:
        self._sound += 1
        if self._sound >= RECOVERED_AFTER:
            self._sound = 0
            self._told.clear()
            log.info("score mode %s works again", self._label)

    def _failed(self, kind: str, reason: str) -> None:
        self.failures += 1
        if kind not in self._told:
            self._told.add(kind)
            log.error(
                "score mode %s fails: %s; requests are counted instead of it, report it to its package",
                self._label,
                reason,
            )
