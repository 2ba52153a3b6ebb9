"""``loadboard dump``: the table as text or JSON, through the public reader."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from loadboard.exits import OK, USAGE
from score_table.errors import TableError
from score_table.location import default_table
from score_table.reader import InstanceFacts, TableReader, TableSnapshot


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "dump", help="print the score table", description="Print the score table through the public reader."
    )
    parser.add_argument(
        "--table", default=None, help="name or path of the table (default: LOADBOARD_TABLE, else /loadboard)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one snapshot."""
    try:
        with TableReader.open(args.table or default_table()) as reader:
            snapshot = reader.snapshot()
    except TableError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except ValueError as error:
        print(error, file=sys.stderr)
        return USAGE
    if args.json:
        print(json.dumps(as_json(snapshot), indent=2, ensure_ascii=False))
    else:
        print("\n".join(as_text(snapshot)))
    return OK


def as_json(snapshot: TableSnapshot) -> dict[str, Any]:
    """The snapshot as plain JSON values; unknown is ``null``."""
    return dataclasses.asdict(snapshot)


def as_text(snapshot: TableSnapshot) -> list[str]:
    """The snapshot as lines for a person; unknown is ``-``."""
    heartbeat = "never" if snapshot.heartbeat_age_s is None else f"{snapshot.heartbeat_age_s:.2f} s ago"
    mode = f"DEGRADED ({snapshot.degraded})" if snapshot.degraded else "fresh"
    lines = [
        f"table {snapshot.table}  layout {snapshot.layout}  {snapshot.state}  picks: {mode}",
        f"monitor pid {snapshot.monitor_pid}  heartbeat {heartbeat}  ticks {snapshot.ticks}",
        f"slots {snapshot.n} of {snapshot.capacity}  lanes {snapshot.lanes_in_use} of {snapshot.lane_capacity}",
        "",
    ]
    rows = [_HEADINGS, *(_row(instance) for instance in snapshot.instances)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEADINGS))]
    for row in rows:
        lines.append("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
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


_HEADINGS = [
    "instance",
    "state",
    "mark",
    "engine",
    "score",
    "outstanding",
    "held",
    "inflight",
    "running",
    "waiting",
    "qps_1m",
    "kv",
    "age",
    "dispatched",
]


def _row(instance: InstanceFacts) -> list[str]:
    return [
        instance.id,
        instance.state + (" (estimated)" if instance.estimated else ""),
        instance.mark or "-",
        instance.engine or "-",
        _number(instance.score, 2),
        str(instance.outstanding),
        str(instance.held),
        _number(instance.inflight, 0),
        _number(instance.running, 0),
        _number(instance.waiting, 0),
        _number(instance.qps_1m, 2),
        "-" if instance.kv_usage is None else f"{instance.kv_usage:.1%}",
        "-" if instance.age_s is None else f"{instance.age_s:.1f} s",
        str(instance.dispatched),
    ]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
