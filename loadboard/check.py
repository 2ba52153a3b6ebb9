"""``loadboard check FILE``: whether the monitor would accept a configuration file."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from loadboard.exits import BAD_CONFIG, OK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from monitor.config import MonitorConfig


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the ``loadboard`` parser."""
    parser = commands.add_parser(
        "check",
        help="check a configuration file",
        description="Check a configuration file on its own, without flags and environment. Tokens and "
        "certificates that it points at are not looked up, since they may be the service's alone.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the file, as for `loadboard run --config`")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """0 and a summary with notes on stdout, or 78 (``EX_CONFIG``) and one line per problem on stderr."""
    from monitor.config import ConfigError, load_config, notes

    try:
        config = load_config(args.file, {}, {}, resolve=False)
    except ConfigError as error:
        print(error, file=sys.stderr)
        return BAD_CONFIG
    count = len(config.instances)
    print(
        f"{args.file}: ok ({count} instance{'' if count == 1 else 's'}, "
        f"score {config.score}, table {config.table})"
    )
    for line in _summary(config):
        print(f"  {line}")
    for note in notes(config):
        print(f"  note: {note}")
    return OK


def _summary(config: MonitorConfig) -> Iterator[str]:
    """What differs from the defaults, and what was not checked."""
    from monitor.config import options
    from monitor.config.installed import origin
    from monitor.config.listing import values_of, written
    from monitor.config.score_sections import OWN_MODES

    for option in options():
        value = option.read(config)
        if value != option.default:
            yield f"{option.key_path} = {value} (default {option.default})"
    for key, value in values_of(config).items():
        if key.startswith("score_options."):
            yield f"{key} = {written(key, value)}"
    for score in sorted({config.score, *(pool.score for pool in config.pools)} - set(OWN_MODES)):
        yield f"score {score}: {origin(score)}"
    places = [config.pool_of(instance) for instance in config.instances]
    for place, pool in enumerate(config.pools):
        tags = ", ".join(f"{name} = {value}" for name, value in pool.tags.items())
        count = places.count(place)
        yield (
            f"pools[{place}] ({tags}): {count} instance{'' if count == 1 else 's'}, "
            f"score {pool.over(config).score}"
        )
        for key, value in values_of(pool, given=True).items():
            if key not in ("score", "tags"):
                yield f"pools[{place}].{key} = {written(key, value)}"
    for index, instance in enumerate(config.instances):
        if instance.weight != 1.0:
            yield f"instances[{index}].weight = {instance.weight:g} ({instance.id})"
        if instance.draining:
            yield f"instances[{index}].draining = true ({instance.id})"
        for key in ("bearer_token_env", "bearer_token_file", "ca_file"):
            if getattr(instance, key):
                yield f"instances[{index}].{key}: looked up when the monitor starts, not checked here"
