"""Looks up what an instance's configuration points at: tokens in variables and files, certificates."""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from pathlib import Path

from pydantic import SecretStr

from monitor.config.model import InstanceConfig, is_token
from monitor.config.problems import Problem

_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")


def resolved(
    instance: InstanceConfig, path: str, env: Mapping[str, str]
) -> tuple[InstanceConfig, list[Problem]]:
    """``instance`` with ``bearer_token`` filled in, and what could not be used. ``path`` is its key path."""
    problems = []
    try:
        token = _token(instance, env)
    except ValueError as error:
        key = "bearer_token_env" if instance.bearer_token_env else "bearer_token_file"
        problems.append(Problem(f"{path}.{key}", str(error)))
    else:
        instance = instance.model_copy(update={"bearer_token": token})
    if instance.ca_file:
        try:
            ssl.create_default_context(cafile=instance.ca_file)
        except ssl.SSLError:
            problems.append(
                Problem(f"{path}.ca_file", f"{instance.ca_file!r} has no certificates in PEM form")
            )
        except (OSError, ValueError) as error:
            problems.append(
                Problem(f"{path}.ca_file", f"{instance.ca_file!r} cannot be read: {_reason(error)}")
            )
    return instance, problems


def _token(instance: InstanceConfig, env: Mapping[str, str]) -> SecretStr | None:
    """``ValueError`` with a sentence that holds no token, not even one put in place of a name or path."""
    if instance.bearer_token_env:
        named = bool(_VARIABLE.fullmatch(instance.bearer_token_env))
        place = f"the environment variable {instance.bearer_token_env}" if named else "the variable it names"
        text = env.get(instance.bearer_token_env, "").strip()
        if not text:
            raise ValueError(f"{place} is not set: set it in the monitor's environment")
    elif instance.bearer_token_file:
        place = f"the file {instance.bearer_token_file}" if "/" in instance.bearer_token_file else "the file"
        try:
            text = Path(instance.bearer_token_file).read_text("utf-8").strip()
        except (OSError, ValueError) as error:
            raise ValueError(f"{place} cannot be read: {_reason(error)}") from None
        if not text:
            raise ValueError(f"{place} is empty: write the token into it")
    else:
        return instance.bearer_token
    if not is_token(text):
        raise ValueError(f"{place} must hold one token of visible ASCII characters and nothing else")
    return SecretStr(text)


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "it is no text"
