"""The machine that measures: what it is, one core for the measurement, memory enough to empty its caches."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

from score_table.pick import CORES, NATIVE_MISSING

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_UNKNOWN_CACHE = 32 << 20
_MOST = 512 << 20
_LINE = 64


def describe() -> dict[str, str]:
    """In words, for the head of a report."""
    return {
        "cpu": _cpu_model(),
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "caches": ", ".join(f"L{level} {size >> 10} KiB" for level, size in sorted(_caches().items())) or "?",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()} ({platform.python_compiler()})",
        "numpy": np.__version__,
        "native pick": f"absent: {NATIVE_MISSING}" if "native" not in CORES else "built",
        "load average": " ".join(f"{value:.2f}" for value in os.getloadavg()),
    }


def pin() -> tuple[int | None, list[int]]:
    """Keep this process on one core; returns it and the cores left for others.

    ``None`` and no cores where there is only one, or the system does not let us.
    """
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        return None, []
    try:
        os.sched_setaffinity(0, cores[-1:])
    except OSError:
        return None, []
    return cores[-1], cores[:-1]


def evictor() -> Callable[[], object]:
    """A function that reads one word of every cache line of a buffer of twice the caches' size."""
    size = min(2 * (sum(_caches().values()) or _UNKNOWN_CACHE), _MOST)
    words = np.ones(size // 8, dtype=np.int64)[:: _LINE // 8]
    return words.sum


def _caches() -> dict[int, int]:
    """Bytes by level, without those of instructions only."""
    found = {}
    for index in _CACHES.glob("index*"):
        try:
            kind = (index / "type").read_text().strip()
            match = re.fullmatch(r"(\d+)([KM])", (index / "size").read_text().strip())
            level = int((index / "level").read_text())
        except (OSError, ValueError):
            continue
        if match and kind != "Instruction":
            found[level] = int(match[1]) << {"K": 10, "M": 20}[match[2]]
    return found


def _cpu_model() -> str:
    try:
        match = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    except OSError:
        match = None
    return match[1] if match else platform.processor() or platform.machine()
