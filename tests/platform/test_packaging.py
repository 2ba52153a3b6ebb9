"""What is shipped is complete: a source distribution, and the wheel built from it, without a package index."""

from __future__ import annotations

import configparser
import importlib.util
import shutil
import sys
import zipfile
from pathlib import Path, PurePosixPath

import pytest

from tests.platform.trees import ROOT, copy_tree, run

_CALL = "import sys; from setuptools import build_meta; print(build_meta.{step}(sys.argv[1]))"


def produced(step: str, source: Path, to: Path) -> Path:
    """What the build back end makes of ``source`` in ``to``."""
    to.mkdir(exist_ok=True)
    run([sys.executable, "-c", _CALL.format(step=step), to], cwd=source, timeout_s=120.0)
    (product,) = to.iterdir()
    return product


def packages() -> list[str]:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config["options"]["packages"].split()


def package_files(pattern: str) -> set[str]:
    folders = [ROOT / name.replace(".", "/") for name in packages()]
    return {path.relative_to(ROOT).as_posix() for folder in folders for path in folder.glob(pattern)}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution: from here on, all there is."""
    scratch = tmp_path_factory.mktemp("packaging")
    archive = produced("build_sdist", copy_tree(scratch / "tree"), scratch / "sdist")
    run(["tar", "-xzf", archive, "-C", scratch])
    return scratch / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return produced("build_wheel", source, tmp_path_factory.mktemp("wheel"))


def test_the_source_distribution_has_every_source(source: Path) -> None:
    native = {path.relative_to(ROOT).as_posix() for path in (ROOT / "score_table/native").glob("*.[ch]")}
    wanted = native | package_files("*.py") | package_files("*.pyi") | package_files("py.typed")
    assert native
    assert {name for name in wanted if not (source / name).is_file()} == set()
    assert {name for name in ("setup.py", "setup.cfg", "pyproject.toml", "LICENSE", "README.md", "CHANGELOG.md")
            if not (source / name).is_file()} == set()  # fmt: skip


def test_the_wheel_has_the_packages_and_nothing_of_the_workshop(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if not name.endswith("/")}
    assert package_files("*.py") | package_files("*.pyi") | package_files("py.typed") <= names
    folders = {PurePosixPath(name).parts[0] for name in names}
    assert {folder for folder in folders if not folder.endswith(".dist-info")} == {
        name.split(".")[0] for name in packages()
    }
    assert {name for name in names if name.endswith((".c", ".h", ".o"))} == set()


@pytest.mark.skipif(
    importlib.util.find_spec("score_table._native") is None, reason="the native core was not built here"
)
def test_one_wheel_serves_every_later_python(wheel: Path) -> None:
    if not hasattr(sys, "abiflags") or "t" in sys.abiflags:
        pytest.skip("free-threaded builds have wheels of their own")
    assert "-cp310-abi3-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as opened:
        assert "score_table/_native.abi3.so" in opened.namelist()


def test_without_a_compiler_the_build_succeeds_unless_the_native_core_is_required(
    source: Path, tmp_path: Path
) -> None:
    here = tmp_path / "source"  # where nothing has been built yet
    shutil.copytree(source, here, ignore=shutil.ignore_patterns("build", "*.so"))
    command = [sys.executable, "-c", _CALL.format(step="build_wheel"), str(tmp_path)]
    lacking = {"CC": "/bin/false"}
    run(command, cwd=here, env={**lacking, "LOADBOARD_REQUIRE_NATIVE": None}, timeout_s=120.0)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        assert [name for name in opened.namelist() if name.endswith(".so")] == []
    said = run(
        command, cwd=here, env={**lacking, "LOADBOARD_REQUIRE_NATIVE": "1"}, timeout_s=120.0, fails=True
    )
    assert "LOADBOARD_REQUIRE_NATIVE=1" in said
    assert "install a C compiler" in said
