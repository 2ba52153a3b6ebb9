"""An explanation as text for a person: the conclusion, the scores and their parts, the reasons, what was decided."""

from __future__ import annotations

from collections.abc import Sequence

from loadboard import wording
from score_table.explanation import ESTIMATES, Explained, Explanation
from score_table.layout import Reason

_NAMED = 8


def as_text(explanation: Explanation) -> list[str]:
    """Lines; the first one says where the next request goes. Not every field: JSON has them all."""
    silent, sole = wording.is_silent(explanation.degraded), len(explanation.tied) == 1
    heartbeat = (
        "never" if explanation.heartbeat_age_s is None else f"{explanation.heartbeat_age_s:.2f} s before"
    )
    lines = [
        conclusion(explanation),
        f"table {explanation.table}  {explanation.state}  heartbeat {heartbeat}  "
        f"picks: {wording.picks(explanation.degraded)}",
    ]
    if explanation.because:
        lines.append(explanation.because)
    if explanation.rest_share is not None:
        lines.append(
            f"Scores are what the lanes hold, and {explanation.rest_share:.0%} of what others last had there."
        )
    lines += [
        "",
        *wording.columns(
            [*_headings(silent), *(_row(each, silent, sole) for each in explanation.instances)], 3
        ),
    ]
    for each in explanation.instances:
        lines += [f"  {each.id}: {reason}" for reason in reasons(each)]
    lines += ["", *_decisions(explanation.instances)]
    return lines


def conclusion(explanation: Explanation) -> str:
    """Where the next request goes, in one sentence."""
    instances = explanation.instances
    tied = [instances[position].id for position in explanation.tied]
    if not instances:
        return "there is no instance that a request could go to"
    if explanation.decided_by == "round_robin" or explanation.least is None:
        return "the next request goes to any of them: in turn, or by what the proxy's instance objects say"
    score = f"score {explanation.least:.2f}" + (
        f", {instances[explanation.tied[0]].mark}: all are marked"
        if explanation.decided_by == "marked"
        else ""
    )
    if explanation.picked is not None:
        picked = instances[explanation.picked].id
        others = f"; tied: {_named(tied)}" if len(tied) > 1 else ""
        return f"the next request goes to {picked} ({score}){others}"
    if len(tied) == 1:
        return f"the next request goes to {tied[0]} ({score})"
    return f"the next request goes to one of {_named(tied)} ({score}): each worker takes the next in its own rotation"


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


def _headings(silent: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    head = "rest" if silent else "base"
    return (
        ("", "", "", "", "", "", "", "", "", "prompt", "KV", "", "exact"),
        (
            "",
            "instance",
            "state",
            "score",
            f"= {head}",
            "+ lanes",
            "open",
            "others",
            "n",
            "tokens",
            "demand",
            "speed",
            "score",
        ),
    )


def _row(each: Explained, silent: bool, sole: bool) -> tuple[str, ...]:
    state = "no slot"
    if each.slot is not None:
        state = wording.state(each.state, each.mark, estimated=bool(each.estimated), silent=silent)
    return (
        ">" if each.picked or (each.tied and sole) else "=" if each.tied else " ",
        each.id,
        state,
        wording.decimal(each.score, 2),
        wording.decimal(each.head, 2),
        wording.decimal(each.cells, 2),
        str(each.outstanding),
        wording.decimal(each.others, 2),
        wording.decimal(each.requests, 2),
        str(each.prompt_tokens),
        wording.percent(each.kv_demand),
        wording.decimal(each.speed, 2),
        wording.decimal(each.tick_score, 2),
    )


def _decisions(instances: Sequence[Explained]) -> list[str]:
    """What was sent where so far, by reason; only the reasons that there were."""
    names = [reason.name.lower() for reason in Reason]
    used = [name for name in names if name == "score" or any(each.decisions.get(name) for each in instances)]
    rows = [(each.id, *(str(each.decisions[name]) for name in used)) for each in instances if each.decisions]
    return wording.columns([("requests sent by", *used), *rows], 1) if rows else []


def _named(ids: Sequence[str]) -> str:
    shown = ", ".join(ids[:_NAMED])
    return shown if len(ids) <= _NAMED else f"{shown} and {len(ids) - _NAMED} more"
