"""``loadboard run``: the monitor in the foreground, until SIGTERM."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loadboard.exits import BAD_CONFIG

if TYPE_CHECKING:
    from monitor.config import MonitorConfig


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the ``loadboard`` parser."""
    from monitor.config import add_option_flags

    parser = commands.add_parser(
        "run",
        help="run the monitor",
        description="Poll the instances and keep the score table of this host. "
        "SIGHUP reloads the configuration, SIGTERM ends the monitor and leaves the table to its successor. "
        "The options of the groups are also keys of the file and variables; a flag wins over both.",
        allow_abbrev=False,  # an abbreviation would change its meaning when an option is added
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="the configuration file (TOML)")
    parser.add_argument(
        "--instance",
        metavar="[ID=]URL",
        action="append",
        default=[],
        help="an instance to add to those of the file; may be given several times",
    )
    add_option_flags(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """The monitor's exit code; 78 (``EX_CONFIG``) and one line per problem on stderr for a bad configuration."""
    from monitor.config import ConfigError, flags_from, load_config

    flags = flags_from(args)

    def load() -> MonitorConfig:
        return load_config(args.config, flags, os.environ, args.instance)

    try:
        config = load()
    except ConfigError as error:
        print(error, file=sys.stderr)
        return BAD_CONFIG
    from monitor.daemon import main

    return main(config, reload=load)
