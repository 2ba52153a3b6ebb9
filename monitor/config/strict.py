"""What every part of the model is made of: strict tables, options with their facts, faults in words."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError


class Strict(BaseModel):
    """A table of the file. Strict: "1" is no number and true is no 1."""

    # Inputs are hidden because one of them may be a token.
    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, hide_input_in_errors=True
    )


def option(
    default: Any, help: str, *, unit: str = "", form: str = "", reloadable: bool = True, **limits: Any
) -> Any:
    """One option. ``form`` describes the allowed texts where ``limits`` cannot; ``unit`` follows a range."""
    extra: dict[str, Any] = {"unit": unit, "form": form, "reloadable": reloadable}
    return Field(default, description=help, json_schema_extra=extra, **limits)


def fault(sentence: str) -> PydanticCustomError:
    """What a validator raises for a fault that ``sentence`` describes."""
    # The sentence goes in as a value: braces in it must not be taken for a template.
    return PydanticCustomError("fault", "{sentence}", {"sentence": sentence})
