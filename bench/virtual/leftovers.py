"""The names of simulated hosts' tables, and what is left of those whose processes could not clean up."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_PREFIX = "loadboard-routing-"
_SHARED_MEMORY = Path("/dev/shm")
#: A table of a process and a host, and the lock beside it.
_LEFT = re.compile(re.escape(_PREFIX) + r"([1-9][0-9]*)-[0-9]+(?:\.lock)?", re.ASCII)


def table_of(pid: int, host: int) -> str:
    """The table of that host of the run that is made in process ``pid``."""
    return f"/{_PREFIX}{pid}-{host}"


def remove_tables_of(pid: int) -> None:
    """What a process left behind that ended in the middle of a run."""
    for left in _SHARED_MEMORY.glob(f"{_PREFIX}{pid}-*"):
        left.unlink(missing_ok=True)


def sweep(directory: Path = _SHARED_MEMORY) -> None:
    """Remove what was left behind by processes that are gone, such as those of a bench that was killed."""
    for left in directory.glob(f"{_PREFIX}*"):
        named = _LEFT.fullmatch(left.name)
        if named is not None and not _lives(int(named[1])):
            # Another bench may sweep as well, and what another user left is that user's.
            with contextlib.suppress(FileNotFoundError, PermissionError):
                left.unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # somebody else's
    return True
