"""Puts flags, environment and file together, and finds everything that is wrong with them in one go."""

from __future__ import annotations

import copy
import importlib
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from monitor.config.address import shown
from monitor.config.joint import MonitorConfig, conflicts
from monitor.config.model import InstanceConfig, Settings
from monitor.config.options import near_misses, options
from monitor.config.problems import ConfigError, Problem, path_of, sentence
from monitor.config.resolve import resolved
from monitor.config.scoring import PoolConfig, Scoring

# By name, because only one of the two exists for a type checker, and which one depends on the version.
_toml: Any = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")

_log = logging.getLogger("loadboard.monitor")
_Model = TypeVar("_Model", bound=BaseModel)


def load_config(
    file: Path | None,
    flags: Mapping[str, str],
    env: Mapping[str, str],
    instances: Sequence[str] = (),
    *,
    resolve: bool = True,
) -> MonitorConfig:
    """The configuration from ``flags`` (by key path) over ``env`` over ``file`` over the defaults.

    ``instances`` are ``[ID=]URL`` texts, added after those of the file. An empty variable is as good as
    none. ``resolve = False`` leaves alone what the configuration only points at: tokens in files and
    variables, and certificates; else each ``bearer_token`` is filled in. :class:`ConfigError` with all
    problems at once.
    """
    document, problems = _read(file)
    if problems:
        raise ConfigError(problems, file)
    sources = _overlay(document, flags, env, problems)
    for name, near in near_misses(env):
        _log.warning("environment variable %s is not an option of loadboard; did you mean %s?", name, near)

    listed, listed_pools = document.pop("instances", []), document.pop("pools", [])
    settings, found = _validated(Settings, document)
    problems += found
    usable = _instances(listed, instances, env if resolve else None, problems, sources)
    pools = _pools(listed_pools, problems)
    if settings is not None:
        problems += conflicts(settings, usable, pools, {problem.key_path for problem in problems})
    if not problems and settings is not None:
        problems += _unusable_modes(settings, pools)
    if problems or settings is None:
        raise ConfigError([_sourced(problem, sources) for problem in problems], file)
    # Without another validation, which would find two ways to a token now that it is filled in.
    return MonitorConfig.model_construct(
        **dict(settings), instances=tuple(usable.values()), pools=tuple(pools.values())
    )


def _unusable_modes(settings: Settings, pools: Mapping[int, PoolConfig]) -> list[Problem]:
    """Score modes of other packages that do not work here, each at the first key that leads to it."""
    # Here, because the modes bring numpy along, which is much for who only lists the options.
    from monitor.scores import score_mode
    from monitor.scores.plugins import PluginError

    chosen: dict[str, Scoring] = {"score": settings}
    chosen |= {f"pools[{index}].score": pool.over(settings) for index, pool in pools.items()}
    found: dict[str, Problem] = {}
    for key_path, scoring in chosen.items():
        try:
            score_mode(scoring)
        except PluginError as error:
            found.setdefault(str(error), Problem(key_path, str(error)))
    return list(found.values())


def _pools(listed: Any, problems: list[Problem]) -> dict[int, PoolConfig]:
    """The pools without a fault, by their place; the others go to ``problems``."""
    if not isinstance(listed, list):
        problems.append(Problem("pools", "has to be a list of tables: write [[pools]] above each"))
        return {}
    usable = {}
    for index, table in enumerate(listed):
        pool, found = _validated(PoolConfig, table, f"pools[{index}]")
        problems += found
        if pool is not None:
            usable[index] = pool
    return usable


