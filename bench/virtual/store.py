"""Results on disk: a file of lines, one JSON object each, that is only ever appended to.

So a run that was interrupted goes on where it stopped. A line says which code it is of; only results of the
present code are found. A line that was cut off, by whatever ended the process, is no line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

from bench.virtual.fingerprint import fingerprint
from bench.virtual.plan import Run
from bench.virtual.runs import Outcome
from bench.virtual.scenarios import Scenario

_FIELDS = {field.name for field in fields(Outcome)}
_Key = tuple[str, str, int, str]


class Store:
    """``OSError`` where the file can be neither read nor written, its folder is made."""

    def __init__(self, path: Path, code: Callable[[Scenario, str], str] = fingerprint) -> None:
        """``code`` is the present one for a scenario and a policy."""
        self._path, self._code = path, code
        path.parent.mkdir(parents=True, exist_ok=True)
        data = path.read_bytes() if path.exists() else b""
        self._ends_within_a_line = bool(data) and not data.endswith(b"\n")
        self._found: dict[_Key, Outcome] = {}
        for line in data.splitlines():
            key, outcome = _parsed(line)
            if key is not None and outcome is not None:
                self._found[key] = outcome

    def get(self, run: Run) -> Outcome | None:
        """The outcome of that run, if the present code has made it."""
        return self._found.get(self._key(run))

    def add(self, run: Run, outcome: Outcome, seconds: float) -> None:
        """Keep it; ``seconds`` is the CPU time that it took."""
        key = self._key(run)
        scenario, policy, seed, code = key
        line = json.dumps(
            {
                "scenario": scenario,
                "policy": policy,
                "seed": seed,
                "code": code,
                "seconds": round(seconds, 2),
                "outcome": outcome.as_dict(),
            }
        )
        # One write to the end of the file: lines of two processes do not mix.
        data = (b"\n" if self._ends_within_a_line else b"") + line.encode() + b"\n"
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            written = os.write(descriptor, data)
        finally:
            os.close(descriptor)
        self._ends_within_a_line = written < len(data)
        if self._ends_within_a_line:
            raise OSError(
                f"{self._path}: only {written} of {len(data)} bytes were written: is the disk full?"
            )
        self._found[key] = outcome

    def _key(self, run: Run) -> _Key:
        return (run.scenario.name, run.policy, run.seed, self._code(run.scenario, run.policy))


def _parsed(line: bytes) -> tuple[_Key | None, Outcome | None]:
    try:
        said = json.loads(line)
        key = (said["scenario"], said["policy"], said["seed"], said["code"])
        outcome = said["outcome"]
        if set(outcome) != _FIELDS:
            return None, None  # of a version that measured something else
        return key, Outcome(**outcome)
    except (ValueError, KeyError, TypeError):
        return None, None
