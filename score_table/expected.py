"""How long a pick that nobody will end keeps its price: the expected time of a request at that instance."""

from __future__ import annotations

from score_table.records import read_detail
from score_table.segment import Segment

UNKNOWN_NS = 10_000_000_000
_LEAST_NS, _MOST_NS = 50_000_000, 120_000_000_000


def expected_ns(segment: Segment, slot: int) -> int:
    """Requests in the instance over its completion rate (Little's law), in ns, 0.05 to 120 s.

    10 s if unknown, or if it was empty when it was asked, which says nothing of a request's time.
    """
    detail = read_detail(segment, slot)
    if detail is None or not detail.inflight or not detail.qps_1m:
        return UNKNOWN_NS
    return int(min(max(detail.inflight / detail.qps_1m * 1e9, _LEAST_NS), _MOST_NS))
