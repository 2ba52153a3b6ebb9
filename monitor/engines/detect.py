"""Which engine an answer comes from, judged by the names in it and never by a setting alone."""

from __future__ import annotations

from monitor.engines import ENGINES, Engine
from monitor.engines.sglang import GET_LOAD, LOADS

#: What to ask an unknown engine, in this order: nearly every engine has the first.
DETECTION_PATHS = ("/metrics", LOADS, GET_LOAD)


def detect(path: str, body: bytes) -> Engine | None:
    """The engine whose names the body holds; ``None`` if there is no adapter for it. Never raises."""
    return next((engine for engine in ENGINES if engine.recognises(path, body)), None)


def engine_named(name: str) -> Engine:
    """The adapter of that name. Raises ``ValueError`` with the valid names."""
    for engine in ENGINES:
        if engine.name == name:
            return engine
    known = ", ".join(engine.name for engine in ENGINES)
    raise ValueError(f"unknown engine: {name}; known are auto, {known}")
