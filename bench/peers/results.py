"""The runs made so far, in a file that grows line by line, so that a broken bench can go on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.peers.experiments import Run
from bench.peers.outcome import Outcome


class OtherSettingsError(Exception):
    """The file is of a bench with other settings, or no such file at all."""


class ResultsFile:
    """``file`` may be absent: then nothing is kept. The first line holds the settings, each other one a run.

    A run that did not count stands there too, and is made again. ``OtherSettingsError`` where the file's
    settings are not ``settings``: runs of both must not be mixed.
    """

    def __init__(self, file: Path | None, settings: Mapping[str, Any]) -> None:
        self._file = file
        self.counted: dict[Run, dict[str, Any]] = {}  #: figures of the runs that count
        self.rejected: dict[Run, list[str]] = {}  #: why the others do not
        if file is None:
            return
        # Through JSON, as what is read back has been.
        wanted = json.loads(json.dumps({"settings": dict(settings)}))
        if not file.exists() or not file.stat().st_size:
            file.write_text(json.dumps(wanted) + "\n")
            return
        try:
            # What has no end of its line was being written when the bench was killed.
            whole, _, rest = file.read_text().rpartition("\n")
            first, *lines = [json.loads(line) for line in whole.splitlines()]
            if first != wanted:
                raise OtherSettingsError(f"{file} is of a bench with other settings: {first}, not {wanted}")
            for line in lines:
                self._take(Run(**line["run"]), Outcome(line["figures"], line["problems"]))
            if rest:
                file.write_text(whole + "\n")
        except (ValueError, LookupError, TypeError) as error:
            raise OtherSettingsError(f"{file} is no results file of this bench: {error}") from None

    def add(self, run: Run, found: Outcome) -> None:
        """Take in a run, on the disk first."""
        if self._file is not None:
            line = {"run": run._asdict(), "figures": found.figures, "problems": found.problems}
            with self._file.open("a") as file:
                file.write(json.dumps(line) + "\n")
        self._take(run, found)

    def _take(self, run: Run, found: Outcome) -> None:
        if found.problems:
            self.rejected[run] = found.problems
        else:
            self.counted[run] = found.figures
            self.rejected.pop(run, None)
