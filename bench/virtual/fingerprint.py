"""What a result depends on besides its seed, as a short text: a result of other code is not this code's.

That is the code that was run, read from its sources without comments and docstrings, and what scenario and
policy stand for. A comparator does not depend on the product; the product's native core counts as built.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
from collections.abc import Iterator
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path

from bench.virtual.comparators import COMPARATORS
from bench.virtual.scenarios import KV_CAPACITY, WORKLOADS, Scenario
from bench.virtual.settings import SETTINGS

ROOT = Path(__file__).parents[2]
_ROOMS = {"bench", "score_table", "monitor", "proxy_adapter", "loadboard"}
_WORLD = (
    "bench.virtual.workloads",
    "bench.virtual.world",
    # Either does what the other does.
    "bench.virtual.engines_compiled",
    "bench.virtual.engines_plain",
)
#: Where a comparator's code begins, and the product's.
_COMPARATOR = (*_WORLD, "bench.virtual.comparators")
_PRODUCT = (*_WORLD, "bench.virtual.product")
#: What is said by the values that come out of it.
_AS_VALUES = {"bench.virtual.scenarios", "bench.virtual.settings", "bench.virtual.runs"}
_NATIVE = "score_table._native"


def fingerprint(scenario: Scenario, policy: str) -> str:
    """``KeyError`` for a policy that is none."""
    facts = (
        asdict(scenario),
        WORKLOADS[scenario.workload],
        KV_CAPACITY[scenario.kv],
        scenario.machine_speeds(),
        scenario.rate(),
        None if policy in COMPARATORS else SETTINGS[policy],
    )
    code = _code(_COMPARATOR if policy in COMPARATORS else _PRODUCT)
    return hashlib.sha256(f"{policy} {facts!r} {code}".encode()).hexdigest()[:16]


def modules(begin: tuple[str, ...]) -> dict[str, Path]:
    """The project's modules that ``begin`` needs, itself included, and their files."""
    found: dict[str, Path] = {}
    ahead = list(begin)
    while ahead:
        name = ahead.pop()
        path = _file(name)
        if path is None or name in found or name in _AS_VALUES:
            continue
        found[name] = path
        ahead += _imported(path)
        # Importing a module imports the packages around it.
        ahead += [name.rpartition(".")[0]]
    return found


@lru_cache
def _code(begin: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    # How a run is set up and measured. What that imports is either in ``begin`` or a table of values.
    sources = {**modules(begin), "runs": ROOT / "bench/virtual/runs.py"}
    for name in sorted(sources):
        digest.update(f"{name}\n{_bare(sources[name].read_text())}\n".encode())
    if begin == _PRODUCT:
        native = importlib.util.find_spec(_NATIVE)
        if native is not None and native.origin is not None:
            digest.update(Path(native.origin).read_bytes())
    return digest.hexdigest()


def _bare(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body = node.body[1:]
    return ast.dump(tree)


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file(name: str) -> Path | None:
    if name.split(".")[0] not in _ROOMS:
        return None
    path = ROOT / name.replace(".", "/")
    return next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()), None)
