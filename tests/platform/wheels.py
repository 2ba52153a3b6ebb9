"""``make wheels``: one wheel and one source distribution in ``dist/``, tried on every CPython that is here.

What is shown: the wheel has the tag of the stable ABI and uses nothing else; it and the source distribution
install and count exactly outside of the source tree; without a compiler the numpy twin works, unless the native
core was asked for. Needs a package index. ``PYTHONS`` names the interpreters, by default those of pyenv and PATH.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.platform.interpreters import VERSIONS, Interpreter, find
from tests.platform.trees import ROOT, Failed, NotPossible, copy_tree, finish, run, say

SMOKE = Path(__file__).with_name("smoke.py")
TAG = "cp310-abi3"
#: What the build says where the native core was asked for and cannot be built.
REQUIRED_BUT_MISSING = "LOADBOARD_REQUIRE_NATIVE"

_PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")
#: A wheel that pip kept from an installation with a compiler would hide what one without does.
_REINSTALL = ("install", "--force-reinstall", "--no-deps", "--no-cache-dir")
_CONFIG = """
[[instances]]
url = "http://127.0.0.1:9000"
"""


def make_environment(interpreter: Path, at: Path) -> Path:
    """The Python of a new virtual environment."""
    run([interpreter, "-m", "venv", at])
    return at / "bin" / "python"


def build(scratch: Path) -> tuple[Path, Path]:
    """The wheel, built by ``pip wheel .``, and the source distribution, both in ``scratch/dist``."""
    source, dist = copy_tree(scratch / "source"), scratch / "dist"
    tools = make_environment(Path(sys.executable), scratch / "tools")
    run([tools, *_PIP, "install", "build", "abi3audit"])
    run(
        [tools, *_PIP, "wheel", "--no-deps", "--wheel-dir", dist, source],
        env={"LOADBOARD_REQUIRE_NATIVE": "1"},
    )
    run([tools, "-m", "build", "--sdist", "--outdir", dist, source])
    shutil.rmtree(source)  # from here on nothing can come from the tree
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    if f"-{TAG}-" not in wheel.name:
        raise Failed(f"{wheel.name} is not tagged {TAG}")
    say(f"built    {wheel.name}, {sdist.name}")
    run([tools, "-m", "abi3audit", "--strict", "--report", wheel])
    say("audited  nothing but the stable ABI of CPython 3.10")
    return wheel, sdist


def smoke(python: Path, implementation: str, core: str | None, scratch: Path) -> None:
    """Use what is installed, from a directory that has nothing to do with the sources."""
    away = Path(tempfile.mkdtemp(dir=scratch))
    run([python, "-I", SMOKE, implementation, away / "table"], cwd=away, env={"LOADBOARD_PICK_CORE": core})


def try_installed(interpreter: Interpreter, wheel: Path, sdist: Path, scratch: Path) -> None:
    """The wheel, the twin forced, the commands, the source distribution; all in one fresh environment."""
    python = make_environment(interpreter.path, scratch / f"venv-{interpreter.version}")
    run([python, *_PIP, "install", wheel])
    smoke(python, "native", None, scratch)
    smoke(python, "numpy", "numpy", scratch)
    config = scratch / "loadboard.toml"
    config.write_text(_CONFIG)
    run([python.with_name("loadboard"), "check", config], cwd=scratch)
    run([python, *_PIP, *_REINSTALL, sdist], env={"LOADBOARD_REQUIRE_NATIVE": "1"})
    smoke(python, "native", None, scratch)
    say(f"CPython {interpreter.release:8} wheel: native and twin exact; source distribution: native exact")


def try_without_compiler(interpreter: Interpreter, sdist: Path, scratch: Path) -> None:
    """Broken and absent compilers, in the environment that :func:`try_installed` made."""
    python = scratch / f"venv-{interpreter.version}" / "bin" / "python"
    lacking: dict[str, dict[str, str | None]] = {
        "a compiler that fails": {"CC": "/bin/false"},
        "no compiler": {"CC": None, "PATH": str(python.parent)},
    }
    for what, environment in lacking.items():
        run([python, *_PIP, *_REINSTALL, sdist], env={**environment, "LOADBOARD_REQUIRE_NATIVE": None})
        smoke(python, "numpy", None, scratch)
        said = run(
            [python, *_PIP, *_REINSTALL, sdist],
            env={**environment, "LOADBOARD_REQUIRE_NATIVE": "1"},
            fails=True,
        )
        if REQUIRED_BUT_MISSING not in said:
            raise Failed(
                f"with {what} and the native core required, the build does not say why it ends:\n{said}"
            )
        say(f"CPython {interpreter.release:8} {what}: the twin exact; required, a clear end")


def main() -> int:
    """Everything, the least Python version first."""
    try:
        interpreters = find()
        with tempfile.TemporaryDirectory(prefix="loadboard-wheels-") as directory:
            scratch = Path(directory)
            wheel, sdist = build(scratch)
            ordered = sorted(
                interpreters.values(), key=lambda each: [int(part) for part in each.version.split(".")]
            )
            for interpreter in ordered:
                try_installed(interpreter, wheel, sdist, scratch)
            for interpreter in dict.fromkeys((ordered[0], ordered[-1])):
                try_without_compiler(interpreter, sdist, scratch)
            dist = ROOT / "dist"
            dist.mkdir(exist_ok=True)
            for product in (wheel, sdist):
                shutil.copy(product, dist)
    except (NotPossible, Failed) as error:
        return finish("wheels", error)
    missing = [version for version in VERSIONS if version not in interpreters]
    say(f"dist/    {wheel.name}, {sdist.name}")
    say(
        f"not tried, as not here or not named in PYTHONS: CPython {', '.join(missing)}"
        if missing
        else "all versions were here"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
