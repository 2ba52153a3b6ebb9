"""Loads of one slot for the tests of score modes."""

from __future__ import annotations

import math

import numpy as np

from monitor.scores.base import Loads

IDLE: dict[str, float | bool] = {
    "own": 0.0,
    "others": 0.0,
    "n": 0.0,
    "pending": 0.0,
    "kv": 0.0,
    "speed": 1.0,
    "slots": math.nan,
    "known": True,
    "prompt": 220.0,
    "queued": math.nan,
    "waiting": math.nan,
    "running": math.nan,
    "throughput": math.nan,
    "qps_1m": math.nan,
    "usage": math.nan,
}


def loads(**given: float) -> Loads:
    """One slot; what is not given is that of an idle instance that tells nothing but its requests."""
    assert given.keys() <= IDLE.keys()
    return Loads(**{name: np.array([value]) for name, value in {**IDLE, **given}.items()})


def fleet(*slots: dict[str, float]) -> Loads:
    """Several slots, each as for :func:`loads`."""
    ones = [loads(**slot) for slot in slots]
    return Loads(**{name: np.concatenate([getattr(one, name) for one in ones]) for name in IDLE})
