"""Exit statuses, after sysexits.h where it has one, and the status that each table error leads to."""

from __future__ import annotations

from score_table.errors import (
    MonitorRunning,
    TableCreateFailed,
    TableError,
    TableNoSpace,
    TablePermission,
    TableUntrusted,
)

OK = 0
FAILED = 1
USAGE = 2
TABLE_UNAVAILABLE = 69
CANNOT_CREATE = 73
MONITOR_RUNS = 75
NO_PERMISSION = 77
BAD_CONFIG = 78


def status_of(error: TableError) -> int:
    """The exit status for a table error."""
    if isinstance(error, MonitorRunning):
        return MONITOR_RUNS
    if isinstance(error, (TablePermission, TableUntrusted)):
        return NO_PERMISSION
    if isinstance(error, (TableNoSpace, TableCreateFailed)):
        return CANNOT_CREATE
    return TABLE_UNAVAILABLE
