"""An explanation as text for a person: the conclusion, the scores and their parts, the reasons, what was decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from loadboard import wording
from score_table.explanation import ESTIMATES, Explained, Explanation, PoolPick
from score_table.layout import Reason

_NAMED = 8


def as_text(explanation: Explanation) -> list[str]:
    """Lines; the first ones say where the next request goes. Not every field: JSON has them all."""
    heartbeat = (
        "never" if explanation.heartbeat_age_s is None else f"{explanation.heartbeat_age_s:.2f} s before"
    )
    modes = {each.mode for each in explanation.instances if each.mode}
    lines = [
        *conclusions(explanation),
        f"table {explanation.table}  {explanation.state}  heartbeat {heartbeat}  "
        f"picks: {wording.picks(explanation.degraded)}"
        + (f"  mode {modes.pop()}" if len(modes) == 1 else ""),
    ]
    if explanation.because:
        lines.append(explanation.because)
    if explanation.rest_share is not None:
        lines.append(
            f"Scores are what the lanes hold, and as base {explanation.rest_share:.0%} of what others last had there."
        )
    lines += ["", *_scores(explanation)]
    for each in explanation.instances:
        lines += [f"  {each.id}: {reason}" for reason in reasons(each)]
    if any(each.tick_score is not None for each in explanation.instances):
        lines.append(
            "score, base, lanes, open and tokens are of this moment, the rest of the last record, up to 1 s old"
        )
    lines += ["", *_decisions(explanation.instances)]
    return lines


def conclusions(explanation: Explanation) -> list[str]:
    """Where the next request goes: one sentence, or one for each pool where the candidates are of several."""
    if not explanation.instances:
        return ["there is no instance that a request could go to"]
    if not explanation.pools:
        return [_conclusion(explanation, _whole(explanation), "")]
    return [
        *(_conclusion(explanation, pick, f" of {_pool(pick.pool)}") for pick in explanation.pools),
        "scores of different pools are not comparable: a proxy has to pass instances of one, or say tags",
    ]


def _conclusion(explanation: Explanation, pick: PoolPick, whose: str) -> str:
    instances, request = explanation.instances, f"with least_load, the next request{whose} goes to"
    tied = [instances[position].id for position in pick.tied]
    if pick.decided_by == "round_robin" or pick.least is None:
        return f"{request} any of them: in turn, or by what the proxy's instance objects say"
    score = f"score {wording.decimal(pick.least, 2)}" + (
        f", {instances[pick.tied[0]].mark}: all are marked" if pick.decided_by == "marked" else ""
    )
    if pick.picked is not None:
        others = f"; tied: {_named(tied)}" if len(tied) > 1 else ""
        return f"{request} {instances[pick.picked].id} ({score}){others}"
    return f"{request} one of {_named(tied)} ({score}): each worker takes the next in its own rotation"


def reasons(each: Explained) -> list[str]:
    """Why its score is what it is, where that is not plain."""
    if each.slot is None:
        return [
            "not in the table: what the worker itself has open there (here nothing) times the lanes in use,",
            "plus the median of the table's scores without this host",
        ]
    found = []
    if each.mark:
        found.append(f"{each.mark}: taken only where all candidates are marked, the mildest mark first")
    if each.estimated:
        found.append(f"estimated, {ESTIMATES[each.estimated]}: own counts + fleet medians")
    return found + [each.reason] * bool(each.reason)


class _Column(NamedTuple):
    heading: tuple[str, str]
    cell: Callable[[Explained], str]


_MODE = _Column(("", "mode"), lambda each: each.mode or wording.UNKNOWN)
_SCORE = (
    _Column(("", "score"), lambda each: wording.decimal(each.score, 2)),
    _Column(("", "= base"), lambda each: wording.decimal(each.base, 2)),
    _Column(("", "+ lanes"), lambda each: wording.decimal(each.lanes, 2)),
    _Column(("", "open"), lambda each: str(each.outstanding)),
    _Column(("", "others"), lambda each: wording.decimal(each.others, 2)),
    _Column(("", "n"), lambda each: wording.decimal(each.requests, 2)),
    _Column(("prompt", "tokens"), lambda each: str(each.prompt_tokens)),
)
_QUEUED = _Column(("others'", "tokens"), lambda each: wording.whole(each.others_queued))
_WAITING = _Column(("others", "waiting"), lambda each: wording.decimal(each.others_waiting, 2))
_QPS = _Column(("qps", "1m"), lambda each: wording.decimal(each.scored_qps, 2))
_FACTORS = (
    _Column(("KV", "demand"), lambda each: wording.percent(each.kv_demand)),
    _Column(("", "speed"), lambda each: wording.decimal(each.speed, 2)),
)
_SHARE = _Column(("", "share"), lambda each: wording.decimal(each.share, 2))
_EXACT = _Column(("exact", "score"), lambda each: wording.decimal(each.tick_score, 2))


def _scores(explanation: Explanation) -> list[str]:
    """The table of candidates, pool by pool; columns that would say the same of all, or nothing, are left out."""
    instances, silent = explanation.instances, wording.is_silent(explanation.degraded)
    differing = len({each.mode for each in instances if each.mode}) > 1
    shown = [
        *([_MODE] if differing else []),
        *_SCORE,
        *([_QUEUED] if any(each.others_queued is not None for each in instances) else []),
        *([_WAITING] if any(each.others_waiting is not None for each in instances) else []),
        *([_QPS] if any(each.scored_qps is not None for each in instances) else []),
        *_FACTORS,
        *([_SHARE] if any(each.share not in (None, 1.0) for each in instances) else []),
        _EXACT,
    ]
    picks = explanation.pools or (_whole(explanation),)
    order = [
        [
            position
            for position, each in enumerate(instances)
            if not explanation.pools or each.pool == pick.pool
        ]
        for pick in picks
    ]
    rows: list[tuple[str, ...]] = [
        ("", "", "", *(column.heading[0] for column in shown)),
        ("", "instance", "state", *(column.heading[1] for column in shown)),
    ]
    for pick, inside in zip(picks, order, strict=True):
        for position in inside:
            each = instances[position]
            sign = ">" if position == pick.picked else "=" if position in pick.tied else " "
            rows.append((sign, each.id, _state(each, silent), *(column.cell(each) for column in shown)))
    lines = wording.columns(rows, 3 + differing)
    if not explanation.pools:
        return lines
    headings, cells = lines[:2], iter(lines[2:])
    grouped = []
    for pick, inside in zip(picks, order, strict=True):
        grouped += [f"{_pool(pick.pool)}:", *(next(cells) for _ in inside)]
    return headings + grouped


def _state(each: Explained, silent: bool) -> str:
    if each.slot is None:
        return "no slot"
    return wording.state(each.state, each.mark, estimated=bool(each.estimated), silent=silent)


def _whole(explanation: Explanation) -> PoolPick:
    return PoolPick(None, explanation.decided_by, explanation.least, explanation.tied, explanation.picked)


def _pool(pool: str | None) -> str:
    if pool is None:
        return "those whose pool is not known"
    return f"pool {pool}" if pool else "those in no pool"


def _decisions(instances: Sequence[Explained]) -> list[str]:
    """What was sent where so far, by reason; only the reasons that there were."""
    names = [reason.name.lower() for reason in Reason]
    used = [name for name in names if name == "score" or any(each.decisions.get(name) for each in instances)]
    rows = [(each.id, *(str(each.decisions[name]) for name in used)) for each in instances if each.decisions]
    return wording.columns([("requests sent by", *used), *rows], 1) if rows else []


def _named(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:_NAMED])
    return shown if len(ids) <= _NAMED else f"{shown} and {len(ids) - _NAMED} more"