def _instances(
    listed: Any,
    added: Sequence[str],
    env: Mapping[str, str] | None,
    problems: list[Problem],
    sources: dict[str, str],
) -> dict[int, InstanceConfig]:
    """The instances without a fault, by their place; the others go to ``problems``. What they point at is
    looked up unless ``env`` is None."""
    if not isinstance(listed, list):
        problems.append(Problem("instances", "has to be a list of tables: write [[instances]] above each"))
        listed = []
    elif not listed and not added:
        # A file that is looked at on its own has no flags beside it.
        or_flag = "" if env is None else ", or give --instance http://HOST:PORT"
        message = f'there are none: add [[instances]] with url = "http://HOST:PORT" to the file{or_flag}'
        problems.append(Problem("instances", message))
    tables = [*listed]
    for text in added:
        sources[f"instances[{len(tables)}]"] = f"--instance {shown(text)}"
        tables.append(_table_of(text))
    usable = {}
    for index, table in enumerate(tables):
        path = f"instances[{index}]"
        instance, found = _validated(InstanceConfig, table, path)
        if path in sources and isinstance(table, dict) and "/" in table.get("id", ""):
            found.append(
                Problem(f"{path}.id", f"{table['id']!r} has a / in it, which only an id in the file may")
            )
        if instance is not None and env is not None:
            instance, unresolved = resolved(instance, path, env)
            found += unresolved
        problems += found
        if instance is not None:
            usable[index] = instance
    return usable


def _read(file: Path | None) -> tuple[dict[str, Any], list[Problem]]:
    if file is None:
        return {}, []
    try:
        return _toml.loads(file.read_bytes().decode("utf-8-sig")), []
    except OSError as error:
        message = f"cannot be read: {error.strerror}; check the path and that this user may read it"
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        message = f"is not UTF-8 text in line {line}: save it as UTF-8"
    except _toml.TOMLDecodeError as error:
        message = f"is not valid TOML: {error}"
    return {}, [Problem("", message)]


def _overlay(
    document: dict[str, Any], flags: Mapping[str, str], env: Mapping[str, str], problems: list[Problem]
) -> dict[str, str]:
    """Write flags and variables over the file's values; returns which key came from which of them."""
    sources = {}
    for option in options():
        text, source = flags.get(option.key_path), option.flag
        if text is None:
            text, source = env.get(option.env) or None, option.env
        if text is None:
            continue
        *sections, key = option.key_path.split(".")
        table = document
        for section in sections:
            table = table.setdefault(section, {})
            if not isinstance(table, dict):
                break  # the file's own fault, reported as such
        else:
            sources[option.key_path] = source
            try:
                table[key] = option.parse(text)
            except ValueError as error:
                table.pop(key, None)
                problems.append(Problem(option.key_path, str(error), source))
    return sources


def _table_of(text: str) -> dict[str, str]:
    """``[ID=]URL`` as the table it stands for."""
    id, equals, url = text.partition("=")
    # A URL may hold "=" itself: then "://", or at least a path, comes before it.
    if not equals or "://" in id or ("://" not in url and set(id) & set("/?@")):
        return {"url": text}
    return {"id": id, "url": url}


def _validated(model: type[_Model], data: Any, below: str = "") -> tuple[_Model | None, list[Problem]]:
    """``data`` as a ``model`` and its faults. What is at fault is left out, so that the rest can still be
    checked against other parts; None where nothing is left to check."""
    try:
        return model.model_validate(data), []
    except ValidationError as error:
        details = error.errors(include_url=False)
    problems = [
        Problem(
            below + (("." if below else "") + path_of(each["loc"]) if each["loc"] else ""),
            sentence(each, model, below),
        )
        for each in details
    ]
    rest = copy.deepcopy(data)
    for each in details:
        _leave_out(rest, each["loc"])
    try:
        return model.model_validate(rest), problems
    except ValidationError:
        return None, problems


def _leave_out(data: Any, location: Sequence[str | int]) -> None:
    for step in location[:-1]:
        if not isinstance(data, dict):
            return
        data = data.get(str(step))
    if isinstance(data, dict) and location:
        data.pop(str(location[-1]), None)


def _sourced(problem: Problem, sources: Mapping[str, str]) -> Problem:
    """``problem`` with the flag or variable its value came from."""
    paths = [problem.key_path, problem.key_path.partition(".")[0]]
    if problem.key_path == "staleness":
        paths += ["interval", "timeout", "jitter"]  # any of them may be what made it too short
    source = next((sources[path] for path in paths if path in sources), problem.source)
    return Problem(problem.key_path, problem.message, source)
