"""Scanner for the Prometheus text format: only the wanted families of a page, found by ``bytes.find``.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/ (version 0.0.4). Reading the few
families an adapter needs costs a fiftieth of parsing the page. Nothing here raises, whatever the bytes are: a
line that cannot be read costs only itself and is counted. ``prometheus_client.parser`` is the oracle in tests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, wraps
from typing import TypeVar

#: A longer line is no sample that an engine writes. Matching it would take a second for what can never be read.
MAX_LINE = 65_536

#: Label bytes above this are parsed each time: remembered, they would hold a page's worth of memory each.
_REMEMBERED = 512

_BLANKS = b" \t"
_NEWLINE = ord("\n")

# The patterns are unrolled so that no two alternatives can start with the same byte: a hostile line costs time
# in proportion to its length and no more. No part of them can cross the end of a line.
_TEXT = rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_LABEL = rb"[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*" + _TEXT + rb"[ \t]*"
_LABELS = rb"\{[ \t]*((?:" + _LABEL + rb"(?:,[ \t]*" + _LABEL + rb")*(?:,[ \t]*)?)?)\}"
# float() also takes underscores and digits of other scripts; Prometheus does not.
_NUMBER = rb"[-+]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|(?i:inf(?:inity)?|nan))"
_TIMESTAMP = rb"(?:[ \t]+[-+]?[0-9]+(?:\.[0-9]+)?)?"
_AFTER_NAME = re.compile(
    rb"(?:[ \t]*" + _LABELS + rb")?[ \t]*(" + _NUMBER + rb")" + _TIMESTAMP + rb"[ \t\r]*(?=\n|\Z)"
)
_ONE_LABEL = re.compile(rb'([a-zA-Z_][a-zA-Z0-9_]*)[ \t]*=[ \t]*"([^"\\\n]*(?:\\.[^"\\\n]*)*)"')
_ESCAPE = re.compile(rb'\\([\\"n])')
_ESCAPED = {b"\\": b"\\", b'"': b'"', b"n": b"\n"}


class Page:
    """One answer in the text format.

    Engines write ``prefix:name``; relays, Ray and OpenMetrics escaping turn it into ``prefix_name``. Both are
    read; where a page has both spellings of one family, the original wins, as the other is the same numbers again.
    """

    def __init__(self, body: bytes, prefix: bytes) -> None:
        self._body = body
        self._prefix = prefix
        self._read: dict[bytes, dict[bytes, float]] = {}
        self.bad_lines = 0  #: lines of families asked for that could not be read

    def family(self, name: bytes) -> Mapping[bytes, float]:
        """Samples of exactly ``prefix:name``: the label bytes between the braces to the value.

        Values are as written, so also NaN and infinities. A series that is written twice counts once (the
        last). Empty where the page has no readable sample of the family.
        """
        return self.bare(self._prefix + b":" + name) or self.bare(self._prefix + b"_" + name)

    def counter(self, name: bytes) -> Mapping[bytes, float]:
        """As :meth:`family` for a counter, which may be written with or without ``_total``."""
        return self.family(name + b"_total") or self.family(name)

    def bare(self, name: bytes) -> Mapping[bytes, float]:
        """As :meth:`family` for a full name in just this spelling, e.g. ``process_start_time_seconds``."""
        if name not in self._read:
            self._read[name] = self._samples(name)
        return self._read[name]

    def has_prefix(self) -> bool:
        """Whether any sample, HELP or TYPE line of the page is about a family with the prefix."""
        return any(
            self._names(lead + self._prefix + separator)
            for separator in (b":", b"_")
            for lead in (b"", b"# TYPE ", b"# HELP ")
        )

    def _names(self, start: bytes) -> bool:
        return self._body.startswith(start) or self._body.find(b"\n" + start) >= 0

    def _samples(self, name: bytes) -> dict[bytes, float]:
        body = self._body
        samples: dict[bytes, float] = {}
        at = body.find(name)
        while at >= 0:
            end = at + len(name)
            # A longer name that starts alike is another family.
            if body[end : end + 1] in (b"{", b" ", b"\t", b"\r", b"\n", b"") and self._starts_line(at):
                line_end = body.find(b"\n", end)
                if line_end < 0:
                    line_end = len(body)
                match = _AFTER_NAME.match(body, end) if line_end - end <= MAX_LINE else None
                if match is None:
                    self.bad_lines += 1
                else:
                    samples[match[1] or b""] = float(match[2])
                end = line_end
            at = body.find(name, end)
        return samples

    def _starts_line(self, at: int) -> bool:
        before = at - 1
        while before >= 0 and self._body[before] in _BLANKS:
            before -= 1
        return before < 0 or self._body[before] == _NEWLINE


_Parsed = TypeVar("_Parsed")


def remembered(parse: Callable[[bytes], _Parsed]) -> Callable[[bytes], _Parsed]:
    """``parse`` with a memory of its last short arguments, because a page repeats its labels on every poll.

    The results are shared: not to be changed by the caller.
    """
    known = lru_cache(maxsize=2048)(parse)

    @wraps(parse)
    def parsed(raw: bytes) -> _Parsed:
        return known(raw) if len(raw) <= _REMEMBERED else parse(raw)

    return parsed


@remembered
def labels(raw: bytes) -> Mapping[str, str]:
    """The labels in the bytes between the braces of a sample, unescaped. Bytes that are no UTF-8 are replaced."""
    return {
        name.decode("ascii"): _ESCAPE.sub(lambda escape: _ESCAPED[escape[1]], value).decode(
            "utf-8", "replace"
        )
        for name, value in _ONE_LABEL.findall(raw)
    }


def present(body: bytes, names: Iterable[bytes]) -> frozenset[bytes]:
    """Those of the full family names, in just this spelling, that the page has a readable sample of."""
    page = Page(body, b"")
    return frozenset(name for name in names if page.bare(name))
