"""Results on disk: a file of lines, one JSON object each, that is only ever appended to.

So a run that was interrupted goes on where it stopped. A line says which code it is of; only results of the
present code are found. A line that is no result, cut off by whatever ended the process or damaged otherwise, is
skipped and counted. Several processes may add to one file.
"""

from __future__ import annotations

import fcntl
import json
import math
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
        self._found: dict[_Key, Outcome] = {}
        #: Lines that are no results.
        self.damaged = 0
        for line in (path.read_bytes() if path.exists() else b"").splitlines():
            try:
                found = _parsed(line)
            except _DAMAGE:
                self.damaged += 1
            else:
                self._found.update([found] if found else [])

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
        self._append(line.encode() + b"\n")
        self._found[key] = outcome

    def _append(self, line: bytes) -> None:
        """On a line of its own, whoever has left the last one unfinished."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            end = os.fstat(descriptor).st_size
            unfinished = end > 0 and os.pread(descriptor, 1, end - 1) != b"\n"
            data = b"\n" + line if unfinished else line
            written = os.write(descriptor, data)
        finally:
            os.close(descriptor)
        if written < len(data):
            raise OSError(
                f"{self._path}: only {written} of {len(data)} bytes were written: is the disk full?"
            )

    def _key(self, run: Run) -> _Key:
        return (run.scenario.name, run.policy, run.seed, self._code(run.scenario, run.policy))


#: What comes of reading a line that is none of ours.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)


def _parsed(line: bytes) -> tuple[_Key, Outcome] | None:
    """``None`` for an empty line, and for the result of a version that measured something else; else one of
    ``_DAMAGE`` for what is no result."""
    if not line.strip():
        return None
    said = json.loads(line)
    scenario, policy, seed, code = (said[name] for name in ("scenario", "policy", "seed", "code"))
    if not all(isinstance(text, str) for text in (scenario, policy, code)) or type(seed) is not int:
        raise TypeError(f"{scenario!r}, {policy!r}, {seed!r}, {code!r} name no run")
    outcome = said["outcome"]
    if outcome.keys() != _FIELDS:
        return None
    for name, value in outcome.items():
        if type(value) not in (int, float) or not math.isfinite(value):
            raise ValueError(f"{name} is {value!r}, which nothing measures")
    return (scenario, policy, seed, code), Outcome(**outcome)
