"""What a field of the model allows, in words: for help texts, for the reference page and for errors."""

from __future__ import annotations

import types
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

_KINDS = {float: "a number", int: "a whole number", str: "a text", bool: "true or false", SecretStr: "a text"}


def key_of(name: str, field: FieldInfo) -> str:
    """The field's name in the file, which may be a Python keyword."""
    return field.alias or name


def by_key(model: type[BaseModel]) -> dict[str, FieldInfo]:
    return {key_of(name, field): field for name, field in model.model_fields.items()}


def type_of(field: FieldInfo) -> Any:
    """The type without ``None``: ``float``, ``int``, ``str``, ``bool``, a ``Literal`` or another one."""
    annotation = field.annotation
    if get_origin(annotation) in (Union, types.UnionType):
        annotation = next(part for part in get_args(annotation) if part is not type(None))
    return annotation


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that is a table of the file."""
    kind = type_of(field)
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def choices_of(field: FieldInfo) -> tuple[str, ...]:
    """The words a field may hold; empty where it is not one of a list."""
    kind = type_of(field)
    return tuple(get_args(kind)) if get_origin(kind) is Literal else ()


def is_secret(field: FieldInfo) -> bool:
    return type_of(field) is SecretStr


def kind_of(field: FieldInfo) -> str:
    """What a value has to be at all: "a number", "a text", ..."""
    return "a text" if choices_of(field) else _KINDS.get(type_of(field), extra(field, "form") or "a table")


def range_of(field: FieldInfo) -> str:
    """The values that are allowed: ``0.05 to 300 s``, ``16 to 4096, a multiple of 16``, a list of words."""
    words = choices_of(field)
    if words:
        return ", ".join(f"`{word}`" for word in words)
    if type_of(field) is bool:
        return "`true`, `false`"
    limits = {type(limit).__name__: limit for limit in field.metadata}
    if "Ge" not in limits or "Le" not in limits:
        return str(extra(field, "form"))
    text = f"{_plain(limits['Ge'].ge)} to {_plain(limits['Le'].le)}"
    if extra(field, "unit"):
        text += f" {extra(field, 'unit')}"
    if "MultipleOf" in limits:
        text += f", a multiple of {limits['MultipleOf'].multiple_of}"
    return text


def extra(field: FieldInfo, name: str) -> Any:
    facts = field.json_schema_extra
    return facts.get(name, "") if isinstance(facts, dict) else ""


def _plain(number: float) -> str:
    return str(number)
