"""What is known of one instance: the raw reading of one answer, and the sample made of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

#: Running totals of an engine by meaning; each maps a series key (its label bytes, or a rank) to the total.
#: Kept per series because one engine of a group may restart while the others go on.
Counters = Mapping[str, Mapping[bytes, float]]

#: The counter names an engine adapter may fill in.
FINISHED = "finished"
GENERATED_TOKENS = "generated_tokens"
PROMPT_TOKENS = "prompt_tokens"


@dataclass(frozen=True)
class Reading:
    """What one answer of an engine said, in that engine's own moment. ``None`` is *unknown*, never zero.

    Every number is finite and within the range given here; an adapter turns anything else into ``None``
    and says so in ``problems``.
    """

    running: float | None = None  #: requests in the batch, >= 0
    waiting: float | None = None  #: requests not yet in the batch, >= 0
    inflight: float | None = None  #: requests in the engine, for engines that only tell the sum, >= 0
    kv_usage: float | None = None  #: share of the KV cache in use, 0..1
    queued_tokens: float | None = None  #: prompt tokens waiting for prefill, >= 0
    throughput: float | None = None  #: generated tokens per second, where the engine itself says so, >= 0
    kv_capacity: float | None = None  #: KV cache of the whole instance in tokens, > 0
    slots: float | None = None  #: requests that fit the batch of the whole instance, > 0
    counters: Counters = field(default_factory=dict)
    process_start: float | None = None  #: of the engine's process, Unix seconds as the engine says them
    problems: tuple[str, ...] = ()  #: one clear sentence per field that had to be dropped or was missed
    bad_lines: int = 0  #: lines of the body that could not be read and were skipped


@dataclass(frozen=True)
class Sample:
    """One poll's result as the estimator, the detail records and the viewers use it. ``None`` is unknown."""

    taken_boot_ns: int  #: CLOCK_BOOTTIME ns when the answer had arrived
    inflight: float | None = None  #: running + waiting
    running: float | None = None
    waiting: float | None = None
    qps_1m: float | None = None  #: finished requests per second over the last minute, >= 0
    kv_usage: float | None = None
    queued_tokens: float | None = None
    throughput: float | None = None  #: generated tokens per second
    kv_capacity: float | None = None
    slots: float | None = None
    engine: str = ""  #: the adapter that read it
    problems: tuple[str, ...] = ()
