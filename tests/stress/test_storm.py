"""A short kill storm; ``make stress`` runs the long one."""

from __future__ import annotations

from tests.stress.storm import run_apart


def test_200_kills_of_workers_and_monitors_leave_every_count_right(table_name: str) -> None:
    done = run_apart(rounds=200, seed=7, table=table_name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no count wrong" in done.stdout
