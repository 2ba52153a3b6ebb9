"""``loadboard dump``: the table as text or JSON, through the public reader."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from loadboard import wording
from loadboard.exits import OK, USAGE
from loadboard.moments import is_copy, moment
from loadboard.tables import add_table_option, explain_absence
from score_table.errors import TableAbsent, TableError
from score_table.location import Location, default_table
from score_table.reader import InstanceFacts, TableReader, TableSnapshot


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "dump", help="print the score table", description="Print the score table through the public reader."
    )
    add_table_option(parser)
    parser.add_argument("--json", action="store_true", help="print JSON, which has more fields than the text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one snapshot."""
    try:
        place = Location.parse(args.table or default_table())
        with TableReader.open(place.text) as reader:
            at = moment(reader.heartbeat_ns()) if is_copy(place) else moment()
            snapshot = reader.snapshot(*at)
    except TableAbsent as error:
        print(explain_absence(error), file=sys.stderr)
        return error.exit_status
    except TableError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except ValueError as error:
        print(error, file=sys.stderr)
        return USAGE
    if args.json:
        print(json.dumps(as_json(snapshot), indent=2))
    else:
        lines = as_text(snapshot)
        if is_copy(place):
            lines.insert(1, wording.COPY)
        print("\n".join(map(wording.printable, lines)))
    return OK


def as_json(snapshot: TableSnapshot) -> dict[str, Any]:
    """The snapshot as plain JSON values; unknown is ``null``."""
    return wording.values_of(snapshot)


def as_text(snapshot: TableSnapshot) -> list[str]:
    """The snapshot as lines for a person; unknown is ``-``. Not every field: JSON has them all."""
    silent = wording.is_silent(snapshot.degraded)
    heartbeat = "never" if snapshot.heartbeat_age_s is None else f"{snapshot.heartbeat_age_s:.2f} s ago"
    lines = [
        f"table {snapshot.table}  layout {snapshot.layout}  {snapshot.state}  "
        f"picks: {wording.picks(snapshot.degraded)}",
        f"monitor pid {snapshot.monitor_pid}  heartbeat {heartbeat}  ticks {snapshot.ticks}",
        f"{_count(len(snapshot.instances), 'instance')} ({_count(snapshot.n, 'slot')} used of "
        f"{snapshot.capacity})  lanes {snapshot.lanes_in_use} of {snapshot.lane_capacity}",
        *([wording.SILENT] if silent else []),
        "",
        *wording.columns([*_HEADINGS, *(_row(each, silent) for each in snapshot.instances)], _TEXTS),
    ]
    for instance in snapshot.instances:
        if instance.reason:
            lines.append(f"  {instance.id}: {instance.reason}")
    lines.append("")
    for lane in snapshot.lanes:
        degraded = (
            ", ".join(f"{name} {count}" for name, count in lane.degraded_picks.items() if count) or "none"
        )
        lines.append(
            f"lane {lane.lane}  pid {lane.pid}  outstanding {lane.outstanding}  picks {lane.picks}  "
            f"degraded: {degraded}"
        )
    return lines


# Two rows; the first three columns are texts, the others numbers.
_HEADINGS = (
    ("", "", "", "", "out-", "", "in-", "wait-", "qps", "KV", "", "dis-"),
    (
        "instance",
        "state",
        "engine",
        "score",
        "standing",
        "held",
        "flight",
        "ing",
        "1m",
        "use",
        "age",
        "patched",
    ),
)
_TEXTS = 3


def _row(instance: InstanceFacts, silent: bool) -> tuple[str, ...]:
    return (
        instance.id,
        wording.state(instance.state, instance.mark, estimated=instance.estimated, silent=silent),
        instance.engine or wording.UNKNOWN,
        wording.decimal(instance.score, 2),
        str(instance.outstanding),
        str(instance.held),
        wording.whole(instance.inflight),
        wording.whole(instance.waiting),
        wording.decimal(instance.qps_1m, 2),
        wording.percent(instance.kv_usage),
        wording.seconds(instance.age_s, 1),
        str(instance.dispatched),
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
