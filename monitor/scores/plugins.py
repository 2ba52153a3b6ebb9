"""Score modes of other packages, found by their entry points.

An entry point of the group ``loadboard.scores`` gives its name to a value of ``score``. The object it points
at is a factory::

    def factory(options: Mapping[str, Any]) -> ScoreMode

``options`` is what the configuration has under ``[score_options]``, ``{}`` if nothing. The factory raises for
options it cannot use; it may be called again at any time, and gives a new object each time. What it returns
has to be a :class:`monitor.scores.base.ScoreMode` whose ``name`` is that of the entry point. It is tried once
on a made-up fleet before it is used. While it is in use, a score that fails is replaced by request counts,
for all instances at once: a formula next to another one in one comparison would mean nothing.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from monitor.config.installed import GROUP, installed, origin, shown
from monitor.scores.base import FloatArray, Loads, ScoreMode
from score_table.identity import Prices
from score_table.layout import SCORE_LIMIT, UNITS

log = logging.getLogger("loadboard.monitor")

#: What a request costs where a mode's own price fails.
PLAIN_PRICES = Prices(request=float(UNITS), prompt_token=0.0, kv_token=0.0)


class PluginError(Exception):
    """An installed score mode cannot be used; the message names the entry point and what to do."""


def load(name: str, options: Mapping[str, Any]) -> Plugin:
    """The installed mode ``name``, tried once. :class:`PluginError` if there is none or it does not work."""
    found = installed(name)
    if not found:
        raise PluginError(f"no package has an entry point {name!r} in the group {GROUP}: install it")
    if len(found) > 1:
        raise PluginError(f"{origin(name)} have one name: uninstall all but one of them")
    label = shown(found[0])
    try:
        factory = found[0].load()
        mode = factory(copy.deepcopy(dict(options)))
    # A module may also end the interpreter; the monitor must outlive that.
    except (Exception, SystemExit) as error:
        raise PluginError(f"{label} cannot be loaded: {_reason(error)}") from error
    fault = fault_of(mode, name)
    if fault:
        raise PluginError(f"{label} is no score mode: {fault}; report it to its package")
    return Plugin(mode, label)


class Plugin:
    """A mode of another package. Nothing that it does or returns gets out but prices and sound scores."""

    def __init__(self, mode: ScoreMode, label: str) -> None:
        self._mode = mode
        self._label = label
        self._told: set[str] = set()
        self.name = mode.name
        #: Calls so far that failed and were answered with request counts.
        self.failures = 0

    def prices(self, kv_capacity: float | None) -> Prices:
        """Its prices, or those of request counts."""
        try:
            return _sound_prices(self._mode, kv_capacity)
        except (Exception, SystemExit) as error:
            self._failed("prices", _reason(error))
            return PLAIN_PRICES

    def score(self, loads: Loads) -> FloatArray:
        """Its scores, or request counts for all slots where one of them is not sound."""
        try:
            return _sound_score(self._mode, loads)
        except (Exception, SystemExit) as error:
            self._failed(f"score {type(error).__name__}", _reason(error))
            return loads.n + 1.0

    def _failed(self, kind: str, reason: str) -> None:
        self.failures += 1
        if kind not in self._told:
            self._told.add(kind)
            log.error(
                "score mode %s fails: %s; requests are counted instead of it, report it to its package",
                self._label,
                reason,
            )


def _sound_prices(mode: ScoreMode, kv_capacity: float | None) -> Prices:
    prices = mode.prices(kv_capacity)
    if not isinstance(prices, Prices):
        raise TypeError(
            f"prices({kv_capacity}) is a {type(prices).__name__}, not a score_table.identity.Prices"
        )
    bounded = prices.bounded()
    if bounded.request < 1.0:
        raise ValueError(
            f"prices({kv_capacity}).request is {prices.request}, so a dispatch would count as none: "
            "at least 1 unit is needed"
        )
    return bounded


def _sound_score(mode: ScoreMode, loads: Loads) -> FloatArray:
    if not len(loads.n):
        return np.zeros(0)
    score = np.asarray(mode.score(_read_only(loads)), dtype=np.float64)
    if score.shape != loads.n.shape:
        raise ValueError(f"score(loads) has the shape {score.shape} and the loads have {loads.n.shape}")
    bad = np.flatnonzero(~np.isfinite(score))
    if len(bad):
        raise ArithmeticError(f"score(loads) is {score[bad[0]]} for slot {bad[0]} and has to be finite")
    limit = SCORE_LIMIT / UNITS
    return np.clip(score, -limit, limit)


def fault_of(mode: Any, name: str) -> str:
    """What is wrong with what a factory has returned; empty if it is a mode."""
    try:
        own_name = getattr(mode, "name", None)
        if own_name != name:
            return f"its name is {own_name!r} and has to be that of the entry point"
        for kv_capacity in (None, 100_000.0):
            _sound_prices(mode, kv_capacity)
        score, more = _sound_score(mode, _example(0.0)), _sound_score(mode, _example(1.0))
    except (Exception, SystemExit) as error:
        return _reason(error)
    if not (more > score).all():
        return (
            f"on a made-up fleet one more request changes its scores from {score.tolist()} to {more.tolist()}, "
            "but each has to grow with loads.n: else all requests go to one instance"
        )
    return ""


def _example(more: float) -> Loads:
    """An idle, a busy and an unknown instance, each with ``more`` requests."""

    def array(*values: float) -> FloatArray:
        return np.array(values)

    nan = np.nan
    return Loads(
        own=array(0.0, 12.0, 3.0) + more,
        others=array(0.0, 5.0, 2.5),
        n=array(0.0, 17.0, 5.5) + more,
        pending=array(0.0, 3000.0, 0.0),
        kv=array(0.0, 0.7, 0.3),
        speed=array(1.0, 1.3, 1.0),
        slots=array(64.0, 16.0, nan),
        known=np.array([True, True, False]),
        prompt=array(220.0, 220.0, 220.0),
        queued=array(0.0, 900.0, nan),
        waiting=array(0.0, 1.5, nan),
        running=array(0.0, 16.0, nan),
        throughput=array(0.0, 800.0, nan),
        qps_1m=array(0.0, 4.0, nan),
        usage=array(0.0, 0.6, nan),
    )


def _read_only(loads: Loads) -> Loads:
    """The same arrays in such a way that nobody can write to the monitor's own."""
    views = {}
    for field in fields(Loads):
        view = getattr(loads, field.name).view()
        view.flags.writeable = False
        views[field.name] = view
    return Loads(**views)


def _reason(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
