"""``loadboard doctor``: is this host, and this user, ready to read and count in the table?"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from loadboard.exits import FAILED, OK, USAGE
from loadboard.moments import is_copy
from loadboard.tables import add_table_option
from score_table.errors import TableError
from score_table.location import Location, default_table

if TYPE_CHECKING:
    from score_table.reader import TableSnapshot


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
            snapshot, limit_s = reader.snapshot(), reader.max_heartbeat_age_s
    except TableError as error:
        yield Finding(False, "table", str(error))
        return
    yield Finding(
        True, "table", f"{place.text}, layout {snapshot.layout}, {snapshot.n} of {snapshot.capacity} slots"
    )
    if is_copy(place):
        yield Finding(
            True,
            "copy",
            f"there is no {place.lock_path} beside it: a copy, which no monitor keeps and no proxy should use; see "
            f"`loadboard why --table {place.text}`",
        )
        return
    yield _monitor(snapshot, limit_s)
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


def _monitor(snapshot: TableSnapshot, limit_s: float) -> Finding:
    """Whether it ticks, and what to do where it does not."""
    who, age = f"pid {snapshot.monitor_pid}, {snapshot.state}", snapshot.heartbeat_age_s
    if age is None:
        return Finding(False, "monitor", f"{who}, never ticked: see its log, or start `loadboard run`")
    if snapshot.state != "ready":
        return Finding(False, "monitor", f"{who}, ticked {age:.2f} s ago: it has ended; start it again")
    if age < 0:
        return Finding(
            False,
            "monitor",
            f"{who}, its last tick is {-age:.2f} s in the future: its clock is another host's",
        )
    if age > limit_s:
        return Finding(
            False,
            "monitor",
            f"{who}, silent: ticked {age:.2f} s ago, and from {limit_s:g} s on picks are made without it; see whether "
            "the process lives and what it logs, and start it again",
        )
    return Finding(True, "monitor", f"{who}, ticked {age:.2f} s ago")
