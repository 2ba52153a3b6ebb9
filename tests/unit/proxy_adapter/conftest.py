"""Fixtures of the proxy side."""

from __future__ import annotations

import pytest

from score_table.pick import CORE_VARIABLE, CORES


@pytest.fixture(params=[name for name in ("native", "numpy") if name in CORES])
def each_core(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The way of a request in C, then in Python."""
    monkeypatch.setenv(CORE_VARIABLE, request.param)
    return str(request.param)
