"""From one reading to the sample that everything else uses, every field checked once more."""

from __future__ import annotations

import math

from monitor.engines.base import MAX_RATE, MAX_REQUESTS, MAX_TOKENS
from monitor.estimate.rates import RateResult
from monitor.sample import Reading, Sample


def sample_of(reading: Reading, rates: RateResult, engine: str, boot_ns: int) -> Sample:
    """The sample of ``reading``, whose answer arrived at ``boot_ns`` (CLOCK_BOOTTIME).

    Adapters give valid fields only; here that is made sure for every adapter to come, because one NaN that
    came through would decide every comparison of scores.
    """
    throughput = _within(reading.throughput, MAX_RATE)
    return Sample(
        taken_boot_ns=boot_ns,
        inflight=_inflight(reading),
        running=_within(reading.running, MAX_REQUESTS),
        waiting=_within(reading.waiting, MAX_REQUESTS),
        qps_1m=_within(rates.qps_1m, MAX_RATE),
        kv_usage=_within(reading.kv_usage, 1.0),
        queued_tokens=_within(reading.queued_tokens, MAX_TOKENS),
        throughput=_within(rates.throughput, MAX_RATE) if throughput is None else throughput,
        kv_capacity=_within(reading.kv_capacity, MAX_TOKENS, least=1.0),
        slots=_within(reading.slots, MAX_REQUESTS, least=1.0),
        engine=engine,
        problems=reading.problems,
    )


def _inflight(reading: Reading) -> float | None:
    running, waiting = _within(reading.running, MAX_REQUESTS), _within(reading.waiting, MAX_REQUESTS)
    # The sum only of both parts: a missing one read as 0 would make a full instance look idle.
    if running is not None and waiting is not None:
        return _within(running + waiting, MAX_REQUESTS)
    return _within(reading.inflight, MAX_REQUESTS)


def _within(value: float | None, most: float, least: float = 0.0) -> float | None:
    if value is None or not math.isfinite(value) or not least <= value <= most:
        return None
    return float(value)
