"""The shared score table: one layout, its writer, its readers, the lanes of the proxy workers."""

from __future__ import annotations

#: The pick implementation in use: ``native``, ``numpy`` or ``plain``.
implementation: str


def __getattr__(name: str) -> str:
    # Looked up when asked for: importing the package must not import numpy.
    if name == "implementation":
        from score_table.pick import core_class

        return core_class().name
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
