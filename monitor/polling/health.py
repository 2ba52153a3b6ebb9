"""What an instance is taken for, as a table of transitions.

Two rules made it. Busy is not dead: whatever a slow or confused instance answers, or fails to, it is at
worst STALE, and a stale one is estimated and still used. And no state is a trap: the next sample makes
everything UP again, and UNREACHABLE ends with any answer that shows the engine at work: a sample, or one
without a load in it. A 5xx does not end it, since whatever stands in front of a dead engine gives one too.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

from monitor.polling.failure import FailureKind


class Health(enum.Enum):
    """The state of one instance; the values are the words of the detail records."""

    NEW = "new"  #: no sample yet
    UP = "up"  #: its last sample is fresh
    STALE = "stale"  #: its last sample is too old, or it came back without giving one
    UNREACHABLE = "unreachable"  #: nobody can connect to it; picked only if nothing else is left


class HealthEvent(enum.Enum):
    """What can happen to it."""

    SAMPLE = "sample"  #: a poll gave a sample
    REFUSED = "refused"  #: no connection can be made: refused, no route, no such host, silent for long
    SILENT = "silent"  #: no TCP handshake in time: the host is off, or a packet was lost
    FAILED = "failed"  #: slow, 5xx, broken off: may be busy, may be dead
    ANSWERED = "answered"  #: an HTTP answer that tells no load: alive, but mute
    EXPIRED = "expired"  #: the last sample is older than the staleness limit


TRANSITIONS: Mapping[tuple[Health, HealthEvent], Health] = {
    (Health.NEW, HealthEvent.SAMPLE): Health.UP,
    (Health.NEW, HealthEvent.REFUSED): Health.UNREACHABLE,
    (Health.NEW, HealthEvent.SILENT): Health.NEW,
    (Health.NEW, HealthEvent.FAILED): Health.NEW,
    (Health.NEW, HealthEvent.ANSWERED): Health.NEW,
    (Health.NEW, HealthEvent.EXPIRED): Health.NEW,
    (Health.UP, HealthEvent.SAMPLE): Health.UP,
    (Health.UP, HealthEvent.REFUSED): Health.UNREACHABLE,
    (Health.UP, HealthEvent.SILENT): Health.UP,
    (Health.UP, HealthEvent.FAILED): Health.UP,
    (Health.UP, HealthEvent.ANSWERED): Health.UP,
    (Health.UP, HealthEvent.EXPIRED): Health.STALE,
    (Health.STALE, HealthEvent.SAMPLE): Health.UP,
    (Health.STALE, HealthEvent.REFUSED): Health.UNREACHABLE,
    (Health.STALE, HealthEvent.SILENT): Health.STALE,
    (Health.STALE, HealthEvent.FAILED): Health.STALE,
    (Health.STALE, HealthEvent.ANSWERED): Health.STALE,
    (Health.STALE, HealthEvent.EXPIRED): Health.STALE,
    (Health.UNREACHABLE, HealthEvent.SAMPLE): Health.UP,
    (Health.UNREACHABLE, HealthEvent.REFUSED): Health.UNREACHABLE,
    (Health.UNREACHABLE, HealthEvent.SILENT): Health.UNREACHABLE,
    (Health.UNREACHABLE, HealthEvent.FAILED): Health.UNREACHABLE,
    (Health.UNREACHABLE, HealthEvent.ANSWERED): Health.STALE,
    (Health.UNREACHABLE, HealthEvent.EXPIRED): Health.UNREACHABLE,
}

#: So many of an event in a row count as another one, from then on. The kernel shakes hands for a process that
#: is merely busy, so a host that is silent again and again is off, or cut off.
IN_A_ROW: Mapping[HealthEvent, tuple[int, HealthEvent]] = {HealthEvent.SILENT: (3, HealthEvent.REFUSED)}

#: What each kind of failure says about the instance.
EVENT_OF: Mapping[FailureKind, HealthEvent] = {
    FailureKind.REFUSED: HealthEvent.REFUSED,
    FailureKind.UNREACHABLE: HealthEvent.REFUSED,
    FailureKind.UNRESOLVED: HealthEvent.FAILED,
    FailureKind.NO_CONNECTION: HealthEvent.SILENT,
    FailureKind.TIMEOUT: HealthEvent.FAILED,
    FailureKind.STATUS: HealthEvent.FAILED,
    FailureKind.UNUSABLE: HealthEvent.ANSWERED,
    FailureKind.TOO_LARGE: HealthEvent.ANSWERED,
    FailureKind.REDIRECT: HealthEvent.ANSWERED,
    FailureKind.PROTOCOL: HealthEvent.FAILED,
    FailureKind.TLS: HealthEvent.FAILED,
    FailureKind.LOCAL: HealthEvent.FAILED,
}


class Repeats:
    """Counts what of :data:`IN_A_ROW` one instance has had in a row."""

    def __init__(self) -> None:
        self._last: HealthEvent | None = None
        self._times = 0

    def counted(self, event: HealthEvent) -> HealthEvent:
        """What ``event``, the outcome of the latest poll, stands for after those before it."""
        self._times = self._times + 1 if event is self._last else 1
        self._last = event
        limit, meaning = IN_A_ROW.get(event, (0, event))
        return meaning if self._times >= limit else event


def transition(state: Health, event: HealthEvent) -> Health:
    """The state after ``event``; defined for every pair."""
    return TRANSITIONS[state, event]
