"""Results on disk: what is kept, what is found again, and by which code."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from bench.virtual import fingerprint as fingerprints
from bench.virtual.comparators import COMPARATORS
from bench.virtual.fingerprint import ROOT, fingerprint
from bench.virtual.plan import Run
from bench.virtual.scenarios import Scenario
from bench.virtual.settings import USUAL
from bench.virtual.store import Store
from tests.unit.bench_routing.results import outcome
from tests.waiting import wait_until

HERE = Run(Scenario(), "random", 1)


def test_what_was_added_is_found_again_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "there" / "results.jsonl"
    Store(path).add(HERE, outcome(3.0), 1.5)
    again = Store(path)
    assert again.get(HERE) == outcome(3.0)
    for other in (HERE._replace(seed=2), HERE._replace(policy="round_robin")):
        assert again.get(other) is None
    assert again.get(HERE._replace(scenario=Scenario(poll=0.2))) is None
    assert json.loads(path.read_text())["seconds"] == 1.5


def test_results_of_other_code_are_ignored_and_stay(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Store(path, lambda scenario, policy: "old").add(HERE, outcome(3.0), 1.0)
    new = Store(path, lambda scenario, policy: "new")
    assert new.get(HERE) is None
    new.add(HERE, outcome(4.0), 1.0)
    assert Store(path, lambda scenario, policy: "new").get(HERE) == outcome(4.0)
    assert Store(path, lambda scenario, policy: "old").get(HERE) == outcome(3.0)


@pytest.mark.parametrize("kept", [1, 40, 150])
def test_a_line_that_was_cut_off_is_lost_alone(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "results.jsonl"
    store = Store(path)
    store.add(HERE, outcome(1.0), 1.0)
    whole = path.read_bytes()
    store.add(HERE._replace(seed=2), outcome(2.0), 1.0)
    path.write_bytes(path.read_bytes()[: len(whole) + kept])
    resumed = Store(path)
    assert resumed.get(HERE) == outcome(1.0)
    assert resumed.get(HERE._replace(seed=2)) is None
    resumed.add(HERE._replace(seed=3), outcome(3.0), 1.0)
    again = Store(path)
    assert again.get(HERE) == outcome(1.0)
    assert again.get(HERE._replace(seed=3)) == outcome(3.0)


def test_what_another_process_left_unfinished_takes_nothing_with_it(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    store = Store(path)
    store.add(HERE, outcome(1.0), 1.0)
    with path.open("ab") as other:
        other.write(b'{"scenario": "cha')
    store.add(HERE._replace(seed=2), outcome(2.0), 1.0)
    again = Store(path)
    assert again.get(HERE) == outcome(1.0)
    assert again.get(HERE._replace(seed=2)) == outcome(2.0)
    assert again.damaged == 1


def test_a_result_waits_for_another_process_that_is_writing(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Store(path).add(HERE, outcome(1.0), 1.0)
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        adding = threading.Thread(target=Store(path).add, args=(HERE._replace(seed=2), outcome(2.0), 1.0))
        adding.start()
        wait_until(lambda: _waits_for_a_lock(path), what="the wait for the lock")
        other.write(b'{"scenario": ')
        other.flush()
        other.write(b'"half"}\n')
    adding.join(timeout=30.0)
    again = Store(path)
    assert again.get(HERE._replace(seed=2)) == outcome(2.0)
    assert again.damaged == 1, "that line names no run, but it is whole"


def _waits_for_a_lock(path: Path) -> bool:
    """Whether anybody does, for a lock on this file."""
    inode = f":{path.stat().st_ino} "
    return any("->" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())


@pytest.mark.parametrize(
    "line",
    [
        "null",
        "[]",
        "{}",
        "3",
        '{"scenario": 1}',
        "\xff",
        "[" * 100_000,
        '{"a":' * 100_000,
        "9" * 10_000,
        '{"scenario": [], "policy": "random", "seed": 1, "code": "c", "outcome": {}}',
        '{"scenario": "s", "policy": "random", "seed": 1.5, "code": "c", "outcome": {}}',
        '{"scenario": "s", "policy": "random", "seed": 1, "code": "c", "outcome": []}',
        '{"scenario": "s", "policy": "random", "seed": 1, "code": "c", "outcome": null}',
        '{"scenario": "s", "policy": "random", "seed": 1, "code": "c", "outcome": "good"}',
    ],
    ids=range(14),
)
def test_lines_of_something_else_are_no_results_and_are_counted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "results.jsonl"
    Store(path).add(HERE, outcome(1.0), 1.0)
    with path.open("ab") as file:
        file.write(line.encode("latin-1") + b"\n\n")
    store = Store(path)
    assert store.get(HERE) == outcome(1.0)
    assert store.damaged == 1


@pytest.mark.parametrize("value", ["NaN", "Infinity", "1e999", "9" * 400, "null", "true", '"1.0"', "[1.0]"])
def test_an_outcome_that_nothing_measures_is_no_result(tmp_path: Path, value: str) -> None:
    path = tmp_path / "results.jsonl"
    Store(path).add(HERE, outcome(0.125), 1.0)
    text = path.read_text()
    assert '"ttft_p99": 0.125' in text
    path.write_text(text.replace('"ttft_p99": 0.125', f'"ttft_p99": {value}'))
    store = Store(path)
    assert store.get(HERE) is None
    assert store.damaged == 1


def test_an_outcome_of_other_fields_is_no_result(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Store(path).add(HERE, outcome(), 1.0)
    path.write_text(path.read_text().replace('"good"', '"bad"'))
    store = Store(path)
    assert store.get(HERE) is None
    assert store.damaged == 0


# -- which code -------------------------------------------------------------------------------------------


def test_the_code_of_the_product_is_no_code_of_a_comparator() -> None:
    comparator = set(fingerprints.modules(fingerprints._COMPARATOR))
    product = set(fingerprints.modules(fingerprints._PRODUCT))
    assert not {name for name in comparator if name.split(".")[0] not in ("bench", "loadboard")}
    assert {
        "monitor.board",
        "monitor.scores.token_aware",
        "score_table.writer",
        "score_table.ledger.native",
    } < product
    assert {"proxy_adapter.strategies.least_load", "loadboard.sim.model", "bench.virtual.world"} < product
    assert "bench.virtual.comparators" in comparator - product


def test_every_file_that_a_run_of_the_product_imports_counts() -> None:
    """Said by the running program: what is loaded of the rooms after the product was imported."""
    code = "import sys, bench.virtual.product, bench.virtual.engines_plain; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    rooms = ("bench", "monitor", "score_table", "proxy_adapter", "loadboard")
    loaded = {name for name in done.stdout.split() if name.split(".")[0] in rooms}
    uncounted = loaded - set(fingerprints.modules(fingerprints._PRODUCT))
    assert uncounted <= {"score_table._native", "bench.virtual.scenarios"}, "these count in another way"


def test_a_fingerprint_changes_with_scenario_policy_and_setting() -> None:
    usual = Scenario()
    prints = {
        fingerprint(usual, "random"),
        fingerprint(usual, "round_robin"),
        fingerprint(replace(usual, poll=0.2), "random"),
        fingerprint(usual, USUAL),
        fingerprint(usual, "count"),
    }
    assert len(prints) == 5
    assert set(COMPARATORS).isdisjoint({USUAL, "count"})


def test_comments_and_docstrings_are_no_code() -> None:
    plain = "def f(x):\n    return x\n"
    assert fingerprints._bare(plain) == fingerprints._bare(
        '"""Doc."""\n# Why.\n\ndef f(x):\n    """It."""\n    return x\n'
    )
    assert fingerprints._bare(plain) != fingerprints._bare("def f(x):\n    return -x\n")
