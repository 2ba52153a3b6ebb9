"""What is said to be wrong with a configuration, for the tests of all its parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from monitor.config import ConfigError, load_config

#: A file with nothing but one instance.
ONE = '[[instances]]\nurl = "http://10.0.0.1:8000"\n'

Write = Callable[[str], Path]


def writer(directory: Path) -> Write:
    """Writes a configuration file into ``directory``."""

    def write(text: str) -> Path:
        file = directory / "loadboard.toml"
        file.write_text(text, "utf-8")
        return file

    return write


def problems_of(
    file: Path | None,
    flags: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    instances: Sequence[str] = (),
) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(file, flags or {}, env or {}, instances)
    assert len(caught.value.problems) == len(caught.value.lines())
    prefix = f"{file}: "
    return [line.removeprefix(prefix) for line in caught.value.lines()]


def the_problem(file: Path | None, *rest: object) -> str:
    (problem,) = problems_of(file, *rest)  # type: ignore[arg-type]
    return problem
