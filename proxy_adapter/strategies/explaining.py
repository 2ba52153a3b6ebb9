"""What a strategy's ``why`` answers: the table's explanation, with the strategy's own cursor and rule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from proxy_adapter.slots import Mapped
from proxy_adapter.strategies import object_load
from proxy_adapter.strategies.base import Question
from score_table.explain import explain
from score_table.explanation import Candidate, Explanation, without_table
from score_table.layout import UNITS


def open_units(mapped: Mapped) -> list[int]:
    """What this process has open at each instance, at nominal prices; looked at where that has no slot."""
    return [max(seat.units, seat.open * UNITS) for seat in mapped.seats]


def from_table(question: Question, cursor: int | None) -> Explanation:
    """The pick of least load with that cursor, where there is a table; else none is known."""
    _, _, lane, attached, mapped = question
    if lane is None or attached is None or mapped is None:
        if lane is None:
            because = "the strategy works without a table"
        else:
            because = str(lane.problem or "the objects cannot be matched to slots")
        return without_table([_id_of(each) for each in question.instances], because)
    names = map(_id_of, mapped.instances)
    found = explain(
        attached.segment,
        [Candidate(*each) for each in zip(names, mapped.slots, open_units(mapped), strict=True)],
        now_ns=lane.now_ns(),
        boot_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        cursor=cursor,
        private=attached.claim.cells if attached.claim.private else None,
    )
    # The strategy chooses among all that it was given, whatever pools they are in.
    return replace(found, pools=())


def by_objects(explanation: Explanation, question: Question, cursor: int) -> Explanation:
    """The pick by what the objects and the hint say, in turn from ``cursor`` on."""
    positions = range(len(question.instances))
    picked = object_load.choose(question.instances, question.hint, cursor, positions)
    return ruled(explanation, "objects", picked, explanation.decided_by, cursor=cursor)


def ruled(
    explanation: Explanation,
    rule: str,
    picked: int | None,
    decided_by: str,
    *,
    tied: Sequence[int] = (),
    cursor: int | None = None,
) -> Explanation:
    """The same table with another rule and its choice."""
    instances = tuple(
        replace(each, tied=position in tied, picked=position == picked)
        for position, each in enumerate(explanation.instances)
    )
    return replace(
        explanation,
        rule=rule,
        picked=picked,
        decided_by=decided_by,
        tied=tuple(tied),
        cursor=cursor,
        instances=instances,
        pools=(),
    )


def _id_of(instance: object) -> str:
    try:
        return str(getattr(instance, "instance_id", None))
    except Exception:
        return "<no readable id>"
