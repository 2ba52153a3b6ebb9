"""The native core; everything else stands in setup.cfg."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError

#: Set to 1, a build that fails is an error; otherwise numpy and Python do what the native core would do.
REQUIRED = os.environ.get("LOADBOARD_REQUIRE_NATIVE") == "1"
#: The limited API does not exist for free-threaded builds.
FREE_THREADED = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))


class BuildNative(build_ext):
    """Says what is lacking where the native core was asked for."""

    def build_extension(self, ext: Extension) -> None:
        """As usual; ``CCompilerError`` is what an optional build survives."""
        try:
            super().build_extension(ext)
        except CCompilerError as error:
            if not REQUIRED:
                raise
            raise CCompilerError(
                f"the native core cannot be built ({error}), and LOADBOARD_REQUIRE_NATIVE=1 asks for it: "
                "install a C compiler and the headers of this Python (Debian: gcc libc6-dev python3-dev), "
                "or unset the variable to let numpy do its work"
            ) from error


setup(
    cmdclass={"build_ext": BuildNative},
    ext_modules=[
        Extension(
            "score_table._native",
            sources=sorted(str(path) for path in Path("score_table/native").glob("*.c")),
            depends=sorted(str(path) for path in Path("score_table/native").glob("*.h")),
            define_macros=[] if FREE_THREADED else [("Py_LIMITED_API", "0x030A0000")],
            # Sums wrap as numpy's do, and floats round as Python's do, whatever a foreign hand has written there.
            extra_compile_args=[
                "-O3",
                "-std=c11",
                "-fwrapv",
                "-ffp-contract=off",
                "-fvisibility=hidden",
                "-Wall",
                "-Wextra",
            ],
            py_limited_api=not FREE_THREADED,
            optional=not REQUIRED,
        )
    ],
    options={} if FREE_THREADED else {"bdist_wheel": {"py_limited_api": "cp310"}},
)
