"""``loadboard why``: which instance the next request goes to, and why, through the public reader."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Iterator, Mapping

from loadboard import wording
from loadboard.exits import FAILED, OK, USAGE
from loadboard.tables import add_table_option, explain_absence
from loadboard.why_text import as_text
from proxy_adapter.pools import read_tags
from score_table.errors import TableAbsent, TableError
from score_table.explanation import Explanation
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
        "--instances", metavar="A,B,...", help="ids of the candidates (default: all in the table)"
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
                _show(explanation, number, as_json=args.json, watched=args.watch is not None)
    except TableAbsent as error:
        print(explain_absence(error), file=sys.stderr)
        return error.exit_status
    except TableError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except ValueError as error:
        print(error, file=sys.stderr)
        return USAGE
    return OK


def _explanations(
    args: argparse.Namespace, place: Location, reader: TableReader, wanted: Mapping[str, str]
) -> Iterator[Explanation]:
    """One, or with ``--watch`` one after each pause."""
    at: int | str = args.at if args.at is not None else ("now" if place.lock_path.exists() else "heartbeat")
    while True:
        now, boot = time.monotonic_ns(), time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        then = at if isinstance(at, int) else now if at == "now" else reader.heartbeat_ns()
        # Of another boot, whose clock was ahead of this one, nothing else is known than that it had not slept.
        boot = boot - (now - then) if then <= now else then
        yield reader.explain(_candidates(args, reader, wanted), cursor=args.cursor, now_ns=then, boot_ns=boot)
        if args.watch is None:
            return
        time.sleep(args.watch)


def _candidates(args: argparse.Namespace, reader: TableReader, wanted: Mapping[str, str]) -> list[str] | None:
    """The ids asked about; ``None`` for all."""
    named = (
        None
        if args.instances is None
        else [part.strip() for part in args.instances.split(",") if part.strip()]
    )
    if not wanted:
        return named
    tagged = [each.id for each in reader.identities() if wanted.items() <= dict(each.tags).items()]
    return tagged if named is None else [name for name in named if name in tagged]


def _show(explanation: Explanation, number: int, *, as_json: bool, watched: bool) -> None:
    if as_json:
        print(json.dumps(dataclasses.asdict(explanation), indent=None if watched else 2), flush=watched)
        return
    if watched and sys.stdout.isatty():
        print(end=_CLEAR)
    elif number:
        print()
    print("\n".join(map(wording.printable, as_text(explanation))), flush=watched)


def _written(tags: Mapping[str, str]) -> str:
    return " and ".join(f"{key}={value}" for key, value in tags.items())


def _pause(text: str) -> float:
    seconds = float(text)
    if not 0.05 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text} is not from 0.05 to 3600 seconds")
    return seconds


def _moment(text: str) -> int | str:
    if text in ("now", "heartbeat"):
        return text
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise argparse.ArgumentTypeError(f"{text!r} is neither now, nor heartbeat, nor ns of CLOCK_MONOTONIC")
    return int(text)
