"""``loadboard doctor``: is this host, and this user, ready to read and count in the table?"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from loadboard.exits import FAILED, OK, USAGE
from loadboard.tables import add_table_option
from score_table.errors import TableError
from score_table.location import Location, default_table


class Finding(NamedTuple):
    """One thing that was looked at. ``ok`` false is a fault that the user has to mend."""

    ok: bool
    what: str
    says: str


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "doctor",
        help="check this host and the table",
        description="Check what a proxy worker of this user needs: the pick implementation, locks, room, "
        "the table, its monitor, a free lane. Changes nothing.",
    )
    add_table_option(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the findings; exit status 1 if one is a fault."""
    try:
        place = Location.parse(args.table or default_table())
    except ValueError as error:
        print(error, file=sys.stderr)
        return USAGE
    findings = list(examine(place))
    for finding in findings:
        print(f"{'ok  ' if finding.ok else 'BAD '}  {finding.what}: {finding.says}")
    return OK if all(finding.ok for finding in findings) else FAILED


def examine(place: Location) -> Iterator[Finding]:
    """Look at everything, the host first, then the table."""
    yield Finding(True, "python", f"{platform.python_version()} on {platform.machine()}, {sys.executable}")
    yield _core()
    yield _locks(place)
    yield _room(place)
    yield from _table(place)


def _core() -> Finding:
    from score_table.pick import NATIVE_MISSING, core_class

    try:
        name = core_class().name
    except ValueError as error:
        return Finding(False, "pick", str(error))
    why = f" (native is not there: {NATIVE_MISSING})" if NATIVE_MISSING else ""
    return Finding(True, "pick", f"{name}{why}")


def _locks(place: Location) -> Finding:
    from score_table.locks import try_lock

    try:
        with tempfile.TemporaryFile(dir=place.path.parent) as file:
            held = try_lock(file.fileno(), 0)
            with open(f"/proc/self/fd/{file.fileno()}", "r+b") as again:
                excluded = not try_lock(again.fileno(), 0)
    except OSError as error:
        return Finding(False, "locks", f"{place.path.parent} cannot be used by this user: {error}")
    if held and excluded:
        return Finding(True, "locks", f"open-file-description locks work in {place.path.parent}")
    return Finding(
        False, "locks", f"{place.path.parent} knows no open-file-description locks; use another place"
    )


def _room(place: Location) -> Finding:
    try:
        facts = os.statvfs(place.path.parent)
    except OSError as error:
        return Finding(False, "room", f"{place.path.parent}: {error.strerror}")
    return Finding(
        True, "room", f"{facts.f_bavail * facts.f_frsize // 2**20} MiB free in {place.path.parent}"
    )


def _table(place: Location) -> Iterator[Finding]:
    from score_table.reader import TableReader

    try:
        with TableReader.open(place.text) as reader:
            snapshot = reader.snapshot()
    except TableError as error:
        yield Finding(False, "table", str(error))
        return
    yield Finding(
        True, "table", f"{place.text}, layout {snapshot.layout}, {snapshot.n} of {snapshot.capacity} slots"
    )
    silent = snapshot.degraded is not None
    age = (
        "never ticked" if snapshot.heartbeat_age_s is None else f"ticked {snapshot.heartbeat_age_s:.2f} s ago"
    )
    yield Finding(not silent, "monitor", f"pid {snapshot.monitor_pid}, {snapshot.state}, {age}")
    free = snapshot.lane_capacity - snapshot.lanes_in_use
    yield Finding(free > 0, "lanes", f"{free} of {snapshot.lane_capacity} free")
    if os.access(place.path, os.W_OK):
        yield Finding(True, "counting", "this user may count in the table")
    else:
        owner = Path(place.path).stat()
        yield Finding(
            False,
            "counting",
            f"this user (uid {os.geteuid()}) may not write the table (uid {owner.st_uid}, gid {owner.st_gid}): "
            "add it to the table's group, or set `group` and `table_mode` of the monitor",
        )
