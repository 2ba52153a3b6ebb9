"""The command line: one module per command, gathered here."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from loadboard import check, demo, dump, proxy, remove, run
from loadboard.exits import INTERRUPTED, OK


def build_parser() -> argparse.ArgumentParser:
    """The whole parser; the documentation of the commands is made from it."""
    parser = argparse.ArgumentParser(
        prog="loadboard",
        description="A shared score table of LLM inference instances, so that every proxy worker of a host "
        "picks the least-loaded one.",
    )
    try:
        installed = version("loadboard")
    except PackageNotFoundError:
        installed = "unknown (not installed)"
    parser.add_argument("--version", action="version", version=f"loadboard {installed}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in (run, proxy, demo, dump, check, remove):
        command.add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    args = build_parser().parse_args(argv)
    try:
        status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of a pipe (head, less) has gone: that ends the output, it is no fault.
        sys.stderr.close()
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
