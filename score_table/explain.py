"""Why a pick falls as it does: what each candidate scores, of what parts, and which of them tie.

Everything is read from one copy of the table, and chosen by the rules of :mod:`score_table.pick`; so a copy that is
kept (the table's bytes in a file) tells at any time what was picked from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from score_table.decisions import counted, decisions
from score_table.explanation import Candidate, Explained, Explanation, PoolPick
from score_table.identity import Identity, read_directory
from score_table.layout import TIE_WINDOW, UNITS, Mark, Natural, Reason, State
from score_table.mode import Mode, mode_of
from score_table.pick import unmatched
from score_table.pick.plain import PlainCore, first_from
from score_table.pick.rules import band_of, faded
from score_table.records import Detail, read_detail
from score_table.segment import Segment


def explain(
    segment: Segment,
    candidates: Sequence[Candidate] | None,
    *,
    now_ns: int,
    boot_ns: int,
    cursor: int | None = None,
    private: Sequence[int] | None = None,
) -> Explanation:
    """The pick of least load among ``candidates`` (``None``: all in the table) at ``now_ns`` (CLOCK_MONOTONIC).

    ``cursor`` is where the worker's rotation stands: a slot, or a position in the list where some candidate has no
    slot. ``private``: C cells that the worker counts while it has no lane. ``boot_ns`` (CLOCK_BOOTTIME) ages the
    samples.
    """
    moment = segment.copied()
    mode, holders = mode_of(moment, now_ns), read_directory(moment).holders
    if candidates is None:
        candidates = [Candidate(identity.id, slot) for slot, identity in holders.items()]
    here = _Moment(segment, moment, PlainCore(moment), mode, holders, private)
    choice = _choice(here, candidates, cursor)
    instances = tuple(
        _explained(here, candidate, choice, position, boot_ns)
        for position, candidate in enumerate(candidates)
    )
    heartbeat = moment.read("heartbeat")
    return Explanation(
        table=moment.location.text,
        state=moment.state.name.lower(),
        degraded="round_robin" if choice.reason is Reason.ROUND_ROBIN else mode.degraded or None,
        because=_because(here, choice.reason, now_ns),
        heartbeat_age_s=(now_ns - heartbeat) / 1e9 if heartbeat else None,
        rest_share=2.0**-mode.fade if mode.degraded == "outstanding" else None,
        decided_by=choice.reason.name.lower(),
        rule="objects" if choice.reason is Reason.ROUND_ROBIN else "least",
        cursor=cursor,
        tie_window=TIE_WINDOW / UNITS,
        least=_least(instances, choice.tied),
        tied=choice.tied,
        picked=choice.picked,
        instances=instances,
        pools=_pools(here, candidates, instances, cursor),
    )


class _Moment(NamedTuple):
    live: Segment  #: asked again where a record was just being written
    table: Segment  #: its copy
    core: PlainCore
    mode: Mode
    holders: Mapping[int, Identity]
    private: Sequence[int] | None


class _Choice(NamedTuple):
    reason: Reason
    tied: tuple[int, ...] = ()
    picked: int | None = None
    compared: Sequence[int] | None = None  #: by position, where some candidate has no slot


def _choice(here: _Moment, candidates: Sequence[Candidate], cursor: int | None) -> _Choice:
    slots, mode = [candidate.slot for candidate in candidates], here.mode
    if mode.degraded == "round_robin" or not slots:
        return _Choice(Reason.ROUND_ROBIN)
    matched = [slot for slot in slots if slot is not None]
    if len(matched) < len(slots):
        open_units = [candidate.open_units for candidate in candidates]
        compared = unmatched.scores(here.table, here.core, slots, open_units, mode.fade, here.private)
        tied = unmatched.tied(compared)
        picked = _taken(tied, cursor, len(slots))
        return _Choice(Reason.UNMATCHED, tied, picked, compared)
    best = here.core.best(here.core.prepare(matched), mode.fade, here.private)
    if best is None:
        return _Choice(Reason.ROUND_ROBIN)
    slot = _taken(best.slots, cursor, max(1, here.table.n))
    picked = None if slot is None else slots.index(slot)
    reason = Reason.MARKED if best.marked else Reason.OUTSTANDING if mode.degraded else Reason.SCORE
    return _Choice(reason, tuple(map(slots.index, best.slots)), picked)


def _taken(tied: Sequence[int], cursor: int | None, of: int) -> int | None:
    """Which of ``tied`` is taken; ``None`` where that depends on a cursor that is not told."""
    if cursor is None:
        return tied[0] if len(tied) == 1 else None
    return first_from(tied, cursor % of)


def _least(instances: Sequence[Explained], tied: Sequence[int]) -> float | None:
    scores = [score for position in tied if (score := instances[position].score) is not None]
    return min(scores, default=None)


def _pools(
    here: _Moment, candidates: Sequence[Candidate], instances: Sequence[Explained], cursor: int | None
) -> tuple[PoolPick, ...]:
    """A pick for each pool; none where all are of one, or not yet known to be of another."""
    of: dict[str | None, list[int]] = {}
    for position, each in enumerate(instances):
        of.setdefault(each.pool, []).append(position)
    if len(of.keys() - {None}) < 2:
        return ()
    found = []
    for pool, inside in of.items():
        choice = _choice(here, [candidates[position] for position in inside], cursor)
        tied = tuple(inside[position] for position in choice.tied)
        picked = None if choice.picked is None else inside[choice.picked]
        reason = choice.reason.name.lower()
        found.append(PoolPick(pool, reason, _least(instances, tied), tied, picked))
    return tuple(found)


def _because(here: _Moment, reason: Reason, now_ns: int) -> str:
    if here.mode.degraded == "round_robin":
        return "no monitor has published scores in this table yet"
    if reason is Reason.ROUND_ROBIN:
        return "no candidate holds a slot in use"
    if not here.mode.degraded:
        return ""
    if here.table.state != State.READY:
        return f"the table's state is {here.table.state.name.lower()}: its monitor has ended"
    silence, limit = (now_ns - here.table.read("heartbeat")) / 1e9, here.table.max_heartbeat_age_ns / 1e9
    if silence < 0:
        return f"the last heartbeat is {-silence:.1f} s in the future: the clocks do not match"
    return f"the last heartbeat is {silence:.1f} s old, more than {limit:g} s: the monitor is silent"


def _explained(
    here: _Moment, candidate: Candidate, choice: _Choice, position: int, boot_ns: int
) -> Explained:
    slot, fade = candidate.slot, here.mode.fade
    if slot is not None:
        value = here.core.live([slot], fade, here.private)[0]
        cell = here.table.row(0 if fade < 0 else 1)[slot]
        head = cell if fade < 0 else faded(cell, fade)
        mark = Mark(min(band_of(head), Mark.UNUSED))
    else:
        value, head, mark = candidate.open_units, 0, Mark.NONE
        if choice.compared is not None:
            value, head = choice.compared[position], unmatched.typical_head(here.table, fade)
    unmarked = mark.cell if mark else 0
    found = Explained(
        id=candidate.id,
        slot=slot,
        mark=mark.name.lower() if mark else "",
        score=(value - unmarked) / UNITS,
        base=(head - unmarked) / UNITS,
        lanes=(value - head) / UNITS,
        tied=position in choice.tied,
        picked=position == choice.picked,
    )
    identity = None if slot is None else here.holders.get(slot)
    return found if slot is None or identity is None else _of_holder(here, found, slot, identity, boot_ns)


def _of_holder(here: _Moment, found: Explained, slot: int, identity: Identity, boot_ns: int) -> Explained:
    counts = counted(here.table, slot)
    found = replace(
        found,
        id=identity.id,
        generation=identity.generation,
        tags=identity.tags,
        outstanding=counts[Natural.OUTSTANDING],
        held=counts[Natural.HELD],
        prompt_tokens=counts[Natural.PROMPT_TOKENS],
        kv_tokens=counts[Natural.KV_TOKENS],
        guessed=counts[Natural.GUESSED],
        decisions=decisions(counts, identity.before),
    )
    detail = read_detail(here.table, slot) or read_detail(here.live, slot)
    if detail is None or detail.generation != identity.generation or found.score is None:
        return found
    return replace(
        found,
        state=detail.state,
        mode=detail.mode,
        pool=detail.pool,
        estimated=_estimate(detail),
        reason=detail.reason,
        age_s=(boot_ns - detail.sample_boot_ns) / 1e9 if detail.sample_boot_ns else None,
        own=detail.own,
        others=detail.others,
        requests=detail.requests,
        pending=detail.pending,
        kv_demand=detail.kv_demand,
        kv_capacity=detail.kv_capacity,
        batch_slots=detail.slots,
        speed=detail.speed,
        mean_prompt_tokens=detail.prompt_tokens,
        others_queued=detail.others_queued,
        others_waiting=detail.others_waiting,
        scored_qps=detail.scored_qps,
        share=detail.share,
        tick_score=detail.score,
        since_tick=None if here.mode.degraded else found.score - detail.score,
    )


def _estimate(detail: Detail) -> str:
    if not detail.estimated:
        return ""
    if detail.state == "up":
        return "no_load" if detail.inflight is None else "frozen"
    return "never_polled" if detail.state == "new" else detail.state
