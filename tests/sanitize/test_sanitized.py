"""A short run under the sanitizers; ``make sanitize`` runs everything that touches the core."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.sanitize.run import NoSanitizer, compiler


def test_no_hostile_segment_makes_the_core_read_outside_or_do_what_is_undefined() -> None:
    try:
        compiler()
    except NoSanitizer as missing:
        pytest.skip(f"no sanitizers here: {missing}")
    wanted = "cells or scribbled or header_words or lane_blocks or native"
    tests = ["tests/unit/score_table/test_hostile.py", "tests/unit/score_table/test_pick_native.py"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.sanitize.run", *tests, "-k", wanted],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-10000:]
