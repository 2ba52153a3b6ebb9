"""Where a table lives: a POSIX shared memory name or a file path, behind one small interface."""

from __future__ import annotations

import errno
import glob
import os
import secrets
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from score_table.errors import (
    TableAbsent,
    TableCreateFailed,
    TableError,
    TableNoSpace,
    TablePermission,
    TableUntrusted,
)
from score_table.layout import MAGIC

DEFAULT_TABLE = "/loadboard"
TABLE_VARIABLE = "LOADBOARD_TABLE"

_SHM_DIRECTORY = Path("/dev/shm")  # noqa: S108 - where Linux keeps POSIX shared memory, not a temporary file
_NAME_LIMIT = 200
#: User ids below this belong to system users (login.defs), not to people.
_FIRST_PERSON = 1000


def _without_gil() -> bool:
    """Importing posix-ipc would turn the GIL on for the whole process; what it calls is open(2) on Linux."""
    return not getattr(sys, "_is_gil_enabled", lambda: True)()


def default_table() -> str:
    """The table named by the environment, else ``/loadboard``."""
    return os.environ.get(TABLE_VARIABLE) or DEFAULT_TABLE


@dataclass(frozen=True)
class Location:
    """A table's place. ``text`` is what the user wrote, ``path`` the file behind it."""

    text: str
    path: Path
    shared_memory: bool

    @classmethod
    def parse(cls, text: str) -> Location:
        """``/name`` (one slash, at the start) is POSIX shared memory, any other path is a file.

        ``ValueError`` if it is neither.
        """
        if "\0" in text or not text:
            raise ValueError(f"{text!r} names no table: use /NAME for shared memory or a path for a file")
        if text.startswith("/") and "/" not in text[1:]:
            if len(text) < 2 or len(text) > _NAME_LIMIT or text in ("/.", "/.."):
                raise ValueError(
                    f"{text!r} is no shared memory name: use / and 1 to {_NAME_LIMIT} characters"
                )
            return cls(text, _SHM_DIRECTORY / text[1:], True)
        if "/" not in text:
            raise ValueError(f"{text!r} is ambiguous: write /{text} for shared memory or ./{text} for a file")
        path = Path(text).absolute()
        if len(os.fsencode(path.name)) > _NAME_LIMIT or not path.name:
            raise ValueError(f"{text!r} is no name for a table: its last part may have {_NAME_LIMIT} bytes")
        return cls(text, path, False)

    @property
    def lock_path(self) -> Path:
        """The monitor's lock file beside the table; it is never unlinked or renamed while in use."""
        return self.path.with_name(self.path.name + ".lock")

    def temporary(self) -> Location:
        """A place of the same kind beside this one, under a name that only this call knows."""
        name = f"{self.path.name}.tmp-{secrets.token_hex(8)}"
        path = self.path.with_name(name)
        return Location(f"/{name}" if self.shared_memory else str(path), path, self.shared_memory)

    def temporaries(self) -> list[Path]:
        """Left-overs of creations that were cut short."""
        return sorted(self.path.parent.glob(f"{glob.escape(self.path.name)}.tmp-*"))

    def holds_foreign_file(self) -> bool:
        """Whether something has the name that is no table of any version, and must be neither replaced nor
        removed. An empty file is nobody's loss. ``OSError`` if it cannot be looked at."""
        try:
            facts = os.lstat(self.path)
            if not stat.S_ISREG(facts.st_mode):
                return True
            if facts.st_size == 0:
                return False
            fd = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            return os.pread(fd, 8, 0) != MAGIC.to_bytes(8, "little")
        finally:
            os.close(fd)

    def create(self, size: int) -> int:
        """Make a new file of ``size`` zero bytes with its space reserved; returns a descriptor.

        The caller owns the descriptor. ``OSError`` as the system reports it; nothing is left behind then.
        """
        if self.shared_memory and not _without_gil():
            import posix_ipc

            try:
                fd = int(posix_ipc.SharedMemory(self.text, posix_ipc.O_CREX, 0o600).fd)
            except posix_ipc.PermissionsError as error:
                raise PermissionError(errno.EACCES, str(error)) from error
            except posix_ipc.Error as error:
                raise OSError(errno.EEXIST, str(error)) from error
        else:
            fd = os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(fd, size)
            # Without this a full file system shows up as SIGBUS at the first write, in whichever process.
            os.posix_fallocate(fd, 0, size)
        except BaseException:
            os.close(fd)
            self.path.unlink(missing_ok=True)
            raise
        return fd

    def open(self, *, writable: bool) -> int:
        """Open what is there; returns a close-on-exec descriptor on a description of its own.

        ``TableAbsent``, ``TablePermission``, ``TableUntrusted``, or ``TableError`` for anything else.
        """
        fd = (
            self._open_file(writable)
            if not self.shared_memory or _without_gil()
            else self._open_shared_memory(writable)
        )
        try:
            self._check_trust(os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _open_shared_memory(self, writable: bool) -> int:
        import posix_ipc

        try:
            return int(posix_ipc.SharedMemory(self.text, 0, read_only=not writable).fd)
        except posix_ipc.ExistentialError as error:
            raise self._absent() from error
        except posix_ipc.PermissionsError as error:
            raise self._forbidden(writable) from error
        except (posix_ipc.Error, OSError) as error:
            raise TableError(self.text, f"table {self.text} cannot be opened: {error}") from error

    def _open_file(self, writable: bool) -> int:
        access = os.O_RDWR if writable else os.O_RDONLY
        try:
            return os.open(self.path, access | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise self._absent() from error
        except PermissionError as error:
            raise self._forbidden(writable) from error
        except OSError as error:
            raise TableError(self.text, f"table {self.text} cannot be opened: {error}") from error

    def _absent(self) -> TableAbsent:
        return TableAbsent(
            self.text, f"there is no table {self.text}: start `loadboard run`, or name the table it writes"
        )

    def _forbidden(self, writable: bool) -> TablePermission:
        wanted = "open for reading and writing" if writable else "open"
        owner = ""
        try:
            facts = os.stat(self.path)
            owner = f" (mode {stat.S_IMODE(facts.st_mode):04o}, uid {facts.st_uid}, gid {facts.st_gid})"
        except OSError:
            pass
        return TablePermission(
            self.text,
            f"this process (uid {os.geteuid()}) may not {wanted} table {self.text}{owner}: "
            "add its user to the table's group, or set `group` and `table_mode` of the monitor",
        )

    def _check_trust(self, facts: os.stat_result) -> None:
        """Group members are trusted writers; a stranger who made the file first, or anyone at all, is not.

        Root trusts system users as well: monitors run as one.
        """
        if not stat.S_ISREG(facts.st_mode):
            raise TableUntrusted(self.text, f"{self.path} is not a regular file; remove it")
        if facts.st_mode & stat.S_IWOTH:
            raise TableUntrusted(
                self.text,
                f"table {self.text} may be written by everyone (mode {stat.S_IMODE(facts.st_mode):04o}); "
                "anyone could steer the picks. Remove it and set `table_mode` to 0660 or less",
            )
        if facts.st_uid in (0, os.geteuid()) or facts.st_gid in (os.getegid(), *os.getgroups()):
            return
        if os.geteuid() == 0 and facts.st_uid < _FIRST_PERSON:
            return
        raise TableUntrusted(
            self.text,
            f"table {self.text} belongs to uid {facts.st_uid}, gid {facts.st_gid}: neither root, nor this user, "
            "nor one of this process's groups. Add this user to the monitor's group",
        )


def creation_failed(location: Location, error: OSError, size: int) -> TableError:
    """The error to raise where making a table of ``size`` bytes failed with ``error``."""
    where = location.path.parent
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        try:
            free = os.statvfs(where)
            room = f"{free.f_bavail * free.f_frsize} bytes free"
        except OSError:
            room = "its free space unknown"
        return TableNoSpace(
            location.text,
            f"{where} has no room for the {size} bytes of table {location.text} ({room}): "
            "make it larger (containers: --shm-size or a memory volume), or lower `slots` or `lanes`",
        )
    if isinstance(error, PermissionError):
        return TablePermission(
            location.text,
            f"this process (uid {os.geteuid()}) may not create {location.path}: {error.strerror}",
        )
    return TableCreateFailed(location.text, f"table {location.text} cannot be created: {error}")
