"""Every option as a key of the file, a flag and an environment variable, derived from the model."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from monitor.config.fields import choices_of, extra, key_of, kind_of, range_of, section_of, type_of
from monitor.config.model import Settings

VARIABLE_PREFIX = "LOADBOARD_"

_METAVARS = {"a number": "NUMBER", "a whole number": "INTEGER"}

#: Groups of the help text. The options of a section are a group by themselves.
_GROUPS = {
    "table": ("table", "table_mode", "group", "slots", "lanes", "max_heartbeat_age"),
    "polling": ("interval", "timeout", "jitter", "staleness", "concurrency", "max_body_bytes"),
    "score": ("tick", "score", "unknown", "overload_waiting", "overload_kv"),
    "log": ("log_format", "log_level"),
}


@dataclass(frozen=True)
class Option:
    """One option, the same for all instances."""

    key_path: str  #: its place in the file, as in ``token_aware.kv_limit``
    flag: str  #: ``--token-aware-kv-limit``
    env: str  #: ``LOADBOARD_TOKEN_AWARE_KV_LIMIT``
    default: float | int | str
    help: str
    range: str  #: the allowed values in words
    kind: str  #: "a number", "a whole number" or "a text"
    choices: tuple[str, ...]  #: empty where it is not one of a list
    reloadable: bool  #: whether SIGHUP applies a change; otherwise it needs a restart
    attributes: tuple[str, ...]  #: the way to its value in ``MonitorConfig``

    def parse(self, text: str) -> float | int | str:
        """The value of a flag or variable; ranges are left to the model. ``ValueError`` if it is no number."""
        try:
            if self.kind == "a whole number":
                return int(text)
            return float(text) if self.kind == "a number" else text
        except ValueError:
            raise ValueError(f"{text!r} is not {self.kind}: use {self.range}") from None

    def read(self, config: Settings) -> float | int | str:
        """The option's value in ``config``."""
        value: Any = config
        for name in self.attributes:
            value = getattr(value, name)
        return value  # type: ignore[no-any-return]


def options() -> list[Option]:
    """All options, in the order of the model."""
    return list(_options(Settings, (), ()))


def add_option_flags(parser: argparse.ArgumentParser) -> None:
    """Give ``parser`` a flag per option. What was not given leaves no trace in the namespace, so that the
    environment and the file keep their say."""
    known = options()
    titles = dict.fromkeys([*_GROUPS, *(_group_of(option) for option in known)])
    groups = {title: parser.add_argument_group(title) for title in titles}
    for option in known:
        allowed = "" if option.choices else option.range.replace("`", "") + "; "
        facts = f"{allowed}default {option.default!r}; {option.env}"
        groups[_group_of(option)].add_argument(
            option.flag,
            dest=_destination(option),
            default=argparse.SUPPRESS,
            metavar=_metavar(option),
            help=f"{option.help} ({facts})".replace("%", "%%"),
        )


def _group_of(option: Option) -> str:
    """The group of the help text in which ``option`` stands."""
    section, dot, _ = option.key_path.rpartition(".")
    return section if dot else next(title for title, keys in _GROUPS.items() if option.key_path in keys)


def _metavar(option: Option) -> str:
    # Not argparse's own choices: a wrong word is reported together with everything else that is wrong.
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    return _METAVARS.get(option.kind) or option.key_path.rpartition("_")[2].upper()


def flags_from(args: argparse.Namespace) -> dict[str, str]:
    """The options given as flags, by key path."""
    given = vars(args)
    return {
        option.key_path: given[_destination(option)] for option in options() if _destination(option) in given
    }


def near_misses(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Variables of ``env`` that are no option but look like one, each with the one it looks like.

    Others that begin alike are left alone: container platforms make them up from names of services.
    """
    known = [option.env for option in options()]
    for name in sorted(env):
        if name.startswith(VARIABLE_PREFIX) and name not in known:
            for near in difflib.get_close_matches(name, known, n=1, cutoff=0.9):
                yield name, near


def _destination(option: Option) -> str:
    # No other command's argument can have a dot in its name.
    return f"option.{option.key_path}"


def _options(model: type[BaseModel], keys: tuple[str, ...], names: tuple[str, ...]) -> Iterator[Option]:
    for name, field in model.model_fields.items():
        path, way = (*keys, key_of(name, field)), (*names, name)
        section = section_of(field)
        if section is not None:
            yield from _options(section, path, way)
        # A table of keys that the model does not know has no flags.
        elif get_origin(type_of(field)) is not dict:
            yield _option(field, path, way)


def _option(field: FieldInfo, keys: tuple[str, ...], names: tuple[str, ...]) -> Option:
    words = "_".join(keys)
    return Option(
        key_path=".".join(keys),
        flag="--" + words.replace("_", "-"),
        env=VARIABLE_PREFIX + words.upper(),
        default=field.default,
        help=field.description or "",
        range=range_of(field),
        kind=kind_of(field),
        choices=choices_of(field),
        reloadable=bool(extra(field, "reloadable")),
        attributes=names,
    )
