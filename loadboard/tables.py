"""Which tables there are in shared memory, for somebody who looked for another one."""

from __future__ import annotations

import argparse
import os
import stat
from pathlib import Path

from score_table.errors import TableAbsent
from score_table.layout import MAGIC
from score_table.location import Location

#: Where tables in shared memory are.
DIRECTORY = Location.parse("/any").path.parent

_MAGIC = MAGIC.to_bytes(8, "little")


def tables_in(directory: Path = DIRECTORY) -> list[str]:
    """The names (``/NAME``) of the files of ``directory`` that begin as a table does and that this user may
    read. Those that are still being made are left out."""
    return [
        f"/{path.name}"
        for path in sorted(directory.glob("*"))
        if ".tmp-" not in path.name and _is_table(path)
    ]


def _is_table(path: Path) -> bool:
    try:
        # Others may put anything there, a pipe that never answers too.
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return stat.S_ISREG(os.fstat(fd).st_mode) and os.pread(fd, len(_MAGIC), 0) == _MAGIC
    except OSError:
        return False
    finally:
        os.close(fd)


def explain_absence(error: TableAbsent) -> str:
    """The error, and which tables there are instead."""
    return f"{error}\ntables in {DIRECTORY}: {', '.join(tables_in()) or 'none'}"


def add_table_option(parser: argparse.ArgumentParser) -> None:
    """The option that names the table, the same for every command that only looks at one."""
    parser.add_argument(
        "--table", default=None, help="name or path of the table (default: LOADBOARD_TABLE, else /loadboard)"
    )
