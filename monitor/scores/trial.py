"""What a score mode of another package may return, and the fleet on which it is tried before it is used."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from monitor.scores.base import FloatArray, Loads, ScoreMode
from score_table.identity import Prices
from score_table.layout import UNITS

#: The least that a request may cost, in units: half a request. With next to nothing all requests between two ticks
#: go to one instance.
LEAST_PRICE = UNITS / 2


def sound_prices(mode: ScoreMode, kv_capacity: float | None) -> Prices:
    """The prices of ``mode``, bounded. ``TypeError``, ``ValueError`` or its own error where they are none."""
    prices = mode.prices(kv_capacity)
    if not isinstance(prices, Prices):
        raise TypeError(
            f"prices({kv_capacity}) is a {type(prices).__name__}, not a score_table.identity.Prices"
        )
    bounded = prices.bounded()
    if bounded.request < LEAST_PRICE:
        raise ValueError(
            f"prices({kv_capacity}).request is {prices.request:g}, so all requests until the next tick would go to "
            f"one instance: at least {LEAST_PRICE:g} units are needed, half a request, and {UNITS} are usual"
        )
    return bounded


def finite_score(mode: ScoreMode, loads: Loads) -> FloatArray:
    """The score of ``mode``, of the shape of ``loads``; ``ValueError``, ``ArithmeticError`` or its own error where it
    is none."""
    if not len(loads.n):
        return np.zeros(0)
    score = np.asarray(mode.score(_read_only(loads)), dtype=np.float64)
    if score.shape != loads.n.shape:
        raise ValueError(f"score(loads) has the shape {score.shape} and the loads have {loads.n.shape}")
    bad = np.flatnonzero(~np.isfinite(score))
    if len(bad):
        raise ArithmeticError(f"score(loads) is {score[bad[0]]} for slot {bad[0]} and has to be finite")
    return score


def fault_of(mode: Any, name: str) -> str:
    """What is wrong with what a factory has returned; empty if it is a mode."""
    try:
        own_name = getattr(mode, "name", None)
        if own_name != name:
            return f"its name is {own_name!r} and has to be that of the entry point"
        for kv_capacity in (None, 100_000.0):
            sound_prices(mode, kv_capacity)
        score, more = finite_score(mode, _example(0.0)), finite_score(mode, _example(1.0))
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return reason(error)
    if not (more > score).all():
        return (
            f"on a made-up fleet one more request changes its scores from {score.tolist()} to {more.tolist()}, "
            "but each has to grow with loads.n: else all requests go to one instance"
        )
    if (score < 0.0).any():
        return (
            f"on a made-up fleet its scores are {score.tolist()}, but none may be negative: they are divided by the "
            "weight of the instance, so a light one would be the better for it"
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


def reason(error: BaseException) -> str:
    """Kind and text of an error."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
