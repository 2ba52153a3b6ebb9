"""Why a poll gave no sample. Says so without any HTTP library, which only the fetch module knows."""

from __future__ import annotations

import enum


class FailureKind(enum.Enum):
    """What went wrong, as far as anything downstream has to tell it apart."""

    REFUSED = "refused"  #: nobody listens there
    UNREACHABLE = "unreachable"  #: no such host name, or no route to it
    UNRESOLVED = "unresolved"  #: the name server gave no answer; says nothing about the instance
    NO_CONNECTION = "no connection"  #: not even a TCP handshake within the deadline
    TIMEOUT = "timeout"  #: connected, but no whole answer within the deadline
    STATUS = "status"  #: a 5xx answer
    UNUSABLE = "unusable"  #: an answer without any load in it, a 4xx among others
    TOO_LARGE = "too large"  #: a body above the cap
    REDIRECT = "redirect"  #: sent elsewhere than to the instance itself, or more than once
    PROTOCOL = "protocol"  #: no valid HTTP, or the connection broke
    TLS = "tls"  #: no trust or no handshake
    LOCAL = "local"  #: the fault is on this side: a bad url or header, no file descriptors left


class FetchFailure(Exception):
    """A poll without an answer. ``reason`` is one sentence for people, without secrets.

    ``status`` is the HTTP status for STATUS, else ``None``.
    """

    def __init__(self, kind: FailureKind, reason: str, status: int | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.status = status
