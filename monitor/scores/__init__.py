"""Score modes by name, one per module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.scores.base import Loads, ScoreMode
from monitor.scores.inflight_kv import InflightKv
from monitor.scores.token_aware import TokenAware

if TYPE_CHECKING:
    from monitor.config import Settings

__all__ = ["MODES", "Loads", "ScoreMode", "score_mode"]


def _token_aware(settings: Settings) -> ScoreMode:
    options = settings.token_aware
    return TokenAware(
        prefill_weight=options.prefill_weight,
        kv_weight=options.kv_weight,
        kv_limit=options.kv_limit,
        slots_weight=options.slots_weight,
        nominal_kv_capacity=options.nominal_kv_capacity,
    )


def _inflight_kv(settings: Settings) -> ScoreMode:
    options = settings.inflight_kv
    return InflightKv(
        lambda_=options.lambda_,
        kv_limit=options.kv_limit,
        nominal_kv_capacity=settings.token_aware.nominal_kv_capacity,
    )


#: Every name that ``score`` in the configuration may have.
MODES = {"token_aware": _token_aware, "inflight_kv": _inflight_kv}


def score_mode(settings: Settings) -> ScoreMode:
    """The mode that ``settings.score`` names, with its options."""
    return MODES[settings.score](settings)
