"""A short hunt for torn words and mixed records; ``make stress-torn`` runs the long one."""

from __future__ import annotations

from tests.stress.hunt import run_apart


def test_no_torn_word_is_read_while_another_process_stores_or_is_stopped_doing_it(table_name: str) -> None:
    done = run_apart("tests.stress.torn", table_name, seed=7, words=300_000, stops=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_record_or_identity_is_a_mixture_of_two(table_name: str) -> None:
    done = run_apart("tests.stress.mixed", table_name, seed=7, records=60_000)
    assert done.returncode == 0, done.stdout + done.stderr
