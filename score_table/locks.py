"""Open-file-description locks on single bytes.

They belong to the open file description, not to the process: they work across PID namespaces, fall within
milliseconds when their holder is killed, and a forked child that closes its copy does not drop them.
Nobody here ever unlocks explicitly what another description of the process could rely on.
"""

from __future__ import annotations

import errno
import fcntl
import struct

# Linux values (asm-generic/fcntl.h); the fcntl module of CPython 3.10 to 3.13 does not always name them.
_F_OFD_SETLK = 37
# struct flock of 64-bit Linux: short l_type, short l_whence, pad, off_t l_start, off_t l_len, pid_t l_pid, pad
_FLOCK = struct.Struct("hhqqi4x")
_SEEK_SET = 0


def try_lock(fd: int, byte: int) -> bool:
    """Take a write lock on ``byte`` for the description of ``fd``; ``False`` if another one holds it.

    ``fd`` must be open for writing. ``OSError`` if the file system knows no such locks or ``fd`` is closed.
    """
    try:
        fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, _SEEK_SET, byte, 1, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(fd: int, byte: int) -> None:
    """Drop the lock on ``byte`` that the description of ``fd`` holds."""
    fcntl.fcntl(fd, _F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, _SEEK_SET, byte, 1, 0))
