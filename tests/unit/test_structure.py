"""Imports run one way, and the parts that are embedded import nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = {"score_table", "monitor", "proxy_adapter", "loadboard"}
ALLOWED = {
    "score_table": {"score_table"},
    "monitor": {"monitor", "score_table"},
    "proxy_adapter": {"proxy_adapter", "score_table"},
    "loadboard": ROOMS,
}
EMBEDDED_EXTERNALS = {"numpy", "posix_ipc"}
FRAMEWORKS = {"starlette", "uvicorn", "httpx"}


def _modules(room: str) -> list[Path]:
    return sorted((ROOT / room).rglob("*.py"))


def _imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_a_room_imports_only_the_rooms_below_it(room: str) -> None:
    for path in _modules(room):
        assert _imported(path) & ROOMS <= ALLOWED[room], path


@pytest.mark.parametrize("room", ["score_table", "proxy_adapter"])
def test_the_embedded_rooms_import_only_the_standard_library_numpy_and_posix_ipc(room: str) -> None:
    for path in _modules(room):
        allowed = EMBEDDED_EXTERNALS | ROOMS | set(sys.stdlib_module_names)
        if "demo_proxy" in path.parts:
            allowed = allowed | FRAMEWORKS
        assert _imported(path) <= allowed, path


def test_importing_the_adapter_loads_no_framework_and_no_monitor() -> None:
    code = (
        "import sys, proxy_adapter; "
        "print(sorted({name.split('.')[0] for name in sys.modules} & "
        "{'httpx', 'pydantic', 'structlog', 'starlette', 'uvicorn', 'rich', 'monitor', 'loadboard', 'asyncio'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert set(ast.literal_eval(found)) <= {"asyncio"}


def test_every_package_is_listed_for_installation() -> None:
    listed = (ROOT / "setup.cfg").read_text().split("packages =")[1].split("\ninstall_requires")[0].split()
    there = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for room in ROOMS
        for path in (ROOT / room).rglob("__init__.py")
    }
    assert set(listed) == there
