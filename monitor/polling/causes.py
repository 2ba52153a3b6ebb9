"""Why an exchange broke or came too late: what lies behind the error, and the sentence people read.

Knows the operating system's and TLS's own errors, dug out of whatever wraps them, and no HTTP library.
"""

from __future__ import annotations

import enum
import errno
import socket
import ssl
from collections.abc import Iterator

from monitor.polling.failure import FailureKind


class Stage(enum.Enum):
    """How far an exchange has come."""

    TRUST = enum.auto()
    LOOKUP = enum.auto()
    CONNECT = enum.auto()
    HANDSHAKE = enum.auto()
    HEADERS = enum.auto()
    BODY = enum.auto()


_NO_ROUTE = frozenset({errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN})

#: A host without IPv6 says one of these for the IPv6 address of a name that has both.
_FAMILY_MISSING = frozenset({errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.ENETUNREACH})

_OURS = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EACCES, errno.EPERM, errno.EADDRNOTAVAIL}
)

#: The name is known not to exist; every other failure of a look-up is the name server's. musl has no NODATA.
_NO_SUCH_NAME = frozenset({socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)})

#: What a passed deadline is before there is a connection. Only one of them is about the instance.
_LATE = {
    Stage.TRUST: FailureKind.LOCAL,
    Stage.LOOKUP: FailureKind.UNRESOLVED,
    Stage.CONNECT: FailureKind.NO_CONNECTION,
}


def late(stage: Stage, where: str, received: int, timeout_s: float) -> tuple[FailureKind, str]:
    """An exchange that was not over in time; ``received`` bytes of the body had come."""
    within = f"within {timeout_s:.3g} s"
    text = {
        Stage.TRUST: f"the authorities to trust for {where} were not read {within}; see if this host is too busy",
        Stage.LOOKUP: f"the host of {where} was not looked up {within}; check this host's DNS",
        Stage.CONNECT: f"no connection to {where} {within}; see if its host is up and no firewall drops it",
        Stage.HANDSHAKE: f"{where} did not finish the TLS handshake {within}; see if it hangs",
        Stage.HEADERS: f"{where} gave no answer {within}; see if it hangs, raise timeout if it is only busy",
        Stage.BODY: f"{where} sent only {received} bytes of its answer {within}; see if it hangs, "
        "raise timeout if it is only busy",
    }
    return _LATE.get(stage, FailureKind.TIMEOUT), text[stage]


def broken(error: Exception, stage: Stage, where: str, received: int) -> tuple[FailureKind, str]:
    """An exchange that ended in a transport error; ``received`` bytes of the body had come."""
    problem = _tls_problem(error)
    if problem is None and stage is Stage.HANDSHAKE:
        problem = "the connection was closed during the handshake"
    if problem is not None:
        return (
            FailureKind.TLS,
            f"TLS with {where} failed: {problem}; check its certificate, ca_file, and that it speaks https",
        )
    if stage is Stage.HEADERS:
        return (
            FailureKind.PROTOCOL,
            f"{where} gave no valid HTTP answer ({words_of(error)}); see if the engine ended or if this is "
            "another service's port",
        )
    if stage is Stage.BODY:
        return (
            FailureKind.PROTOCOL,
            f"{where} broke off its answer after {received} bytes; see if the engine ended",
        )
    kind, words = _connect_failure(error)
    text = {
        FailureKind.REFUSED: f"{where} refuses connections; start the engine or correct the url",
        FailureKind.UNREACHABLE: f"{where} cannot be reached ({words}); correct the url or the network",
        FailureKind.UNRESOLVED: f"the host of {where} could not be looked up ({words}); check this host's DNS",
        FailureKind.LOCAL: f"this host cannot connect to {where} ({words}); check its limits and firewall",
    }
    return kind, text.get(
        kind, f"no connection to {where} ({words or words_of(error)}); see if its host is up"
    )


def words_of(error: Exception) -> str:
    """The error's own words, short and printable: part of them may have come from the other side."""
    words = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return "".join(char if char.isprintable() else " " for char in words)[:80] or type(error).__name__


def _connect_failure(error: BaseException) -> tuple[FailureKind, str]:
    """Kind and words of the operating system for a connection that could not be made.

    A name with several addresses counts as refused only if every address that this host can use refused.
    PROTOCOL and "" if the operating system said nothing that is known here.
    """
    seen = [cause for cause in _causes(error) if isinstance(cause, OSError) and cause.errno is not None]
    for cause in seen:
        if isinstance(cause, socket.gaierror):
            kind = FailureKind.UNREACHABLE if cause.errno in _NO_SUCH_NAME else FailureKind.UNRESOLVED
            return kind, cause.strerror or "name look-up failed"
    tried = [cause for cause in seen if cause.errno not in _FAMILY_MISSING] or seen
    codes = {cause.errno for cause in tried}
    words = next((cause.strerror for cause in tried if cause.strerror), "")
    if codes == {errno.ECONNREFUSED}:
        return FailureKind.REFUSED, words
    if codes and codes <= _NO_ROUTE:
        return FailureKind.UNREACHABLE, words
    if codes & _OURS:
        return FailureKind.LOCAL, words
    if errno.ETIMEDOUT in codes:
        return FailureKind.NO_CONNECTION, words
    return FailureKind.PROTOCOL, words


def _tls_problem(error: BaseException) -> str | None:
    """What TLS did not like, if it is that."""
    for cause in _causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message
        if isinstance(cause, ssl.SSLError):
            return (cause.reason or str(cause)).replace("_", " ").lower()
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, all it was raised from or within, and the members of groups; each once.

    The context counts too: httpcore re-raises "from None", which hides the cause but keeps the context.
    """
    waiting, seen = [error], set[int]()
    while waiting:
        current = waiting.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        # By attribute, because Python 3.10 has no exception groups of its own.
        waiting.extend(getattr(current, "exceptions", ()))
        waiting.extend(cause for cause in (current.__context__, current.__cause__) if cause is not None)
