"""From what the clients wrote down to the figures of one run, and whether the run counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from bench.peers.arrivals import GATEWAY, HIDDEN, Planned
from bench.peers.client import Record

#: A run in which more than one request in a hundred was later than this measured the machine, not the gateway.
MOST_LATE_MS = 10.0

Window = tuple[float, float]


class Outcome(NamedTuple):
    """``figures`` by name, times in milliseconds; ``problems`` say why the run does not count."""

    figures: dict[str, Any]
    problems: list[str]


class _Sent(NamedTuple):
    planned: Planned
    record: Record

    @property
    def wait_ms(self) -> float:
        """As the client sees it: all of the answer's time but the service, the gateway's share included."""
        return 1e3 * (self.record.end_s - self.record.sent_s - self.planned.service_s)

    @property
    def said(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.record.body)
        return found


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that at least ``percent`` of the (one or more) values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * percent // 100) - 1)]


def summary(values: Sequence[float], prefix: str) -> dict[str, float]:
    """Mean, percentiles and maximum, with names that begin with ``prefix``; empty for no values."""
    if not values:
        return {}
    found = {f"{prefix}_p{percent}": percentile(values, percent) for percent in (50, 90, 99)}
    return {f"{prefix}_mean": sum(values) / len(values), **found, f"{prefix}_max": max(values)}


def of_slots(plan: Sequence[Planned], records: Sequence[Record], window: Window) -> Outcome:
    """A run against slot engines; counted are the requests that are due in ``window``.

    ``wait`` is the client's: time of the whole answer minus service. ``queued`` is the engine's part of it,
    ``passing`` the rest: client, gateway and network. ``hidden`` are those past the gateway.
    """
    counted = _counted(plan, records, window)
    problems = _failures(counted)
    if problems:
        return Outcome({}, problems)
    problems = _lateness("client", _lags(counted))
    through = [sent for sent in counted if sent.planned.target == GATEWAY]
    hidden = [sent for sent in counted if sent.planned.target == HIDDEN]
    said = [sent.said for sent in through]
    waits = [sent.wait_ms for sent in through]
    queued = [1e3 * each["waited_s"] for each in said]
    late = [1e3 * each["late_s"] for each in said]
    problems += _lateness("engines", late)
    return Outcome(
        {
            "requests": len(through),
            **summary(waits, "wait"),
            **summary(queued, "queued"),
            **summary([wait - part for wait, part in zip(waits, queued, strict=True)], "passing"),
            **summary([sent.wait_ms for sent in hidden], "hidden"),
            **summary(late, "engine_late"),
            **_lag(counted),
            "engines": dict(Counter(each["engine"] for each in said)),
            "workers": _by_worker(through),
        },
        problems,
    )


def of_burst(plan: Sequence[Planned], records: Sequence[Record], before: Window, after: Window) -> Outcome:
    """The figures of both windows, as of :func:`of_slots`, with names that begin with the window's."""
    found = {"before": of_slots(plan, records, before), "after": of_slots(plan, records, after)}
    figures = {f"{name}_{key}": value for name, (part, _) in found.items() for key, value in part.items()}
    return Outcome(figures, [f"{name}: {each}" for name, (_, problems) in found.items() for each in problems])


def of_streams(plan: Sequence[Planned], records: Sequence[Record], window: Window) -> Outcome:
    """A run with streamed answers: ``ttft`` to the first byte of the body, ``whole`` to the end."""
    counted = _counted(plan, records, window)
    problems = _failures(counted)
    if problems:
        return Outcome({}, problems)
    problems = _lateness("client", _lags(counted))
    records = [sent.record for sent in counted]
    return Outcome(
        {
            "requests": len(counted),
            "rate": len(counted) / (window[1] - window[0]),
            **summary([1e3 * (record.first_s - record.sent_s) for record in records], "ttft"),
            **summary([1e3 * (record.end_s - record.sent_s) for record in records], "whole"),
            **_lag(counted),
            "workers": _by_worker(counted),
        },
        problems,
    )


def of_turns(found: Mapping[str, Sequence[Record]], direct: str) -> Outcome:
    """One request at a time: each door's times, and ``added``, what it takes longer than ``direct`` did in the
    same round."""
    failed = sum(record.status != 200 for records in found.values() for record in records)
    if failed:
        return Outcome({}, [f"{failed} requests failed"])
    times = {
        door: [1e3 * (record.end_s - record.sent_s) for record in records] for door, records in found.items()
    }
    figures: dict[str, Any] = {"rounds": len(times[direct])}
    for door, taken in times.items():
        figures |= summary(taken, door)
        if door != direct:
            added = [here - there for here, there in zip(taken, times[direct], strict=True)]
            figures |= summary(added, f"{door}_added")
    return Outcome(figures, [])


def _counted(plan: Sequence[Planned], records: Sequence[Record], window: Window) -> list[_Sent]:
    pairs = (_Sent(*pair) for pair in zip(plan, records, strict=True))
    return [sent for sent in pairs if window[0] <= sent.planned.due_s < window[1]]


def _failures(counted: Sequence[_Sent]) -> list[str]:
    if not counted:
        return ["no request was due"]
    # Also a gateway's own fault leaves its goal unmet: what was not measured is missed.
    failures = Counter(sent.record.status for sent in counted if sent.record.status != 200)
    kinds = ", ".join(f"{count} with status {status}" for status, count in failures.items())
    return [f"requests failed (0: no whole answer): {kinds}"] if failures else []


def _lateness(who: str, late_ms: Sequence[float]) -> list[str]:
    late = percentile(late_ms, 99) if late_ms else 0.0
    return [f"{who} late: p99 {late:.1f} ms, more than {MOST_LATE_MS:g}"] if late > MOST_LATE_MS else []


def _lags(counted: Iterable[_Sent]) -> list[float]:
    return [1e3 * (sent.record.sent_s - sent.planned.due_s) for sent in counted]


def _lag(counted: Sequence[_Sent]) -> dict[str, float]:
    return summary(_lags(counted), "client_late")


def _by_worker(counted: Iterable[_Sent]) -> dict[str, int]:
    return dict(Counter(sent.record.worker for sent in counted))
