"""What can be wrong with a table, each with its own name, so that callers can tell the cases apart."""

from __future__ import annotations


class TableError(Exception):
    """Base of all errors of a table. ``location`` is the table's name or path as the user gave it."""

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


class TableUntrusted(TableError):
    """The segment belongs to somebody who must not be able to steer this process."""


class TableNoSpace(TableError):
    """The file system that backs the table is too full to reserve its space."""


class TableCreateFailed(TableError):
    """The table could not be created for another reason than space or permission."""


class MonitorRunning(TableError):
    """Another monitor holds this table. ``pid`` is its process id, 0 where it could not be read."""

    def __init__(self, location: str, message: str, pid: int) -> None:
        super().__init__(location, message)
        self.pid = pid
