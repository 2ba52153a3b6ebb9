"""What an instance is taken for, as a table of transitions.

Two rules made it. Busy is not dead: whatever a slow or confused instance answers, or fails to, it is at
worst STALE, and a stale one is estimated and still used. And no state is a trap: the next sample makes
everything UP again, and an answer of any kind ends UNREACHABLE.
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
    REFUSED = "refused"  #: no connection can be made: refused, no route, no such host
    FAILED = "failed"  #: slow, 5xx, broken off: may be busy, may be dead
    ANSWERED = "answered"  #: an HTTP answer that tells no load: alive, but mute
    EXPIRED = "expired"  #: the last sample is older than the staleness limit


TRANSITIONS: Mapping[tuple[Health, HealthEvent], Health] = {
    (Health.NEW, HealthEvent.SAMPLE): Health.UP,
    (Health.NEW, HealthEvent.REFUSED): Health.UNREACHABLE,
    (Health.NEW, HealthEvent.FAILED): Health.NEW,
    (Health.NEW, HealthEvent.ANSWERED): Health.NEW,
    (Health.NEW, HealthEvent.EXPIRED): Health.NEW,
    (Health.UP, HealthEvent.SAMPLE): Health.UP,
    (Health.UP, HealthEvent.REFUSED): Health.UNREACHABLE,
    (Health.UP, HealthEvent.FAILED): Health.UP,
    (Health.UP, HealthEvent.ANSWERED): Health.UP,
    (Health.UP, HealthEvent.EXPIRED): Health.STALE,
    (Health.STALE, HealthEvent.SAMPLE): Health.UP,
    (Health.STALE, HealthEvent.REFUSED): Health.UNREACHABLE,
    (Health.STALE, HealthEvent.FAILED): Health.STALE,
    (Health.STALE, HealthEvent.ANSWERED): Health.STALE,
    (Health.STALE, HealthEvent.EXPIRED): Health.STALE,
    (Health.UNREACHABLE, HealthEvent.SAMPLE): Health.UP,
    (Health.UNREACHABLE, HealthEvent.REFUSED): Health.UNREACHABLE,
    (Health.UNREACHABLE, HealthEvent.FAILED): Health.UNREACHABLE,
    (Health.UNREACHABLE, HealthEvent.ANSWERED): Health.STALE,
    (Health.UNREACHABLE, HealthEvent.EXPIRED): Health.UNREACHABLE,
}

#: What each kind of failure says about the instance.
EVENT_OF: Mapping[FailureKind, HealthEvent] = {
    FailureKind.REFUSED: HealthEvent.REFUSED,
    FailureKind.UNREACHABLE: HealthEvent.REFUSED,
    FailureKind.UNRESOLVED: HealthEvent.FAILED,
    FailureKind.TIMEOUT: HealthEvent.FAILED,
    FailureKind.STATUS: HealthEvent.FAILED,
    FailureKind.UNUSABLE: HealthEvent.ANSWERED,
    FailureKind.TOO_LARGE: HealthEvent.ANSWERED,
    FailureKind.REDIRECT: HealthEvent.ANSWERED,
    FailureKind.PROTOCOL: HealthEvent.FAILED,
    FailureKind.TLS: HealthEvent.FAILED,
    FailureKind.LOCAL: HealthEvent.FAILED,
}


def transition(state: Health, event: HealthEvent) -> Health:
    """The state after ``event``; defined for every pair."""
    return TRANSITIONS[state, event]
