"""What ``why`` answers: plain values, of a pick and of each of its candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from score_table.layout import TIE_WINDOW, UNITS, Reason

#: Why a score is an estimate. ``Explained.reason`` says more where the monitor did.
ESTIMATES = {
    "no_record": "the monitor has not written of it yet",
    "never_polled": "no sample yet",
    "unreachable": "it refuses connections or does not answer",
    "stale": "its last sample is too old",
    "frozen": "its gauges stand still and are not believed",
    "no_load": "its answers tell no load",
}


class Candidate(NamedTuple):
    """One that is asked about. ``open_units``: what the asking process has open there, where it has no slot."""

    id: str
    slot: int | None
    open_units: int = 0


@dataclass(frozen=True)
class Explained:
    """One candidate. Loads and scores are in requests; ``None`` is unknown.

    ``score`` = ``base`` + ``lanes`` is what a pick compares; of marked ones, among those of the same mark. ``base`` is the
    monitor's part: the exact score at its last tick less what the lanes held then; while it is silent, what others
    had there, fading. ``lanes`` are the prices of what is open there now: in all lanes, and in the asking process if
    it has no lane. The fields from ``own`` to ``tick_score`` stand in the detail record, which is up to half a
    second older than the last tick, more beyond 200 instances.
    """

    id: str
    slot: int | None = None  #: ``None``: the table has none for it
    generation: int = 0
    tags: Mapping[str, str] = field(default_factory=dict)
    mode: str = ""  #: score mode of its pool
    pool: str | None = (
        None  #: the tags of the monitor's pool it is in, "" in the rest, ``None`` before its first record
    )
    state: str = "new"  #: new, up, stale or unreachable
    mark: str = ""  #: "" or avoided, draining, unreachable
    estimated: str = "no_record"  #: "" or why the score is an estimate, a key of :data:`ESTIMATES`
    reason: str = ""  #: the monitor's words on its state or sample
    age_s: float | None = None  #: of its last sample
    score: float | None = None  #: ``None``: there is no table
    base: float = 0.0
    lanes: float = 0.0
    outstanding: int = 0  #: requests in the lanes now, held ones included
    held: int = 0  #: of these failed ones
    prompt_tokens: int = 0  #: in the lanes now, without a first token
    kv_tokens: int = 0  #: prompt tokens in the lanes now
    guessed: int = 0  #: of these, what is taken for requests that did not tell
    own: float | None = None  #: requests of this host
    others: float | None = None  #: requests of others, smoothed; may be negative
    requests: float | None = None  #: max(0, own + others)
    pending: float | None = None  #: prompt tokens without a first token
    kv_demand: float | None = None  #: share of the KV cache that is, or will be, in use
    kv_capacity: float | None = None  #: tokens
    batch_slots: float | None = None  #: requests that fit the batch
    speed: float | None = None  #: time per output token relative to the fleet
    mean_prompt_tokens: float | None = None  #: of the requests in its pool
    others_queued: float | None = None  #: prompt tokens of others in its queue, where the score goes by them
    others_waiting: float | None = None  #: requests of others in its queue, likewise
    scored_qps: float | None = None  #: finished requests per second, likewise
    share: float | None = None  #: its weight over the largest in its pool, by which the score is divided
    tick_score: float | None = None  #: the exact score
    since_tick: float | None = (
        None  #: ``score`` less ``tick_score``: what came and went; ``None`` while degraded
    )
    decisions: Mapping[str, int] = field(default_factory=dict)  #: requests sent there, by reason
    tied: bool = False
    picked: bool = False


@dataclass(frozen=True)
class PoolPick:
    """A pick among the candidates of one pool of the monitor; positions are those of the whole explanation.

    Scores of different pools say nothing about each other: each has a mode, means and medians of its own.
    """

    pool: str | None  #: as in :class:`Explained`
    decided_by: str
    least: float | None
    tied: tuple[int, ...]
    picked: int | None


@dataclass(frozen=True)
class Explanation:
    """A pick that is made now, or at the moment that was asked for.

    ``rule`` says how one is taken: ``least``, the first of the tied at or after the cursor; ``rotation``, the next
    one of the list; ``two_at_random``, the better of two; ``objects``, by what the objects themselves and the hint
    say, then in turn.
    """

    table: str | None  #: ``None``: without a table
    state: str  #: of the table; absent where there is none
    degraded: str | None  #: outstanding (the monitor is silent), round_robin, no_table, or ``None``
    because: str  #: of ``degraded``, in words; "" if that is ``None``
    heartbeat_age_s: float | None
    rest_share: float | None  #: what is left of ``rest`` while the monitor is silent, 0..1
    decided_by: str  #: a :class:`Reason` in lower case: what such a pick counts as
    rule: str
    cursor: int | None  #: where the rotation of the asking worker stands
    tie_window: float  #: requests
    least: float | None  #: the smallest score compared
    tied: tuple[int, ...]  #: positions in ``instances``, in the order in which a rotation takes them
    picked: int | None  #: the position that is taken; ``None`` where that needs a cursor, or is drawn
    instances: tuple[Explained, ...]  #: by position of the candidates
    pools: tuple[PoolPick, ...] = ()  #: a pick in each pool, where the candidates are of several


def without_table(ids: Sequence[str], because: str) -> Explanation:
    """Where nothing can be read of the candidates."""
    return Explanation(
        table=None,
        state="absent",
        degraded="no_table",
        because=because,
        heartbeat_age_s=None,
        rest_share=None,
        decided_by=Reason.ROUND_ROBIN.name.lower(),
        rule="objects",
        cursor=None,
        tie_window=TIE_WINDOW / UNITS,
        least=None,
        tied=(),
        picked=None,
        instances=tuple(map(Explained, ids)),
    )
