"""Gauges that stand still at a load: an engine that no longer reports, although it answers every poll.

Engines update their gauges when they work. After a mass abort, or while paused, some keep the last values
for good: an instance that looks full and is empty would never be chosen again, and one that looks idle while
requests pile up would be chosen always. A claim of work in which nothing moves for half a minute is therefore
not believed, and the instance is treated as unknown: it gets its share, and the first request that runs
there moves the gauges again.
"""

from __future__ import annotations

from monitor.sample import Reading

FROZEN_AFTER_S = 30.0


class Frozen:
    """Of one instance: since when nothing has moved that must move with work."""

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._since_ns = 0

    def judge(self, reading: Reading, inflight: float | None, mono_ns: int) -> bool:
        """Whether ``reading`` claims work and has been the same for ``FROZEN_AFTER_S`` seconds.

        Without counters, KV usage or throughput there is nothing that had to move, so nothing is judged.
        """
        moving = (
            reading.kv_usage,
            reading.throughput,
            tuple(sum(series.values()) for series in reading.counters.values()),
        )
        seen = (reading.running, reading.waiting, reading.inflight, *moving)
        if seen != self._seen or not inflight or moving == (None, None, ()):
            self._seen = seen
            self._since_ns = mono_ns
            return False
        return mono_ns - self._since_ns >= FROZEN_AFTER_S * 1e9
