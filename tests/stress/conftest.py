"""Fixtures of the stress tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stress.keeper import Keeper


@pytest.fixture
def keeper(table_name: str) -> Iterator[Keeper]:
    """A table with a small monitor that compares exactly."""
    with Keeper(table_name) as running_keeper:
        yield running_keeper
