"""How what a table says is put for people: the same words in ``loadboard dump`` and ``why`` and in the demo's view."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

#: With usual ids a table of texts fits this; the gaps between its columns become smaller for it.
_WIDTH = 100

#: Shown for everything that is not known; a 0 is a known 0.
UNKNOWN = "-"

#: Said where the monitor is silent.
SILENT = "The monitor is silent: states (marked ?) and samples are those of its last tick."

#: Said of a copy.
COPY = "A copy of a table (there is no lock file beside it), looked at as of its last heartbeat."


def picks(degraded: str | None) -> str:
    """What a pick made now goes by."""
    return "by score" if degraded is None else f"DEGRADED ({degraded})"


def printable(line: str) -> str:
    """``line`` with what no terminal should be sent as escapes: control characters, and bytes that are no text."""
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in line)


def is_silent(degraded: str | None) -> bool:
    """Whether nobody keeps the table up to date."""
    return degraded == "outstanding"


def state(state: str, mark: str, *, estimated: bool, silent: bool) -> str:
    """State, mark and estimate in as few words as say it all.

    The score of an instance that is not up is always an estimate, and that of a marked one is not looked at.
    """
    words = [state + "?" * silent]
    if mark and mark != state:
        words.append(mark)
    elif estimated and state == "up":
        words.append("estimated")
    return ", ".join(words)


def columns(rows: Sequence[Sequence[str]], texts: int) -> list[str]:
    """The rows as lines, each column as wide as its widest cell; the first ``texts`` begin at the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    gap = "  " if sum(widths) + 2 * (len(widths) - 1) <= _WIDTH else " "
    return [
        gap.join(
            cell.ljust(width) if column < texts else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def decimal(value: float | None, digits: int) -> str:
    # Rounded first: what is left of a small negative number has no sign.
    return UNKNOWN if value is None else f"{round(value, digits) + 0.0:.{digits}f}"


def whole(value: float | None) -> str:
    return decimal(value, 0)


def seconds(value: float | None, digits: int) -> str:
    return UNKNOWN if value is None else f"{value:.{digits}f} s"


def percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.1%}"


def values_of(facts: Any) -> dict[str, Any]:
    """A dataclass as the plain values of its JSON; a zero has no sign."""
    values: dict[str, Any] = _unsigned(dataclasses.asdict(facts))
    return values


def _unsigned(value: Any) -> Any:
    if isinstance(value, float):
        return value + 0.0
    if isinstance(value, dict):
        return {key: _unsigned(each) for key, each in value.items()}
    return [_unsigned(each) for each in value] if isinstance(value, (list, tuple)) else value
