"""Gauges that stand still at a load: an engine that no longer reports, although it answers every poll.

Engines update their gauges when they work. After a mass abort, or while paused, some keep the last values
for good: an instance that looks full and is empty would never be chosen again, and one that looks idle while
requests pile up would be chosen always. A claim of work in which nothing moves for half a minute is therefore
not believed, and the instance is treated as unknown: it gets its share, and the first request that runs
there moves the gauges again. Where only the requests are told, a number that stays may be that of one long
answer, so it is believed for longer; but not for ever.

The same holds for a claim of idleness: where this host has had requests end there, and has others open, while
nothing in the engine's answers has moved, its statistics are off, and its zeros say nothing.
"""

from __future__ import annotations

from monitor.sample import Reading

FROZEN_AFTER_S = 30.0
#: Ends of own requests that must have moved something, and the time over which they are counted.
IDLE_ENDS, IDLE_AFTER_S = 5, 10.0
#: The same as FROZEN_AFTER_S, where the engine tells nothing but its requests.
COUNTS_FROZEN_AFTER_S = 60.0


class Frozen:
    """Of one instance: since when nothing has moved that must move with work."""

    def __init__(self) -> None:
        self._seen: tuple[object, ...] = ()
        self._since_ns = 0
        self._ended_before = 0
        #: Whether the reading judged last told anything that the one before did not.
        self.moved = False
        #: Seconds after which what was judged last is no longer believed.
        self.after_s = FROZEN_AFTER_S

    def judge(
        self, reading: Reading, inflight: float | None, mono_ns: int, open_here: int = 0, ended_here: int = 0
    ) -> bool:
        """Whether ``reading`` claims work and has been the same for ``after_s`` seconds, or claims idleness
        although requests of this host have ended there meanwhile.

        ``open_here`` and ``ended_here``: this host's requests there now, and its running total of ends.
        """
        moving = (
            reading.kv_usage,
            reading.throughput,
            tuple(sum(series.values()) for series in reading.counters.values()),
        )
        self.after_s = COUNTS_FROZEN_AFTER_S if moving == (None, None, ()) else FROZEN_AFTER_S
        seen = (reading.running, reading.waiting, reading.inflight, *moving)
        self.moved = seen != self._seen
        if self.moved:
            self._seen = seen
            self._since_ns, self._ended_before = mono_ns, ended_here
            return False
        if inflight is None:
            return False
        if inflight == 0.0:
            self.after_s = IDLE_AFTER_S
            ends = ended_here - self._ended_before
            return open_here > 0 and ends >= IDLE_ENDS and mono_ns - self._since_ns >= IDLE_AFTER_S * 1e9
        return mono_ns - self._since_ns >= self.after_s * 1e9
