"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def table_name() -> Iterator[str]:
    """The name of a table that nobody else uses; whatever the test left under it is removed."""
    name = f"/loadboard-test-{os.getpid()}-{secrets.token_hex(4)}"
    yield name
    for left in Path("/dev/shm").glob(f"{name[1:]}*"):
        left.unlink(missing_ok=True)
