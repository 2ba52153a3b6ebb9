"""How instances are scored, and which are left out: options for all of them, or for one pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator

from monitor.config.installed import choices, installed
from monitor.config.score_sections import OWN_MODES, ExpectedWait, InflightKv, TokenAware, WeightedSum
from monitor.config.strict import Strict, fault, option


class Scoring(Strict):
    """What a pool of instances may have of its own; :class:`Settings` has what is common to all."""

    score: str = option(
        "token_aware",
        "formula of the score",
        form=", ".join(f"`{mode}`" for mode in OWN_MODES) + ", or an installed one",
    )
    unknown: Literal["estimate", "avoid"] = option(
        "estimate", "what an instance without a fresh sample is: estimated from the others, or avoided"
    )
    overload_waiting: int = option(
        0,
        "requests waiting in an instance from which it is avoided while others have fewer; 0 is no limit",
        ge=0,
        le=1_000_000,
    )
    overload_kv: float = option(
        0.0,
        "share of its KV cache from which an instance is avoided while others are below; 0 is no limit",
        ge=0,
        le=1,
    )
    token_aware: TokenAware = Field(default=TokenAware(), strict=False)
    inflight_kv: InflightKv = Field(default=InflightKv(), strict=False)
    expected_wait: ExpectedWait = Field(default=ExpectedWait(), strict=False)
    weighted_sum: WeightedSum = Field(default=WeightedSum(), strict=False)
    score_options: dict[str, Any] = option(
        {}, "options of an installed score mode", form="a table of that mode's own keys"
    )

    @field_validator("score")
    @classmethod
    def _score_is_a_mode(cls, score: str) -> str:
        if score not in OWN_MODES and not installed(score):
            raise fault(f"{score!r} is not a score mode: {choices(score, OWN_MODES)}")
        return score


class PoolConfig(Scoring):
    """One ``[[pools]]`` table: instances that are scored, and judged against each other, on their own."""

    tags: dict[str, str] = Field(
        description="tags that an instance of the pool has, all of them; it may have more",
        json_schema_extra={"form": "a table of texts"},
    )

    def matches(self, tags: Mapping[str, str]) -> bool:
        """Whether an instance with ``tags`` belongs to the pool, unless one before it took it."""
        return self.tags.items() <= tags.items()

    def over(self, common: Scoring) -> Scoring:
        """The options in force in the pool: those that it was given, the others as in ``common``."""
        return Scoring.model_construct(
            **{name: _over(getattr(common, name), self, name) for name in Scoring.model_fields}
        )

    @field_validator("tags")
    @classmethod
    def _some_tag_is_given(cls, tags: dict[str, str]) -> dict[str, str]:
        if not tags:
            raise fault(
                'is empty: name at least one tag, as in tags = { role = "prefill" }; instances of no pool '
                "go by the common options"
            )
        return tags


def _over(common: Any, own: BaseModel, name: str) -> Any:
    if name not in own.model_fields_set:
        return common
    value = getattr(own, name)
    if not isinstance(value, BaseModel):
        return value
    return common.model_copy(
        update={each: _over(getattr(common, each), value, each) for each in value.model_fields_set}
    )
