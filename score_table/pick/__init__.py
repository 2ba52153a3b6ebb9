"""The pick: one rule, several implementations that agree bit for bit behind one small protocol."""

from __future__ import annotations

import os

from score_table.pick.plain import PlainCore
from score_table.pick.rules import NO_SLOT, PickCore
from score_table.pick.vector import NumpyCore

__all__ = ["CORES", "CORE_VARIABLE", "NO_SLOT", "PickCore", "core_class"]

#: By name, the fastest first.
CORES: dict[str, type[PickCore]] = {"numpy": NumpyCore, "plain": PlainCore}
#: Forces one implementation by its name.
CORE_VARIABLE = "LOADBOARD_PICK_CORE"


def core_class() -> type[PickCore]:
    """The implementation in use: the fastest, or the one named by ``LOADBOARD_PICK_CORE``.

    ``ValueError`` if that names none.
    """
    name = os.environ.get(CORE_VARIABLE) or next(iter(CORES))
    if name not in CORES:
        raise ValueError(f"{CORE_VARIABLE} is {name!r}: there are {', '.join(CORES)}")
    return CORES[name]
