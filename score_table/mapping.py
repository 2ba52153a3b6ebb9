"""Mapping a file without keeping a descriptor of it.

``mmap.mmap`` duplicates the descriptor and closes the number it got when the mapping goes. Where the host has
closed every descriptor meanwhile and opened its own, that number is somebody else's.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value


def map_file(fd: int, size: int, *, writable: bool) -> memoryview:
    """``size`` bytes of ``fd``, shared; unmapped when the last view of them is gone. ``OSError``."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _libc.mmap(None, size, protection, mmap.MAP_SHARED, fd, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    block = (ctypes.c_char * size).from_address(address)
    weakref.finalize(block, _libc.munmap, address, size).atexit = False
    view = memoryview(block).cast("B")
    return view if writable else view.toreadonly()
