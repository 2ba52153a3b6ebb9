"""``loadboard why``: which instance the next request goes to, and why, through the public reader."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence

from loadboard import wording
from loadboard.exits import FAILED, OK, USAGE
from loadboard.moments import is_copy, moment
from loadboard.tables import add_table_option, explain_absence
from loadboard.why_text import as_text
from proxy_adapter.pools import read_tags
from score_table.errors import TableAbsent, TableError
from score_table.explanation import Explanation
from score_table.identity import Identity, address_of
from score_table.location import Location, default_table
from score_table.reader import TableReader

_CLEAR = "\x1b[H\x1b[2J"


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "why",
        help="say where the next request goes, and why",
        description="Say which instance least_load would take now, what each one scores and of what, what is estimated "
        "and why, and by what the requests so far were decided. Changes nothing.",
    )
    add_table_option(parser)
    parser.add_argument(
        "--instances",
        metavar="A,B,...",
        help="the candidates, by their ids or as HOST:PORT (default: all in the table)",
    )
    parser.add_argument(
        "--tag",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="only candidates with this tag; may be given several times",
    )
    parser.add_argument(
        "--cursor", metavar="N", type=int, help="where the rotation of the worker in question stands"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, which has more fields than the text")
    parser.add_argument(
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=_pause,
        const=1.0,
        help="print it anew every so many seconds (default: 1) until Ctrl-C; with --json one line each time",
    )
    parser.add_argument(
        "--at",
        metavar="WHEN",
        type=_moment,
        help="now, heartbeat (the monitor's last tick), or ns of CLOCK_MONOTONIC (default: now; heartbeat for a copy of a "
        "table, beside which there is no lock file)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print one explanation, or one after the other."""
    try:
        place = Location.parse(args.table or default_table())
        wanted = dict(pair for tag in args.tag for pair in read_tags(tag, "\0").items())
        with TableReader.open(place.text) as reader:
            for number, explanation in enumerate(_explanations(args, place, reader, wanted)):
                if wanted and not explanation.instances:
                    print(
                        f"no instance has {_written(wanted)}; see the tags in `loadboard dump --json`",
                        file=sys.stderr,
                    )
                    return FAILED
                _show(explanation, number, args, copied=is_copy(place))
    except TableAbsent as error:
        print(explain_absence(error), file=sys.stderr)
        return error.exit_status
    except TableError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except ValueError as error:
        print(wording.printable(str(error)), file=sys.stderr)
        return USAGE
    return OK


def _explanations(
    args: argparse.Namespace, place: Location, reader: TableReader, wanted: Mapping[str, str]
) -> Iterator[Explanation]:
    """One, or with ``--watch`` one after each pause."""
    at: int | str = args.at if args.at is not None else ("heartbeat" if is_copy(place) else "now")
    while True:
        then = moment(at if isinstance(at, int) else None if at == "now" else reader.heartbeat_ns())
        ids = _candidates(args, reader, wanted)
        found = reader.explain(ids, cursor=args.cursor, now_ns=then.mono_ns, boot_ns=then.boot_ns)
        yield found if isinstance(at, str) else _blamed(found)
        if args.watch is None:
            return
        time.sleep(args.watch)


def _candidates(args: argparse.Namespace, reader: TableReader, wanted: Mapping[str, str]) -> list[str] | None:
    """The ids asked about; ``None`` for all."""
    if args.instances is None and not wanted:
        return None
    there = reader.identities()
    named = None if args.instances is None else _ids(args.instances, there)
    tagged = [each.id for each in there if wanted.items() <= dict(each.tags).items()]
    return tagged if named is None else [name for name in named if name in tagged]


def _ids(text: str, there: Sequence[Identity]) -> list[str]:
    """The ids of the instances named in ``text``, matched as a proxy's objects are: by id, else by an address that is
    that of one alone. ``ValueError`` names what is none."""
    ids = {each.id for each in there}
    addresses = [(address_of(each.url), each.id) for each in there]
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        address = address_of(f"//{part}")
        holders = [name for where, name in addresses if where == address is not None]
        if part not in ids and len(holders) != 1:
            shared = f"{', '.join(holders)} have this address: name one by its id" if holders else ""
            known = f"in the table are {', '.join(each.id for each in there) or 'none'}"
            raise ValueError(f"--instances: no instance {part!r}: {shared or known}")
        name = part if part in ids else holders[0]
        if name not in found:
            found.append(name)
    if not found:
        raise ValueError(
            "--instances names no instance: give ids separated by commas, or leave it out for all"
        )
    return found


def _blamed(explanation: Explanation) -> Explanation:
    """What is wrong with the moment that was asked for, where a monitor's silence or clock would be named."""
    age = explanation.heartbeat_age_s
    if explanation.degraded != "outstanding" or explanation.state != "ready" or age is None:
        return explanation
    if age < 0:
        because = f"--at is {-age:.1f} s before the last heartbeat: what the table said then is overwritten"
    else:
        because = (
            f"--at is {age:.1f} s after the last heartbeat: as if the monitor had been silent since; "
            "--at heartbeat has the last moment that it scored"
        )
    return dataclasses.replace(explanation, because=because)


def _show(explanation: Explanation, number: int, args: argparse.Namespace, *, copied: bool) -> None:
    watched = args.watch is not None
    if args.json:
        print(json.dumps(wording.values_of(explanation), indent=None if watched else 2), flush=watched)
        return
    if watched and sys.stdout.isatty():
        print(end=_CLEAR)
    elif number:
        print()
    lines = as_text(explanation)
    if copied and args.at is None:
        lines.insert(lines.index(""), wording.COPY)
    print("\n".join(map(wording.printable, lines)), flush=watched)


def _written(tags: Mapping[str, str]) -> str:
    return " and ".join(f"{key}={value}" for key, value in tags.items())


def _pause(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.05 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.05 to 3600")
    return seconds


def _moment(text: str) -> int | str:
    if text in ("now", "heartbeat"):
        return text
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"{text!r} is neither now, nor heartbeat, nor ns of CLOCK_MONOTONIC")
    return int(text)
