"""``loadboard remove``: delete a table that nobody uses any more."""

from __future__ import annotations

import argparse
import sys

from loadboard.exits import NO_PERMISSION, OK, USAGE
from loadboard.tables import add_table_option
from score_table.errors import TableError
from score_table.location import default_table
from score_table.removal import remove_table


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "remove",
        help="remove a stopped table",
        description="Remove a table (and its lock file) that a stopped monitor left. "
        "Refuses while a monitor or a proxy worker uses it.",
    )
    add_table_option(parser)
    parser.add_argument("--force", action="store_true", help="remove it even while proxy workers use it")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Remove the table, or say why not."""
    location = args.table or default_table()
    try:
        removed = remove_table(location, force=args.force)
    except TableError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    except PermissionError as error:
        print(f"this user may not remove {error.filename}: {error.strerror}", file=sys.stderr)
        return NO_PERMISSION
    except ValueError as error:
        print(error, file=sys.stderr)
        return USAGE
    print(f"removed {', '.join(removed)}" if removed else f"there is no table {location}")
    return OK
