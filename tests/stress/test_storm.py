"""Short storms; ``make stress`` runs the long ones."""

from __future__ import annotations

import pytest

from tests.stress.command_line import run_apart


@pytest.mark.parametrize(
    ("module", "option", "size", "verdict"),
    [
        ("storm", "--rounds", 200, "no count wrong"),
        ("restarts", "--rounds", 10, "no count wrong"),
        ("forks", "--rounds", 5, "no count wrong"),
        ("slots", "--reuses", 2000, "no count in a wrong slot"),
    ],
    ids=["kills", "restarts", "forks", "slot churn"],
)
def test_a_storm_leaves_every_count_right(
    table_name: str, module: str, option: str, size: int, verdict: str
) -> None:
    done = run_apart(module, table_name, option, str(size), "--seed", "7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert verdict in done.stdout
