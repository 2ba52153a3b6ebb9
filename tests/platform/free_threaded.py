"""``make test-free-threaded``: the embedded rooms on a free-threaded CPython, the GIL shown to be off.

The interpreter is the one named by ``FREE_THREADED_PYTHON``, else ``python3.13t`` of the PATH, else one built from
Debian's source package (minutes, once; needs a C compiler). Needs a package index. Tested is what runs inside of a
proxy; arguments replace these tests, as in ``make test-free-threaded ARGS="-m tests.stress.adds"``.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.platform.debian import Debian
from tests.platform.interpreters import Interpreter, examine
from tests.platform.trees import CACHE, Failed, NotPossible, copy_tree, finish, run, say

SUITE, SOURCE_PACKAGE = "trixie", "python3.13"
BUILT = CACHE / "python3.13t"
#: Newer releases have no wheel for 3.13t, and to build them takes a Fortran or Rust tool chain.
WHEELS_ONLY = "numpy,hypothesis,pydantic-core"
TESTS = ("tests/unit/score_table", "tests/unit/proxy_adapter")
#: An operator's setting would hide what the code does by itself.
PLAIN: Mapping[str, str | None] = {
    "PYTHON_GIL": None,
    "LOADBOARD_PICK_CORE": None,
    "LOADBOARD_REQUIRE_NATIVE": "1",
}

COUNTING = Path(__file__).with_name("counting_threads.py")
THREADS, REQUESTS = 4, 25_000


def find(environ: Mapping[str, str] = os.environ) -> Interpreter:
    """A free-threaded interpreter, built if there is none. :class:`NotPossible` if that cannot be."""
    named = environ.get("FREE_THREADED_PYTHON")
    for candidate in [named] if named else ["python3.13t", str(BUILT / "bin" / "python3.13t")]:
        path = shutil.which(candidate)
        interpreter = examine(Path(path)) if path is not None else None
        if interpreter is not None and interpreter.free_threaded:
            return interpreter
    if named:
        raise NotPossible(f"FREE_THREADED_PYTHON is {named}, which is no free-threaded CPython with venv")
    return build(environ)


def build(environ: Mapping[str, str] = os.environ) -> Interpreter:
    """CPython with ``--disable-gil`` from Debian's sources, in :data:`BUILT`."""
    say(f"building a free-threaded {SOURCE_PACKAGE} from Debian {SUITE}: some minutes, kept in {BUILT}")
    debian = Debian(CACHE / "apt-source", SUITE, "amd64")
    with tempfile.TemporaryDirectory(prefix="loadboard-cpython-") as directory:
        source = debian.source(SOURCE_PACKAGE, Path(directory))
        run(
            ["./configure", "-q", "--disable-gil", f"--prefix={BUILT}", "--without-static-libpython"],
            cwd=source,
        )
        run(["make", "-s", f"-j{os.cpu_count() or 1}"], cwd=source, timeout_s=3600.0)
        run(["make", "-s", "install"], cwd=source, timeout_s=1800.0)
    interpreter = examine(BUILT / "bin" / "python3.13t")
    if interpreter is None:
        raise NotPossible(
            f"the CPython built in {BUILT} lacks modules: install libssl-dev, zlib1g-dev, libffi-dev"
        )
    return interpreter


def main(arguments: Sequence[str]) -> int:
    """Build for it, count with threads, run the unit tests, or ``arguments`` as this Python's command line."""
    try:
        interpreter = find()
        say(f"CPython {interpreter.release}, free-threaded: {interpreter.path}")
        with tempfile.TemporaryDirectory(prefix="loadboard-free-threaded-") as directory:
            scratch = Path(directory)
            source = copy_tree(scratch / "source")
            run([interpreter.path, "-m", "venv", scratch / "venv"])
            python = scratch / "venv" / "bin" / "python"
            pip = [str(python), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
            wanted = ["--only-binary", WHEELS_ONLY, "pytest", "hypothesis", "--editable", f"{source}[demo]"]
            run([*pip, *wanted], env={"LOADBOARD_REQUIRE_NATIVE": "1"})
            # In shared memory and in a file: the two are opened in different ways.
            for table in (str(scratch / "table"), f"/loadboard-test-free-threaded-{os.getpid()}"):
                command: list[str | Path] = [python, "-I", COUNTING, str(THREADS), str(REQUESTS), table]
                say(run(command, cwd=scratch, env=PLAIN, timeout_s=300.0).strip())
            plugins = ("-p", "tests.platform.without_gil", "-p", "no:cacheprovider")
            tests = ["-m", "pytest", "-q", *plugins, *TESTS]
            said = run([python, *(arguments or tests)], cwd=source, env=PLAIN, timeout_s=4 * 3600.0)
            say("\n".join(said.strip().splitlines()[-8:]))
    except (NotPossible, Failed) as error:
        return finish("test-free-threaded", error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
