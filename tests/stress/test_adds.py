"""No count is lost between threads or processes; the full size is in ``make stress``."""

from __future__ import annotations

import subprocess
import sys

import pytest

from score_table.pick import CORE_VARIABLE, CORES


@pytest.mark.parametrize(
    ("core", "adds"),
    [(core, adds) for core, adds in (("native", 1_000_000), ("numpy", 20_000)) if core in CORES],
)
def test_four_threads_and_four_processes_lose_no_count(core: str, adds: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.stress.adds", "--adds", str(adds)],
        env={CORE_VARIABLE: core, "PATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("none lost") == 2
