"""A pytest plugin (``-p tests.platform.without_gil``): the run fails if anything has turned the GIL on."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

_enabled: Callable[[], bool] | None = getattr(sys, "_is_gil_enabled", None)
if _enabled is None:
    raise pytest.UsageError(f"{sys.executable} is no free-threaded build")
gil_is_on = _enabled


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Only at the end is it known what was imported on the way."""
    if gil_is_on():
        sys.stderr.write("\nthe GIL is on: a module was imported that does not say it can do without\n")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    else:
        print("\nthe GIL was off from the first test to the last")
