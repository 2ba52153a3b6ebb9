"""Monitors as processes, for the tests of the daemon."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.monitor.daemon_rig import Monitor, Start


@pytest.fixture
def monitor(tmp_path: Path, table_name: str) -> Iterator[Start]:
    """Makes monitors of one table that end with the test."""
    made: list[Monitor] = []

    def make(listed: dict[str, str], **options: object) -> Monitor:
        directory = tmp_path / str(len(made))
        directory.mkdir()
        made.append(Monitor(directory, table_name, listed, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()
