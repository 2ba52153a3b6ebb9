"""What to ask one instance next, and what its answers say. No I/O: the poller asks, this decides."""

from __future__ import annotations

from monitor.engines.base import Engine
from monitor.engines.detect import DETECTION_PATHS, detect, engine_named
from monitor.engines.scan import present
from monitor.sample import Reading

# The endpoint is not there and will not come while this process lives. A server error may pass, so 5xx is not
# among them but for 501, which is the engine's own "never".
_ABSENT = frozenset({400, 404, 405, 410, 501})
_DENIED = frozenset({401, 403})

#: So many answers in a row that the engine found cannot have written: another engine has taken its address.
_MISSES_UNTIL_REDETECTION = 2

#: An unknown engine may have been asked too early: after so many answers in vain, absent endpoints get one more try.
_ROUND = 60

#: A cheap endpoint that failed is left alone for 1, 2, 4, ... answers of the next one, and never for more.
_LONGEST_REST = 64


class Prober:
    """The endpoints of one instance: which exist, which is the cheapest that works, and which engine answers.

    States: engine unknown (asks :data:`DETECTION_PATHS` in turn), engine found (asks the cheapest of its
    endpoints that is there). ``engine`` other than "auto" is the operator's word: then no other is looked for,
    and a page of another engine is named in ``reason`` instead of being read.

    ``reason`` is a sentence on the last answer or failure that gave no reading, and "" after one that did.
    """

    def __init__(self, engine: str = "auto") -> None:
        """``ValueError`` for an engine there is no adapter for."""
        self._forced = None if engine == "auto" else engine_named(engine)
        self._found: Engine | None = None
        self.reason = ""
        self._forget()

    @property
    def engine(self) -> str:
        """The name of the engine whose names were seen; "" until then."""
        return "" if self._found is None else self._found.name

    def next_path(self) -> str:
        """The path to ask now, below the instance's base URL."""
        paths = self._usable()
        if self._known is None:
            return paths[self._turn % len(paths)]
        rested = [path for path in paths if not self._rest.get(path)]
        return (rested or paths)[0]

    def answered(self, path: str, status: int, body: bytes) -> Reading | None:
        """Takes the answer to ``path``: its reading, or ``None`` if there is nothing usable in it.

        After ``None``, :meth:`next_path` may name another path that is worth asking at once.
        """
        if status == 200:
            return self._answered_ok(path, body)
        if status in _DENIED:
            self._close(
                path,
                f"{path} answered {status}: the instance wants credentials; "
                "set its bearer token, or correct it",
            )
        elif status in _ABSENT:
            self._close(path, f"{path} answered {status}: there is no such endpoint")
        else:
            self.reason = f"{path} answered {status}"
            if self._known is None:
                self._next_turn()
            else:
                self._setback(path)
        return None

    def failed(self, path: str) -> None:
        """The request for ``path`` had no answer. That says nothing of the endpoint, so it stays in use.

        While the engine is unknown the others get their turn: one that hangs must not hide those that work.
        """
        if self._known is None:
            self._next_turn()
        else:
            self._setback(path)

    def restarted(self) -> None:
        """Another process answers from now on: everything learnt is forgotten."""
        self._found = None
        self._forget()

    # -- inside ----------------------------------------------------------------------------------------------

    @property
    def _known(self) -> Engine | None:
        return self._forced or self._found

    def _forget(self) -> None:
        self._closed: dict[str, str] = {}  # path -> why it is not asked any more
        self._full: frozenset[bytes] = frozenset()  # wanted families of the last unfiltered page
        self._misses = 0
        self._turn = 0
        self._strikes: dict[str, int] = {}
        self._rest: dict[str, int] = {}

    def _paths(self) -> tuple[str, ...]:
        known = self._known
        if known is None:
            return DETECTION_PATHS
        return tuple(path for path in known.endpoints if path not in known.filtered or self._full)

    def _usable(self) -> list[str]:
        """Never empty, see :meth:`_close`."""
        return [path for path in self._paths() if path not in self._closed]

    def _answered_ok(self, path: str, body: bytes) -> Reading | None:
        known = self._known
        if known is None or not known.recognises(path, body):
            known = self._another(path, body, known)
            if known is None:
                return None
        self._found, self._misses = known, 0
        if not self._usable():
            # Its page came from another engine's endpoint, while its own were absent: they get one more try.
            self._closed.clear()
        if path in known.filtered:
            missing = self._full - present(body, known.filtered[path])
            if missing:
                self._close(
                    path, f"the filtered page lacks {_listed(missing)}; the whole page is asked from now on"
                )
                return None
        else:
            for names in known.filtered.values():
                self._full = present(body, names)
        self._strikes.pop(path, None)
        self._rest.pop(path, None)
        self._rest = {rested: answers - 1 for rested, answers in self._rest.items() if answers > 1}
        self.reason = ""
        return known.read(path, body)

    def _another(self, path: str, body: bytes, known: Engine | None) -> Engine | None:
        """The engine that did write the body, if it may be taken over; else the miss is noted."""
        other = detect(path, body)
        if other is not None and self._forced is None:
            if known is not None:
                self._forget()
            return other
        if known is None:
            self._next_turn()
            self.reason = (
                f"{path} answered, but nothing in it is of an engine known here; "
                "vLLM shows nothing of itself with --disable-log-stats"
            )
        elif path in known.filtered:
            self._misses += 1
            self._close(
                path, f"the filtered page has nothing of {known.name}; the whole page is asked from now on"
            )
        else:
            self._misses += 1
            looks = f"it looks like {other.name}" if other else "its statistics may be switched off"
            self.reason = f"{path} answered, but nothing in it is of {known.name}; {looks}"
        if self._misses >= _MISSES_UNTIL_REDETECTION and self._forced is None:
            reason = self.reason
            self.restarted()
            self.reason = reason
        return None

    def _close(self, path: str, why: str) -> None:
        """Asks the path no more until the restart, unless that would leave nothing to ask."""
        self._closed[path] = why
        self.reason = why
        if self._usable():
            return
        self.reason = "; ".join(self._closed[tried] for tried in self._paths())
        if self._forced is None and self._found is not None:
            # Perhaps no longer that engine: what is left of the detection's paths is asked next.
            self._found = None
            if self._usable():
                return
        self._closed.clear()
        self._turn = 0

    def _next_turn(self) -> None:
        self._turn += 1
        if self._turn >= _ROUND:
            self._turn = 0
            self._closed.clear()

    def _setback(self, path: str) -> None:
        """Lets another endpoint have a try, so that a broken cheap one cannot hide the ones that work.

        The last one left is never rested: when all fail, the instance is down and no endpoint is to blame.
        """
        if any(other != path and not self._rest.get(other) for other in self._usable()):
            strikes = self._strikes.get(path, 0)
            self._strikes[path] = strikes + 1
            self._rest[path] = min(2**strikes, _LONGEST_REST)


def _listed(names: frozenset[bytes]) -> str:
    return ", ".join(sorted(name.decode() for name in names))
