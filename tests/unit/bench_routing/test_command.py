"""``python -m bench.routing`` from end to end, on a few short runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.virtual.fingerprint import ROOT
from bench.virtual.leftovers import sweep
from tests.waiting import wait_until

#: One goal with one seed: two short runs of the product.
USUAL = ("--quick", "--seeds", "1", "--jobs", "2", "--only", "30 s after")


def _command(results: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "bench.routing", "--results", str(results), *arguments]


def _run(results: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(results, *arguments), cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_a_run_is_kept_judged_and_not_made_again(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    first = _run(results, *USUAL, "--check", "--json", str(tmp_path / "all.json"), "--svg", str(tmp_path))
    assert first.stderr == ""
    assert first.returncode in (0, 1)
    assert "2 runs, 0 of them in" in first.stdout
    assert "30 s after a worker with 60 requests was killed / without" in first.stdout
    written = json.loads((tmp_path / "all.json").read_text())
    assert [each["seed"] for each in written["runs"]] == [1, 1]
    (goal,) = written["goals"]
    assert goal["met"] is (first.returncode == 0)
    assert goal["measured"]["value"] > 0
    assert (tmp_path / "routing-mixes.svg").exists()
    again = _run(results, *USUAL, "--check")
    assert "2 runs, 2 of them in" in again.stdout
    assert again.returncode == first.returncode
    assert len(results.read_text().splitlines()) == 2


def test_an_interrupted_run_says_how_to_go_on_and_leaves_no_table(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    with _two_runs(results) as (process, workers):
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"goes on from {results}" in said
    assert not [path for path in workers if path.exists()]


def test_the_workers_of_one_that_was_killed_end_by_themselves_and_leave_no_table(tmp_path: Path) -> None:
    with _two_runs(tmp_path / "results.jsonl") as (process, tables):
        workers = [int(path.name.split("-")[2]) for path in tables]
        process.kill()
        process.wait()
        wait_until(lambda: not any(map(_runs, workers)), timeout=60.0, what="the end of the workers")
    assert not [path for path in tables if path.exists()]


@contextmanager
def _two_runs(results: Path) -> Iterator[tuple[subprocess.Popen[str], list[Path]]]:
    """The command in a group of its own, and the tables of two runs that it is about."""
    ours = [*_command(results, "--quick", "--jobs", "2", "--only", "one host")]
    process = subprocess.Popen(
        ours, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_until(lambda: len(_tables_of(process.pid)) >= 2, timeout=60.0, what="two runs of the product")
        yield process, _tables_of(process.pid)
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _runs(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _tables_of(group: int) -> list[Path]:
    """Tables of the processes in that group."""
    found = []
    for path in Path("/dev/shm").glob("loadboard-routing-*-0"):
        try:
            if os.getpgid(int(path.name.split("-")[2])) == group:
                found.append(path)
        except ProcessLookupError:
            continue
    return found


def test_the_plan_is_listed_without_running_it(tmp_path: Path) -> None:
    done = _run(tmp_path / "results.jsonl", "--list")
    assert done.returncode == 0
    assert "not yet measured" in done.stdout
    assert "sixteen hosts" in done.stdout
    assert done.stdout.startswith(
        "runs: simulations that a line needs; new: those of them that no line above needs"
    )
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.parametrize("arguments", [("--only", "no such goal"), ("--jobs", "0"), ("--seeds", "x")])
def test_what_cannot_be_done_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert _run(tmp_path / "results.jsonl", *arguments).returncode == 2


def test_a_check_of_tables_alone_is_refused_before_anything_is_run(tmp_path: Path) -> None:
    done = _run(tmp_path / "results.jsonl", "--check", "--only", "other weights")
    assert done.returncode == 2
    assert done.stderr == (
        "no goal is called like 'other weights', only tables are, so there is nothing to check: leave --check out, "
        "or see --list\n"
    )
    assert done.stdout == ""
    assert _run(tmp_path / "results.jsonl", "--check", "--list", "--only", "other weights").returncode == 0


def test_damaged_results_are_told_and_do_not_stop_it(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text("[" * 100_000 + "\n{}\n")
    done = _run(results, "--list")
    assert done.returncode == 0
    assert done.stderr == f"{results}: 2 damaged lines are skipped\n"


def test_only_what_processes_that_are_gone_left_behind_is_swept(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    gone, ours = process.pid, os.getpid()
    swept = [
        f"loadboard-routing-{gone}-0",
        f"loadboard-routing-{gone}-11",
        f"loadboard-routing-{gone}-0.lock",
    ]
    kept = [
        f"loadboard-routing-{ours}-0",
        f"loadboard-routing-{ours}-0.lock",
        "loadboard-routing-1-0",
        f"loadboard-routing-{gone}",
        f"loadboard-routing-{gone}-0.other",
        f"loadboard-routing-{gone}-x",
        f"loadboard-routing-x{gone}-0",
        "loadboard-routing-0-0",
        f"loadboard-ticking-{gone}-0",
        f"other-loadboard-routing-{gone}-0",
    ]
    for name in (*swept, *kept):
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
