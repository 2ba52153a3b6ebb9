"""Waiting for a condition with a deadline; the only way in which tests wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_PAUSE_S = 0.01


def wait_until(condition: Callable[[], object], timeout: float = 5.0, what: str = "the condition") -> None:
    """Return as soon as ``condition()`` is true; ``AssertionError`` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s in vain for {what}")
        time.sleep(_PAUSE_S)


async def wait_until_async(
    condition: Callable[[], object], timeout: float = 5.0, what: str = "the condition"
) -> None:
    """As :func:`wait_until`, on the event loop."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout} s in vain for {what}")
        await asyncio.sleep(_PAUSE_S)
