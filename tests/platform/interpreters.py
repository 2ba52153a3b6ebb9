"""The CPython interpreters of this machine that loadboard has to work on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.platform.trees import NotPossible

VERSIONS = ("3.10", "3.11", "3.12", "3.13")

_PROBE = (
    "import ensurepip, json, sys, sysconfig, venv; "
    "print(json.dumps([sys.implementation.name, '%d.%d' % sys.version_info[:2], sys.version.split()[0], "
    "bool(sysconfig.get_config_var('Py_GIL_DISABLED'))]))"
)


class Interpreter(NamedTuple):
    """One that starts and can make virtual environments."""

    version: str  # "3.10"
    release: str  # "3.10.13"
    free_threaded: bool
    path: Path


def examine(path: Path) -> Interpreter | None:
    """What is at ``path``; ``None`` for anything but a CPython with venv and ensurepip."""
    try:
        answer = subprocess.run([path, "-I", "-c", _PROBE], capture_output=True, text=True, timeout=60)
        name, version, release, free_threaded = json.loads(answer.stdout)
    except (OSError, subprocess.TimeoutExpired, ValueError):
        return None
    return Interpreter(version, release, free_threaded, path) if name == "cpython" else None


def find(environ: Mapping[str, str] = os.environ) -> dict[str, Interpreter]:
    """By version, the ordinary builds: those named by ``PYTHONS`` (paths, commands or versions), or what pyenv
    and the PATH have of :data:`VERSIONS`.

    Raises :class:`NotPossible` where ``PYTHONS`` names something that is no CPython.
    """
    named = environ.get("PYTHONS", "").split()
    found: dict[str, Interpreter] = {}
    for name in named or VERSIONS:
        for path in _candidates(name, environ):
            interpreter = examine(path)
            if interpreter is not None and not interpreter.free_threaded:
                found.setdefault(interpreter.version, interpreter)
                break
        else:
            if named:
                raise NotPossible(f"PYTHONS names {name}, which is no CPython here with venv and ensurepip")
    if not found:
        raise NotPossible(f"no CPython {', '.join(VERSIONS)} with venv: name some in PYTHONS")
    return found


def _candidates(name: str, environ: Mapping[str, str]) -> Iterator[Path]:
    if name[0].isdigit():
        home = Path(environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
        yield from sorted(home.glob(f"versions/{name}*/bin/python{name}"))
        name = f"python{name}"
    path = shutil.which(name)
    if path is not None:
        yield Path(path)
