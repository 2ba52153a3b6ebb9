"""``loadboard proxy``: the demo proxy in front of the instances."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from loadboard.exits import BAD_CONFIG, FAILED, USAGE
from loadboard.extras import install_hint
from proxy_adapter.demo_proxy.serve import DEFAULT_GRACEFUL_TIMEOUT_S, DEFAULT_HOST, DEFAULT_PORT
from proxy_adapter.demo_proxy.settings import (
    DEFAULT_MAX_BODY_BYTES,
    DEFAULT_UPSTREAM_TIMEOUT_S,
    ProxySettings,
)

NO_TABLE = "none"


class _UsageError(Exception):
    """A mistake in what the user asked for; the message says which."""


def add_parser(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the ``loadboard`` parser."""
    from proxy_adapter.factory import ALIASES, STRATEGIES

    parser = commands.add_parser(
        "proxy",
        help="run the demo proxy",
        description="Pass /v1/* on to the instances, each request to the one that the strategy picks. "
        "It may start before the monitor does.",
        allow_abbrev=False,  # an abbreviation would change its meaning when an option is added
    )
    parser.add_argument("--host", default=DEFAULT_HOST, help="address to listen on (default: %(default)s)")
    parser.add_argument(
        "--port", type=_integer(0, 65535), default=DEFAULT_PORT, help="0 takes any (default: %(default)s)"
    )
    parser.add_argument(
        "--workers", type=_integer(1, 256), default=1, metavar="N", help="processes (default: %(default)s)"
    )
    parser.add_argument(
        "--strategy",
        metavar="NAME",
        help=f"how instances are picked: {_names(STRATEGIES, ALIASES)} (default: PROXY_INSTANCE_STRATEGY, "
        "else round_robin)",
    )
    parser.add_argument(
        "--tag-strategies",
        metavar="TAGS:NAME,...",
        help="strategies for the instances of certain tags, as role=prefill:least_load,role=decode:power_of_two; "
        "--strategy is for all others (default: PROXY_TAG_STRATEGIES, else none)",
    )
    parser.add_argument(
        "--table",
        metavar="TABLE",
        help=f"name or path of the table, `{NO_TABLE}` to work without (default: LOADBOARD_TABLE, else that of "
        "the configuration file, else /loadboard)",
    )
    parser.add_argument(
        "--instance",
        metavar="[ID=]URL",
        action="append",
        default=[],
        help="an instance; may be given several times (default: those of the configuration file, else those of "
        "the table)",
    )
    parser.add_argument("--config", metavar="FILE", type=Path, help="the monitor's configuration file (TOML)")
    parser.add_argument(
        "--upstream-timeout",
        metavar="SECONDS",
        type=_seconds,
        default=DEFAULT_UPSTREAM_TIMEOUT_S,
        help="how long an instance may take to its response headers (default: %(default)g)",
    )
    parser.add_argument(
        "--graceful-timeout",
        metavar="SECONDS",
        type=_integer(0, 86400),
        default=DEFAULT_GRACEFUL_TIMEOUT_S,
        help="how long streams may go on after SIGTERM (default: %(default)s)",
    )
    parser.add_argument(
        "--max-body-bytes",
        metavar="BYTES",
        type=_integer(1, 2**40),
        default=DEFAULT_MAX_BODY_BYTES,
        help="largest request body, each is held in memory (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve until a signal; 2 for a usage error, 78 for a bad configuration file, 1 where the start fails."""
    try:
        import httpx  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        print(f"loadboard proxy needs {error.name}: {install_hint('proxy')}", file=sys.stderr)
        return FAILED
    from monitor.config import ConfigError
    from proxy_adapter.demo_proxy.serve import CannotListen, serve

    try:
        settings = settings_from(args)
    except _UsageError as error:
        print(error, file=sys.stderr)
        return USAGE
    except ConfigError as error:
        print(error, file=sys.stderr)
        return BAD_CONFIG
    try:
        return serve(
            settings,
            host=args.host,
            port=args.port,
            workers=args.workers,
            graceful_timeout_s=args.graceful_timeout,
        )
    except CannotListen as error:
        print(error, file=sys.stderr)
        return FAILED


def settings_from(args: argparse.Namespace) -> ProxySettings:
    """What the flags, the environment and the configuration file come to, checked as far as it can be."""
    from proxy_adapter.demo_proxy.app import make_source
    from score_table.location import TABLE_VARIABLE

    file_table, file_instances = _from_file(args.config)
    given = args.table or os.environ.get(TABLE_VARIABLE) or file_table
    settings = ProxySettings(
        strategy=_strategy(args.strategy),
        pools=_pools(args.tag_strategies),
        table=_table(given),
        instances=_instances(args.instance) or file_instances,
        max_body_bytes=args.max_body_bytes,
        upstream_timeout_s=args.upstream_timeout,
    )
    try:
        make_source(settings)
    except ValueError as error:
        raise _UsageError(f"{error}: use --instance or --config") from None
    return settings


def _strategy(flag: str | None) -> str:
    from proxy_adapter.factory import ALIASES, DEFAULT_STRATEGY, STRATEGIES, STRATEGY_VARIABLE, canonical_name

    name = flag if flag is not None else os.environ.get(STRATEGY_VARIABLE) or DEFAULT_STRATEGY
    try:
        return canonical_name(name)
    except ValueError as error:
        raise _UsageError(f"{error}\nvalid names: {_names(STRATEGIES, ALIASES)}") from None


def _pools(flag: str | None) -> str:
    from proxy_adapter.factory import POOLS_VARIABLE, canonical_pools
    from proxy_adapter.pools import written

    try:
        return written(canonical_pools(os.environ.get(POOLS_VARIABLE, "") if flag is None else flag))
    except ValueError as error:
        said_by = POOLS_VARIABLE if flag is None else "--tag-strategies"
        raise _UsageError(f"{said_by}: {error}") from None


def _names(strategies: Iterable[str], aliases: Mapping[str, str]) -> str:
    return "; ".join(
        f"{known} (or {', '.join(alias for alias, to in aliases.items() if to == known)})"
        for known in strategies
    )


def _table(given: str) -> str | None:
    from score_table.location import Location

    if given == NO_TABLE:
        return None
    try:
        Location.parse(given)
    except ValueError as error:
        raise _UsageError(str(error)) from None
    return given


def _instances(given: list[str]) -> tuple[tuple[str, str], ...]:
    from proxy_adapter.demo_proxy.instances import split_instance

    try:
        return tuple(split_instance(text) for text in given)
    except ValueError as error:
        raise _UsageError(str(error)) from None


def _from_file(file: Path | None) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The table and the instances that the monitor's file names; the defaults without one."""
    from score_table.location import DEFAULT_TABLE

    if file is None:
        return DEFAULT_TABLE, ()
    from monitor.config import load_config

    # Tokens are for the monitor's polls, and may be readable by it alone.
    config = load_config(file, {}, {}, resolve=False)
    return config.table, tuple((instance.id, instance.url) for instance in config.instances)


def _integer(low: int, high: int) -> Callable[[str], int]:
    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")
        return value

    return integer


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0 and up to 86400")
    return value
