"""``make test-arm64``: the C code for aarch64 by Debian's cross compiler, its unit tests under qemu-user.

Python and its headers are Debian's arm64 packages, unpacked into ``build/platform`` and kept there; numpy,
posix-ipc and the test tools come from the package index. Arguments are given to pytest in place of the usual
tests. What qemu-user cannot show is memory ordering: it runs the program on this machine's.
"""

from __future__ import annotations

import shutil
import stat
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.platform.debian import Debian
from tests.platform.trees import CACHE, Failed, NotPossible, copy_tree, finish, run, say

SUITE = "bookworm"
#: An interpreter, its headers, and what numpy wants of the system.
PACKAGES = ("python3", "libpython3-dev", "libstdc++6")
ROOT = CACHE / "arm64-root"
COMPILER = "aarch64-linux-gnu-gcc"
EMULATORS = ("qemu-aarch64-static", "qemu-aarch64")
INSTALL = (
    "apt-get install --no-install-recommends gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static"
)

REQUIREMENTS = (
    *("numpy", "posix-ipc", "httpx", "sniffio", "pydantic", "structlog", "starlette", "uvicorn", "rich"),
    *("pytest", "hypothesis"),
)
WARNINGS = ("-Wall", "-Wextra", "-Werror")
PLUGINS = ("-p", "tests.platform.patient", "-p", "no:cacheprovider")
TESTS = ("tests/unit/score_table", "tests/unit/proxy_adapter")


class Arm64:
    """An arm64 Python that runs here."""

    def __init__(self) -> None:
        """Unpacks what is not there yet. :class:`NotPossible` where the tools are missing."""
        emulator = next(filter(None, map(shutil.which, EMULATORS)), None)
        if emulator is None or shutil.which(COMPILER) is None:
            raise NotPossible(f"the cross compiler or qemu-user is missing: {INSTALL}")
        if not _is_made(ROOT, PACKAGES):
            say(f"unpacking {', '.join(PACKAGES)} of Debian {SUITE} for arm64 into {ROOT}")
            shutil.rmtree(ROOT, ignore_errors=True)
            Debian(CACHE / "apt-arm64", SUITE, "arm64").unpack(PACKAGES, ROOT)
            _made(ROOT, PACKAGES)
        (real,) = (path for path in (ROOT / "usr/bin").glob("python3.*") if path.suffix[1:].isdigit())
        self.version = real.name.removeprefix("python")
        self.site = ROOT / "site"
        self.python = ROOT / "python"
        # Programs that start their own interpreter start this one: qemu-user does not follow an exec by itself.
        self.python.write_text(f'#!/bin/sh\nexec {emulator} -L {ROOT} {real} "$@"\n')
        self.python.chmod(self.python.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        if not _is_made(self.site, REQUIREMENTS):
            self._install()

    def _install(self) -> None:
        shutil.rmtree(self.site, ignore_errors=True)
        pip = CACHE / "pip"  # the environment that runs this may be one without
        run([sys.executable, "-m", "venv", pip])
        platforms = [f"--platform=manylinux{tag}_aarch64" for tag in ("2014", "_2_17", "_2_28", "_2_36")]
        run(
            [
                *(pip / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "--quiet", "install"),
                *("--target", self.site, "--python-version", self.version, "--only-binary=:all:"),
                *platforms,
                *REQUIREMENTS,
            ]
        )
        (self.site / "sitecustomize.py").write_text(f"import sys\n\nsys.executable = {str(self.python)!r}\n")
        _made(self.site, REQUIREMENTS)

    def run(self, arguments: Sequence[str | Path], cwd: Path) -> str:
        """The output of this Python, started in ``cwd``."""
        env = {
            "PYTHONPATH": str(self.site),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LOADBOARD_REQUIRE_NATIVE": "1",
            "LOADBOARD_PICK_CORE": None,
        }
        return run([self.python, *arguments], cwd=cwd, env=env, timeout_s=3000.0)

    def build(self, source: Path) -> None:
        """The extension, in its place in ``source``."""
        include = ROOT / "usr" / "include"
        headers = (include / f"python{self.version}", include)
        native = source / "score_table" / "native"
        run(
            [
                *(COMPILER, "-shared", "-fPIC", "-O3", "-std=c11", "-fvisibility=hidden", *WARNINGS),
                "-DPy_LIMITED_API=0x030A0000",
                *(f"-isystem{path}" for path in headers),
                *sorted(native.glob("*.c")),
                *("-o", source / "score_table" / "_native.abi3.so"),
            ]
        )


def _made(folder: Path, of: Sequence[str]) -> None:
    (folder / ".made-of").write_text(" ".join(of))


def _is_made(folder: Path, of: Sequence[str]) -> bool:
    stamp = folder / ".made-of"
    return stamp.exists() and stamp.read_text() == " ".join(of)


def main(arguments: Sequence[str]) -> int:
    """Compile, count, run the tests."""
    try:
        arm64 = Arm64()
        with tempfile.TemporaryDirectory(prefix="loadboard-arm64-") as directory:
            scratch = Path(directory)
            source = copy_tree(scratch / "source")
            arm64.build(source)
            facts = "import platform, sys; print(platform.machine(), 'CPython', sys.version.split()[0])"
            say(f"built with {' '.join(WARNINGS)} for {arm64.run(['-c', facts], scratch).strip()}")
            said = arm64.run(["-m", "pytest", "-q", *PLUGINS, *(arguments or TESTS)], source)
            say("\n".join(said.strip().splitlines()[-12:]))
    except (NotPossible, Failed) as error:
        return finish("test-arm64", error)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
