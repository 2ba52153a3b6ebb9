"""Which header fields pass through, and which belong to one connection only (RFC 9110, section 7.6.1)."""

from __future__ import annotations

from collections.abc import Iterable

Headers = list[tuple[bytes, bytes]]

INSTANCE_HEADER = b"x-loadboard-instance"
#: Asks for instances of certain tags: ``role=decode, model=llama``.
TAGS_HEADER = b"x-loadboard-tags"

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    }
)
# The body was read as a whole: its length is set anew, and 100-continue has been answered.
_REQUEST_OWN = _HOP_BY_HOP | {b"host", b"content-length", b"expect", TAGS_HEADER}
_RESPONSE_OWN = _HOP_BY_HOP | {INSTANCE_HEADER}
_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


def _passed(headers: Iterable[tuple[bytes, bytes]], dropped: frozenset[bytes]) -> Headers:
    """Names come out in lower case, as ASGI wants them."""
    kept: Headers = []
    named: set[bytes] = set()
    for name, value in headers:
        name = name.lower()
        if name not in dropped:
            kept.append((name, value))
        elif name == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    if named:
        kept = [field for field in kept if field[0] not in named]
    return kept


def request_headers(method: str, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> Headers:
    """The fields to send on, without ``host``: that one differs per instance and goes first."""
    kept = _passed(headers, _REQUEST_OWN)
    if body or method in _METHODS_WITH_BODY:
        kept.append((b"content-length", b"%d" % len(body)))
    return kept


def response_headers(headers: Iterable[tuple[bytes, bytes]], id_header: bytes) -> Headers:
    """The fields to hand to the client, with the instance's id."""
    fields = list(headers)
    dropped = _RESPONSE_OWN
    if any(name.lower() == b"transfer-encoding" for name, _ in fields):
        # The body was read in chunks, whatever length was announced besides (RFC 9112, section 6.3).
        dropped = dropped | {b"content-length"}
    kept = _passed(fields, dropped)
    kept.append((INSTANCE_HEADER, id_header))
    return kept


def list_of(headers: Headers, name: bytes) -> bytes | None:
    """All fields of this (lower-case) name as the one list that they are (RFC 9110, section 5.3); ``None`` where there
    is none."""
    values = [value for key, value in headers if key == name]
    return b",".join(values) if values else None


def value_of(headers: Headers, name: bytes) -> bytes:
    """The first field of this (lower-case) name; empty where there is none."""
    for key, value in headers:
        if key == name:
            return value
    return b""
