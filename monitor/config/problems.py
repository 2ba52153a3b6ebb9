"""Faults of a configuration in words: where, which value, and what to do about it. Never a secret."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from monitor.config.address import shown
from monitor.config.fields import by_key, choices_of, is_secret, kind_of, range_of, section_of
from monitor.config.model import InstanceConfig, Settings
from monitor.config.scoring import PoolConfig

_LONGEST_VALUE = 80
_OUT_OF_RANGE = frozenset({"greater_than_equal", "less_than_equal", "multiple_of", "finite_number"})


@dataclass(frozen=True)
class Problem:
    """One fault. ``key_path`` is its key (``instances[2].url``), empty for the file as a whole."""

    key_path: str
    message: str
    source: str = ""  #: the flag or environment variable at fault; empty for the file

    def __str__(self) -> str:
        where = self.source or self.key_path
        return f"{where}: {self.message}" if where else self.message


class ConfigError(Exception):
    """The configuration cannot be used. ``problems`` are all its faults; ``file`` is where it was read."""

    def __init__(self, problems: Sequence[Problem], file: Path | None = None) -> None:
        self.problems = list(problems)
        self.file = file
        super().__init__("\n".join(self.lines()))

    def lines(self) -> list[str]:
        """One line per problem, beginning with the file, the flag or the variable that is at fault."""
        return [
            str(problem) if problem.source or self.file is None else f"{self.file}: {problem}"
            for problem in self.problems
        ]


def path_of(location: Sequence[str | int]) -> str:
    """``("instances", 2, "url")`` as ``instances[2].url``."""
    text = ""
    for step in location:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def sentence(error: ErrorDetails, model: type[BaseModel], below: str = "") -> str:
    """What pydantic found in a value for ``model``, in the words of a user of the file.

    ``below`` is the path of ``model`` itself, for hints at other keys.
    """
    location, kind, value = error["loc"], error["type"], error["input"]
    if kind == "fault":
        return error["msg"]
    owner, field = _find(model, location)
    key = str(location[-1]) if location else ""
    if kind == "extra_forbidden":
        return _unknown_key(key, owner, _join(below, path_of(location[:-1])))
    if kind == "missing":
        return f"is missing: add {key} = ... ({range_of(field)})" if field else "is missing"
    if field is None:
        return f"{shown_value(value)} is not a table of keys and values"
    if kind == "literal_error":
        return f"{shown_value(value)} is not one of {range_of(field)}" + _did_you_mean(
            str(value), choices_of(field)
        )
    if is_secret(field):
        return "the token has to be a text in quotes"
    if kind == "string_type":
        return f"{shown_value(value)} is not a text: put it in quotes"
    if kind in _OUT_OF_RANGE:
        return f"{shown_value(value)} is out of range: use {range_of(field)}"
    allowed = f": use {range_of(field)}" if range_of(field) else ""
    section = section_of(field)
    if section is not None:
        place = f"{_section_prefix(below)}{key}"
        return f"{shown_value(value)} is not a table: write [{place}] and its keys below it"
    return f"{shown_value(value)} is not {kind_of(field)}{allowed}"


def _find(model: type[BaseModel], location: Sequence[str | int]) -> tuple[type[BaseModel], FieldInfo | None]:
    """The innermost model on the way to ``location`` and the field of it that leads there."""
    field: FieldInfo | None = None
    for step in location:
        inner = section_of(field) if field is not None else None
        if field is not None and inner is None:
            break  # deeper steps are inside one value, as in tags
        model = inner or model
        field = by_key(model).get(str(step))
        if field is None:
            break
    return model, field


def _unknown_key(key: str, owner: type[BaseModel], below: str) -> str:
    keys = list(by_key(owner))
    near = _did_you_mean(key, keys)
    if near:
        return f"unknown key{near}"
    places = [path for path, model in _places(below) if key in by_key(model) and model is not owner]
    if places:
        return f"unknown key here: {key} belongs {' or '.join(places)}"
    return f"unknown key: remove it, or use one of {', '.join(keys)}"


def _places(below: str) -> Iterator[tuple[str, type[BaseModel]]]:
    top = "at the top level, above the first [section] of the file"
    yield top, Settings
    for key, field in by_key(Settings).items():
        section = section_of(field)
        if section is not None:
            yield f"under [{_section_prefix(below)}{key}]", section
    for lists, listed in (("instances", InstanceConfig), ("pools", PoolConfig)):
        if not below.startswith(lists):
            yield f"under [[{lists}]]", listed


def _section_prefix(below: str) -> str:
    """What stands before the name of a section of the table ``below``."""
    return "pools." if below.startswith("pools") else ""


def _did_you_mean(word: str, words: Sequence[str]) -> str:
    near = difflib.get_close_matches(word.lower().replace("-", "_"), words, n=1, cutoff=0.7)
    return f"; did you mean {near[0]}?" if near else ""


def _join(below: str, path: str) -> str:
    return f"{below}.{path}" if below and path else below or path


def shown_value(value: Any) -> str:
    """A value of the file as a message tells it: no password of a URL, nothing long, nothing of a table or list."""
    # What stands in a table or list that should not be there may well be a token.
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(shown(value) if isinstance(value, str) else value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
