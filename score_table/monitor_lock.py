"""The lock of the one monitor: byte 0 of the file ``NAME.lock`` beside the table, its content the holder's pid."""

from __future__ import annotations

import errno
import os

from score_table.errors import MonitorRunning, TableCreateFailed, TableError, TableNoSpace, TablePermission
from score_table.location import Location
from score_table.locks import try_lock

_BYTE = 0


def take(place: Location, mode: int, gid: int | None) -> int:
    """Become the monitor; returns the descriptor that holds the lock, until it is closed.

    ``MonitorRunning`` if another one is, else the table error that fits what the system says.
    """
    path = place.lock_path
    while True:
        try:
            fd = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, mode & 0o666)
        except OSError as error:
            raise _cannot(place, error) from error
        try:
            if not try_lock(fd, _BYTE):
                raise running(place, fd)
            if not is_at(place, fd):
                # Somebody removed the table, lock file included, while this one was opening it.
                os.close(fd)
                continue
            if os.fstat(fd).st_uid == os.geteuid():
                if gid is not None:
                    os.fchown(fd, -1, gid)
                os.fchmod(fd, mode & 0o666)
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        except OSError as error:
            os.close(fd)
            raise _cannot(place, error) from error
        except TableError:
            os.close(fd)
            raise
        return fd


def hold_if_free(place: Location) -> int | None:
    """A descriptor that keeps monitors out until it is closed; ``None`` if there is no lock file.

    ``MonitorRunning`` while a monitor holds it, ``PermissionError``.
    """
    try:
        fd = os.open(place.lock_path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
    try:
        if not try_lock(fd, _BYTE):
            raise running(place, fd)
    except BaseException:
        os.close(fd)
        raise
    return fd


def running(place: Location, fd: int) -> MonitorRunning:
    """The error that names the monitor that holds the lock of ``fd``."""
    text = os.pread(fd, 32, 0).decode("ascii", "ignore").strip()
    pid = int(text) if text.isdigit() else 0
    return MonitorRunning(
        place.text,
        f"another monitor (pid {pid or 'unknown'}) already writes table {place.text}: stop it, "
        "or give this one another table",
        pid,
    )


def is_at(place: Location, fd: int) -> bool:
    """Whether the lock file that ``fd`` holds is still the one of that name."""
    try:
        return os.path.samestat(os.stat(place.lock_path), os.fstat(fd))
    except OSError:
        return False


def _cannot(place: Location, error: OSError) -> TableError:
    path = place.lock_path
    if isinstance(error, FileNotFoundError):
        return TableCreateFailed(place.text, f"there is no directory {path.parent}: create it first")
    if isinstance(error, PermissionError):
        return TablePermission(
            place.text,
            f"this process (uid {os.geteuid()}) may not lock {path}: run the monitor as the user who owns it, or "
            "remove the table as that user (`loadboard remove`)",
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return TableNoSpace(place.text, f"{path.parent} is full: {path} cannot be written")
    return TableCreateFailed(place.text, f"{path} cannot be locked: {error}")
