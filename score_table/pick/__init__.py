"""The pick: one rule, several implementations that agree bit for bit behind one small protocol."""

from __future__ import annotations

import importlib.util
import os

from score_table.pick.plain import PlainCore
from score_table.pick.rules import NO_SLOT, PickCore
from score_table.pick.vector import NumpyCore

__all__ = ["CORES", "CORE_VARIABLE", "NATIVE_MISSING", "NO_SLOT", "PickCore", "core_class"]

#: Forces one implementation by its name.
CORE_VARIABLE = "LOADBOARD_PICK_CORE"

#: By name, the fastest first. The native one is there where it was built.
CORES: dict[str, type[PickCore]] = {"numpy": NumpyCore, "plain": PlainCore}
#: Why there is no native implementation; "" if there is one.
NATIVE_MISSING = ""
try:
    from score_table.pick.native import NativeCore
except ImportError as error:
    NATIVE_MISSING = (
        str(error)
        if importlib.util.find_spec("score_table._native")
        else "it was not built: there was no C compiler, or no Python headers, when loadboard was installed"
    )
else:
    CORES = {NativeCore.name: NativeCore, **CORES}


def core_class() -> type[PickCore]:
    """The implementation in use: the fastest, or the one named by ``LOADBOARD_PICK_CORE``.

    ``ValueError`` if that names none.
    """
    name = os.environ.get(CORE_VARIABLE) or next(iter(CORES))
    if name not in CORES:
        why = f" (native: {NATIVE_MISSING})" if NATIVE_MISSING else ""
        raise ValueError(f"{CORE_VARIABLE} is {name!r}: there are {', '.join(CORES)}{why}")
    return CORES[name]
