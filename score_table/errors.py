"""What can be wrong with a table, each with its own name, so that callers can tell the cases apart."""

from __future__ import annotations

import os


class TableError(Exception):
    """Base of all errors of a table. ``location`` is the table's name or path as the user gave it.

    ``exit_status`` is what a command that ends by it exits with, after sysexits.h.
    """

    exit_status = os.EX_UNAVAILABLE

    def __init__(self, location: str, message: str) -> None:
        super().__init__(message)
        self.location = location


class TableAbsent(TableError):
    """There is no table of that name (yet)."""


class TableNotReady(TableError):
    """The segment exists but its creator has not finished it."""


class TableIncompatible(TableError):
    """The segment is of another layout, or not a loadboard table at all."""


class TableTruncated(TableError):
    """The segment is shorter than its header says, or its header contradicts itself."""


class TablePermission(TableError):
    """This process may not open (or create) the table."""

    exit_status = os.EX_NOPERM


class TableUntrusted(TableError):
    """The segment belongs to somebody who must not be able to steer this process."""

    exit_status = os.EX_NOPERM


class TableNoSpace(TableError):
    """The file system that backs the table is too full to reserve its space."""

    exit_status = os.EX_CANTCREAT


class TableCreateFailed(TableError):
    """The table could not be created for another reason than space or permission."""

    exit_status = os.EX_CANTCREAT


class MonitorRunning(TableError):
    """Another monitor holds this table. ``pid`` is its process id, 0 where it could not be read."""

    exit_status = os.EX_TEMPFAIL

    def __init__(self, location: str, message: str, pid: int) -> None:
        super().__init__(location, message)
        self.pid = pid
