"""``python -m bench.routing`` from end to end, on a few short runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bench.virtual.fingerprint import ROOT
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
    ours = [*_command(results, "--quick", "--jobs", "2", "--only", "one host")]
    process = subprocess.Popen(
        ours, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        wait_until(lambda: len(_tables_of(process.pid)) >= 2, timeout=60.0, what="two runs of the product")
        workers = _tables_of(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    assert process.returncode == 130
    assert f"goes on from {results}" in said
    assert not [path for path in workers if path.exists()]


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
    assert not (tmp_path / "results.jsonl").exists()


@pytest.mark.parametrize("arguments", [("--only", "no such goal"), ("--jobs", "0"), ("--seeds", "x")])
def test_what_cannot_be_done_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    assert _run(tmp_path / "results.jsonl", *arguments).returncode == 2
