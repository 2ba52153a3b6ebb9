"""How long a pick that nobody will end keeps its price: the expected time of a request at that instance."""

from __future__ import annotations

from score_table.attachment import Attached
from score_table.records import read_detail

UNKNOWN_NS = 10_000_000_000
_LEAST_NS, _MOST_NS = 50_000_000, 120_000_000_000
_KEPT_NS = 1_000_000_000


class ExpectedTimes:
    """Expected request times by slot, read from the detail records at most once a second each."""

    def __init__(self) -> None:
        self._attached: Attached | None = None
        self._known: dict[int, tuple[int, int]] = {}

    def of(self, attached: Attached, slot: int, now_ns: int) -> int:
        """Nanoseconds: requests in the instance over its completion rate (Little's law); 10 s if unknown, or if
        it was empty when it was asked, which says nothing of a request's time."""
        if self._attached is None or self._attached.segment is not attached.segment:
            self._attached, self._known = attached, {}
        known = self._known.get(slot)
        if known is not None and now_ns - known[0] < _KEPT_NS:
            return known[1]
        detail = read_detail(attached.segment, slot)
        expected = UNKNOWN_NS
        if detail is not None and detail.inflight and detail.qps_1m:
            expected = int(min(max(detail.inflight / detail.qps_1m * 1e9, _LEAST_NS), _MOST_NS))
        self._known[slot] = (now_ns, expected)
        return expected
