"""vLLM: its metrics page, V0 and V1, one engine or several behind one port."""

from __future__ import annotations

from collections.abc import Mapping

from monitor.engines.base import MAX_REQUESTS, MAX_TOKENS, Checks, process_start
from monitor.engines.scan import Page, labels
from monitor.sample import FINISHED, GENERATED_TOKENS, PROMPT_TOKENS, Counters, Reading

_RUNNING = b"num_requests_running"
_WAITING = b"num_requests_waiting"
_SWAPPED = b"num_requests_swapped"  # V0 only
_KV = b"kv_cache_usage_perc"  # a share in spite of its name
_KV_BEFORE_0_9 = b"gpu_cache_usage_perc"
_CONFIG = b"cache_config_info"
_START = b"process_start_time_seconds"
_COUNTERS = {
    FINISHED: b"request_success",
    GENERATED_TOKENS: b"generation_tokens",
    PROMPT_TOKENS: b"prompt_tokens",
}
_GAUGES = (_RUNNING, _WAITING, _SWAPPED, _KV, _KV_BEFORE_0_9, _CONFIG)

Gauges = Mapping[bytes, Mapping[bytes, float]]

_PAGE = "/metrics"
_FAMILIES = (
    *(b"vllm:" + name for name in _GAUGES),
    *(b"vllm:" + name + b"_total" for name in _COUNTERS.values()),
    _START,
)
# The handler that filters lives at the path with the slash.
_FILTERED = "/metrics/?" + "&".join(f"name[]={name.decode()}" for name in _FAMILIES)


class Vllm:
    """Sums counts over all ``engine`` and ``model_name`` series; the KV usage is their plain mean.

    ``num_requests_waiting_by_reason`` is the waiting number once more, split, and is never added. Of the two
    KV gauges only one is read, as a page may carry both.
    """

    name = "vllm"
    endpoints: tuple[str, ...] = (_FILTERED, _PAGE)
    filtered: Mapping[str, tuple[bytes, ...]] = {_FILTERED: _FAMILIES}

    def recognises(self, path: str, body: bytes) -> bool:
        return Page(body, b"vllm").has_prefix()

    def read(self, path: str, body: bytes) -> Reading:
        page = Page(body, b"vllm")
        checks = Checks()
        if not page.has_prefix():
            checks.say("the page has no vllm: line; vLLM writes none with --disable-log-stats")
            return Reading(problems=checks.problems)
        gauges = {name: page.family(name) for name in _GAUGES}
        start = process_start(page.bare(_START).values())
        idle = 0.0 if _before_first_work(page, gauges, start) else None
        return Reading(
            running=_count(checks, "running", _RUNNING, gauges) if idle is None else idle,
            waiting=_waiting(checks, gauges) if idle is None else idle,
            kv_usage=_kv_usage(checks, gauges) if idle is None else idle,
            kv_capacity=_kv_capacity(checks, gauges[_CONFIG]),
            counters=_counters(checks, page),
            process_start=start,
            problems=checks.problems,
            bad_lines=page.bad_lines,
        )


def _before_first_work(page: Page, gauges: Gauges, start: float | None) -> bool:
    """Whether the gauges are missing because nothing was ever asked: then, and only then, absent means zero.

    With several API servers the gauges have no series until the first step. Such a page tells no process
    start, and its counters exist and are all zero. (Seen on vLLM 0.32.0.)
    """
    if start is not None or any(gauges[name] for name in (_RUNNING, _WAITING, _SWAPPED, _KV, _KV_BEFORE_0_9)):
        return False
    totals = [page.counter(name) for name in _COUNTERS.values()]
    return all(series and not any(series.values()) for series in totals)


def _counters(checks: Checks, page: Page) -> Counters:
    totals = {
        field: checks.counter(f"vllm:{name.decode()}_total", field, page.counter(name))
        for field, name in _COUNTERS.items()
    }
    return {field: series for field, series in totals.items() if series}


def _count(checks: Checks, field: str, name: bytes, gauges: Gauges) -> float | None:
    return checks.total(f"vllm:{name.decode()}", field, gauges[name].values(), MAX_REQUESTS)


def _waiting(checks: Checks, gauges: Gauges) -> float | None:
    waiting = _count(checks, "waiting", _WAITING, gauges)
    if waiting is None or not gauges[_SWAPPED]:
        return waiting
    swapped = _count(checks, "waiting", _SWAPPED, gauges)
    return None if swapped is None else waiting + swapped


def _kv_usage(checks: Checks, gauges: Gauges) -> float | None:
    name = _KV_BEFORE_0_9 if gauges[_KV_BEFORE_0_9] and not gauges[_KV] else _KV
    shares = checks.shares(f"vllm:{name.decode()}", "kv_usage", gauges[name].values())
    return None if shares is None else sum(shares) / len(shares)


def _kv_capacity(checks: Checks, infos: Mapping[bytes, float]) -> float | None:
    """Tokens of all engines. ``kv_cache_size_tokens`` is each engine's own.

    Where it is missing, ``block_size * num_gpu_blocks``: with data parallelism every engine's line gives the
    blocks of all engines together (seen on vLLM 0.32.0), so lines that agree are counted once; lines that
    differ cannot be that sum and are added up.
    """
    engines = [labels(raw) for raw in infos]
    metric = f"vllm:{_CONFIG.decode()}"
    sizes = [_positive(engine.get("kv_cache_size_tokens")) for engine in engines]
    if not sizes or None in sizes:
        sizes = [
            None if block is None or blocks is None else block * blocks
            for block, blocks in (
                (_positive(engine.get("block_size")), _positive(engine.get("num_gpu_blocks")))
                for engine in engines
            )
        ]
        if len(set(sizes)) == 1:
            del sizes[1:]
        metric += " block_size * num_gpu_blocks"
    return checks.size(metric, "kv_capacity", sizes, MAX_TOKENS)


def _positive(text: str | None) -> float | None:
    """A label's whole number; ``None`` for "None", nothing, and what is no plain number above zero."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        return None
    return float(text) or None
