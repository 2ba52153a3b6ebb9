"""Score modes by name, one per module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from monitor.config.installed import installed, origin
from monitor.scores import plugins
from monitor.scores.base import Loads, ScoreMode, Taken
from monitor.scores.expected_wait import ExpectedWait
from monitor.scores.inflight_kv import InflightKv
from monitor.scores.token_aware import TokenAware
from monitor.scores.weighted_sum import WeightedSum

if TYPE_CHECKING:
    from monitor.config import Scoring

__all__ = ["MODES", "Loads", "ScoreMode", "Taken", "failing", "score_mode", "taken"]


def _token_aware(settings: Scoring) -> ScoreMode:
    options = settings.token_aware
    return TokenAware(
        prefill_weight=options.prefill_weight,
        kv_weight=options.kv_weight,
        kv_limit=options.kv_limit,
        slots_weight=options.slots_weight,
        nominal_kv_capacity=options.nominal_kv_capacity,
    )


def _inflight_kv(settings: Scoring) -> ScoreMode:
    options = settings.inflight_kv
    return InflightKv(
        lambda_=options.lambda_,
        kv_limit=options.kv_limit,
        nominal_kv_capacity=settings.token_aware.nominal_kv_capacity,
    )


def _expected_wait(settings: Scoring) -> ScoreMode:
    options = settings.expected_wait
    return ExpectedWait(
        throughput=options.throughput,
        request_tokens=options.request_tokens,
        kv_weight=options.kv_weight,
        kv_limit=options.kv_limit,
        nominal_kv_capacity=settings.token_aware.nominal_kv_capacity,
    )


def _weighted_sum(settings: Scoring) -> ScoreMode:
    options = settings.weighted_sum
    return WeightedSum(
        prefill_weight=options.prefill_weight,
        decode_weight=options.decode_weight,
        waiting_weight=options.waiting_weight,
        backlog_weight=options.backlog_weight,
        prefill_rate=options.prefill_rate,
        qps_weight=options.qps_weight,
        nominal_prompt_tokens=settings.token_aware.prompt_tokens,
    )


#: The monitor's own modes, by what ``score`` in the configuration is for them.
MODES = {
    "token_aware": _token_aware,
    "inflight_kv": _inflight_kv,
    "expected_wait": _expected_wait,
    "weighted_sum": _weighted_sum,
}


def score_mode(settings: Scoring, *, tick_s: float = 0.02) -> ScoreMode:
    """The mode that ``settings.score`` names, with its options; ``tick_s`` is the time between two ticks.

    :class:`plugins.PluginError` for one of another package that cannot be used.
    """
    own = MODES.get(settings.score)
    if own is None:
        return plugins.load(settings.score, settings.score_options, tick_s=tick_s)
    if installed(settings.score):
        raise plugins.PluginError(
            f"{origin(settings.score)} has the name of one of the monitor's own modes: uninstall its "
            "package, or have it renamed"
        )
    return own(settings)


def taken(mode: ScoreMode, loads: Loads) -> Taken:
    """What ``mode`` takes in of ``loads`` beside the parts that every mode has."""
    return mode.taken(loads) if isinstance(mode, (ExpectedWait, WeightedSum)) else Taken()


def failing(mode: ScoreMode) -> str:
    """What is wrong with ``mode``: that requests are counted instead of its score, or that it is slow; else empty."""
    return mode.failing or mode.slow if isinstance(mode, plugins.Plugin) else ""
