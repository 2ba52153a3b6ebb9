"""Score modes that other packages have installed, by name; whether they work is seen when one is loaded."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points

#: Entry points of this group are score modes.
GROUP = "loadboard.scores"


def installed(name: str) -> list[EntryPoint]:
    """The entry points of this name: one, unless two packages have the same."""
    return list(entry_points(group=GROUP, name=name))


def origin(name: str) -> str:
    """The installed mode ``name`` in words: its entry point and package; empty if there is none."""
    return " and ".join(shown(each) for each in installed(name))


def shown(point: EntryPoint) -> str:
    """An entry point with its place and package."""
    package = f" of {point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"entry point {point.name!r} ({point.value}){package}"


def choices(name: str, own: Sequence[str]) -> str:
    """What may stand in the place of ``name``, in words. ``own`` are the monitor's own modes."""
    known = [*own, *sorted({each.name for each in entry_points(group=GROUP)} - set(own))]
    near = difflib.get_close_matches(name.lower().replace("-", "_"), known, n=1, cutoff=0.7)
    return (
        f"use one of {', '.join(known)}, or install the package whose entry point {name!r} is in the group "
        f"{GROUP}" + (f"; did you mean {near[0]}?" if near else "")
    )
