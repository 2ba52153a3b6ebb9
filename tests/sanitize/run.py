"""The native core under AddressSanitizer and UndefinedBehaviorSanitizer: built apart, in a copy of the tree.

``python -m tests.sanitize.run [pytest arguments]``: the tests that touch the core, or those that are named. The
exit status is that of pytest, 77 where the compiler has no sanitizers. Python itself is not built with them, so
leaks are not looked for; it takes its memory from malloc, so that the core's allocations have red zones.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

TREE = Path(__file__).parents[2]
NO_SANITIZER = 77
_COPIED = ("score_table", "proxy_adapter", "monitor", "loadboard", "tests", "docs", "pyproject.toml")
_TESTS = (
    "tests/unit/score_table",
    "tests/unit/proxy_adapter/test_contract.py",
    "tests/unit/proxy_adapter/test_dispatch.py",
    "tests/unit/proxy_adapter/test_twins.py",
    "tests/unit/proxy_adapter/test_table_strategies.py",
)
_LIBRARIES = ("libasan.so", "libubsan.so")
_FLAGS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-O1",
    "-g",
    "-std=c11",
    "-shared",
    "-fPIC",
    "-Wall",
    "-Wextra",
)


class NoSanitizer(Exception):
    """Nothing can be built here; the text says what is missing."""


def compiler() -> list[str]:
    """The C compiler; ``NoSanitizer`` where there is none, or one without the libraries."""
    command = shlex.split(os.environ.get("CC") or "gcc")
    if shutil.which(command[0]) is None:
        raise NoSanitizer(f"there is no compiler {command[0]}")
    for library in _LIBRARIES:
        if not Path(_place_of(command, library)).is_absolute():
            raise NoSanitizer(f"{command[0]} has no {library}")
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        raise NoSanitizer("there are no Python headers")
    return command


def _place_of(command: list[str], library: str) -> str:
    query = [*command, f"-print-file-name={library}"]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def build(tree: Path, command: list[str]) -> None:
    """Build the extension of ``tree`` in place."""
    sources = sorted(str(path) for path in (tree / "score_table" / "native").glob("*.c"))
    limited = [] if sysconfig.get_config_var("Py_GIL_DISABLED") else ["-DPy_LIMITED_API=0x030A0000"]
    include = f"-I{sysconfig.get_path('include')}"
    target = str(tree / "score_table" / "_native.abi3.so")
    subprocess.run([*command, *_FLAGS, *limited, include, *sources, "-o", target], check=True)


def run(arguments: list[str]) -> int:
    """Build a copy and run pytest in it; ``NoSanitizer`` where that cannot be built."""
    command = compiler()
    with tempfile.TemporaryDirectory(prefix="loadboard-sanitize-") as place:
        tree = Path(place)
        for name in _COPIED:
            source = TREE / name
            if source.is_dir():
                skipped = shutil.ignore_patterns("*.so", "__pycache__", "data")
                shutil.copytree(source, tree / name, ignore=skipped)
            else:
                shutil.copy(source, tree / name)
        build(tree, command)
        environment = {
            **os.environ,
            "LD_PRELOAD": " ".join(_place_of(command, library) for library in _LIBRARIES),
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",
            "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
            "PYTHONMALLOC": "malloc",
            "PYTHONPATH": str(tree),
            "LOADBOARD_REQUIRE_NATIVE": "1",
        }
        check = "import score_table._native as core; print(core.__file__)"
        built = subprocess.run(
            [sys.executable, "-c", check],
            env=environment,
            cwd=tree,
            capture_output=True,
            text=True,
            check=False,
        )
        if not built.stdout.startswith(str(tree)):
            raise RuntimeError(f"another build is in use: {built.stdout}{built.stderr}")
        # Not by descriptors: pytest would keep what the sanitizer says of a process that then dies.
        options = ["-q", "--capture=sys", "-p", "no:cacheprovider"]
        named = any((tree / argument.partition("::")[0]).exists() for argument in arguments)
        pytest = [sys.executable, "-m", "pytest", *options, *arguments, *(() if named else _TESTS)]
        return subprocess.run(pytest, env=environment, cwd=tree, check=False).returncode


def main() -> int:
    """The exit status."""
    try:
        return run(sys.argv[1:])
    except NoSanitizer as missing:
        print(f"nothing was run: {missing}", file=sys.stderr)
        return NO_SANITIZER


if __name__ == "__main__":
    sys.exit(main())
