"""``loadboard demo``: a whole fleet on this machine, with simulated engines, to look at."""

from __future__ import annotations

import argparse
import importlib.util
import sys

from loadboard.extras import install_hint

_NEEDED = ("rich", "starlette", "uvicorn")


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the ``loadboard`` parser."""
    parser = commands.add_parser(
        "demo",
        help="show a live fleet of simulated engines",
        description="Start four simulated engines, the monitor, a proxy with two workers and a steady load, and "
        "show the table. Everything is on this machine, under a table of its own, and gone when the demo ends.",
        allow_abbrev=False,
    )
    parser.add_argument("--once", action="store_true", help="print one frame when traffic flows, and end")
    parser.add_argument("--seconds", type=float, metavar="S", help="end after S seconds (default: at Ctrl-C)")
    parser.add_argument(
        "--port",
        type=_port,
        metavar="P",
        help="the proxy's port (default: 8000, or a free one if it is taken)",
    )
    parser.set_defaults(run=run)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"a port is a number from 0 (any free one) to 65535, not {text!r}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """0 when the demo ended as asked, 1 when something is missing or failed."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        print(
            f"loadboard demo needs {', '.join(missing)}: {install_hint('demo')}",
            file=sys.stderr,
        )
        return 1
    from loadboard.demo import front

    return front.main(once=args.once, seconds=args.seconds, port=args.port)
