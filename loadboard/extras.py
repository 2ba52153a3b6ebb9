"""Parts that a bare installation does not have."""

from __future__ import annotations


def install_hint(extra: str) -> str:
    """What to do where the packages of ``extra`` are missing. The name may be another project's on an index."""
    return f"install loadboard with its extra, in the source tree: pip install '.[{extra}]'"
