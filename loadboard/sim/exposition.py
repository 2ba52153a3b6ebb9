"""The engine's /metrics page, with the names, labels and value forms of vLLM V1."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from loadboard.sim.model import Gauges

MODEL_NAME = "simulated"

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_BLOCK_TOKENS = 16
_LABELS = f'engine="0",model_name="{MODEL_NAME}"'


class _Family(NamedTuple):
    name: str  #: as in HELP and TYPE
    kind: str
    help: str
    series: tuple[tuple[str, float], ...]  #: labels and value


def page(gauges: Gauges, *, kv_capacity: int, started: float, names: Collection[str] | None = None) -> str:
    """The page in the Prometheus text format; ``names`` keeps only the series so named.

    ``started``: Unix seconds. As in vLLM, requests that their clients cut off appear in no
    ``request_success_total``, while the tokens they got are counted.
    """
    lines: list[str] = []
    for family in _families(gauges, kv_capacity, started):
        if names is not None and family.name not in names:
            continue
        lines.append(f"# HELP {family.name} {family.help}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.series:
            lines.append(f"{family.name}{{{labels}}} {value!r}" if labels else f"{family.name} {value!r}")
    return "\n".join(lines) + "\n" if lines else ""


def _families(gauges: Gauges, kv_capacity: int, started: float) -> Iterator[_Family]:
    yield _Family(
        "process_start_time_seconds",
        "gauge",
        "Start time of the process since unix epoch in seconds.",
        (("", started),),
    )
    yield _gauge("num_requests_running", "Number of requests in model execution batches.", gauges.running)
    yield _gauge("num_requests_waiting", "Number of requests waiting to be processed.", gauges.waiting)
    yield _Family(
        "vllm:num_requests_waiting_by_reason",
        "gauge",
        "Number of waiting requests by reason.",
        (
            (f'{_LABELS},reason="capacity"', float(gauges.waiting)),
            (f'{_LABELS},reason="deferred"', 0.0),
        ),
    )
    yield _gauge(
        "kv_cache_usage_perc",
        "KV-cache usage. 1 means 100 percent usage.",
        gauges.kv_tokens / kv_capacity,
    )
    for name, text, total in (
        ("num_preemptions", "Cumulative number of preemption from the engine.", gauges.preemptions),
        ("prompt_tokens", "Number of prefill tokens processed.", gauges.prompt_tokens),
        ("generation_tokens", "Number of generation tokens processed.", gauges.generated_tokens),
    ):
        yield from _counter(name, text, ((_LABELS, float(total)),), started)
    yield from _counter(
        "request_success",
        "Count of successfully processed requests.",
        tuple(
            (
                f'engine="0",finished_reason="{reason}",model_name="{MODEL_NAME}"',
                # A simulated answer always has the length that was asked for.
                float(gauges.finished if reason == "length" else 0),
            )
            for reason in ("stop", "length", "abort", "error", "repetition")
        ),
        started,
    )
    yield _Family(
        "vllm:cache_config_info",
        "gauge",
        "Information of the LLMEngine CacheConfig",
        (
            (
                f'block_size="{_BLOCK_TOKENS}",cache_dtype="auto",enable_prefix_caching="False",engine="0",'
                f'kv_cache_size_tokens="{kv_capacity}",num_cpu_blocks="None",'
                f'num_gpu_blocks="{kv_capacity // _BLOCK_TOKENS}"',
                1.0,
            ),
        ),
    )


def _gauge(name: str, text: str, value: float) -> _Family:
    return _Family(f"vllm:{name}", "gauge", text, ((_LABELS, float(value)),))


def _counter(
    name: str, text: str, series: tuple[tuple[str, float], ...], started: float
) -> Iterator[_Family]:
    yield _Family(f"vllm:{name}_total", "counter", text, series)
    yield _Family(f"vllm:{name}_created", "gauge", text, tuple((labels, started) for labels, _ in series))
