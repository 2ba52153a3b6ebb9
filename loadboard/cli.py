"""The command line: one module per command, gathered here."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version

from loadboard.exits import FAILED, INTERRUPTED, OK

#: In the order of the help text; each is the module of that name.
COMMANDS = ("run", "proxy", "demo", "dump", "why", "check", "doctor", "remove")


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The whole parser, or that of one command. What one command imports should not slow down another."""
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
    for command in COMMANDS if only is None else (only,):
        importlib.import_module(f"loadboard.{command}").add_parser(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit status."""
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(words[0] if words and words[0] in COMMANDS else None)
    try:
        try:
            args = parser.parse_args(words)
            status: int = args.run(args)
        finally:
            sys.stdout.flush()  # also of a help text, and where a broken pipe can still be told from a fault
    except BrokenPipeError:
        # The reader of a pipe (head, less) has gone: that ends the output, it is no fault. What is left in
        # the buffer is written once more when Python ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:
        # Of the output itself, a full disk for example; every command deals with the errors of its own work.
        if error.errno not in (errno.ENOSPC, errno.EIO, errno.EBADF):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        return FAILED
    return status


if __name__ == "__main__":
    sys.exit(main())
