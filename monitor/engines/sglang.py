"""SGLang: its load endpoint (JSON) and its metrics page, one scheduler or several data-parallel ranks."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from monitor.engines.base import MAX_RANKS, MAX_RATE, MAX_REQUESTS, MAX_TOKENS, Checks, process_start
from monitor.engines.scan import Page, labels, remembered
from monitor.sample import FINISHED, GENERATED_TOKENS, PROMPT_TOKENS, Counters, Reading

LOADS = "/v1/loads?include=core"  # 0.5.8 and later
_PAGE = "/metrics"
GET_LOAD = "/get_load"  # 0.4.8 to 0.5.19; logs a warning per call in the later ones, so it comes last

_RUNNING = (b"num_running_reqs", b"num_requests_running")
_QUEUE = b"num_queue_reqs"
# Requests that wait elsewhere than in the main queue; not every server has every kind, and names changed.
# num_prefill_inflight_queue_reqs is left out: those requests have been computed and only hand over their KV
# cache. So is num_retracted_reqs: retracted requests are back in the main queue.
_OTHER_QUEUES = (
    (b"num_grammar_queue_reqs",),
    (b"num_prefill_bootstrap_queue_reqs", b"num_prefill_prealloc_queue_reqs"),
    (b"num_decode_prealloc_queue_reqs",),
    (b"num_decode_transfer_queue_reqs",),
)
_ALL_QUEUES = (b"num_waiting_reqs", b"num_requests_waiting")  # totals, where there is no main queue
_USAGE = (b"full_token_usage", b"token_usage")  # token_usage may be the maximum over other pools too
_USED = b"num_used_tokens"
_USED_AND_QUEUED = b"num_total_tokens"
_CAPACITY = b"max_total_num_tokens"
_SLOTS = b"max_running_requests"
_THROUGHPUT = b"gen_throughput"
_START = b"process_start_time_seconds"
_COUNTERS = {
    FINISHED: b"num_requests",
    GENERATED_TOKENS: b"generation_tokens",
    PROMPT_TOKENS: b"prompt_tokens",
}

#: Objects and lists in the JSON for one rank, at the most: itself, its queues, and what else it may hold some day.
_PARTS_OF_A_RANK = 16

#: One value per data-parallel rank (or per entry of a JSON answer).
Ranks = Mapping[object, object]


class Sglang:
    """Counts are summed over the data-parallel ranks; other ranks and pids repeat the same numbers.

    The KV usage is the mean over ranks, weighted by their capacities where all of these are known. The
    counters are added to when a request ends, so the live token rate is ``gen_throughput``.
    """

    name = "sglang"
    endpoints: tuple[str, ...] = (LOADS, _PAGE, GET_LOAD)
    filtered: Mapping[str, tuple[bytes, ...]] = {}

    def recognises(self, path: str, body: bytes) -> bool:
        if not _is_json(body):
            return Page(body, b"sglang").has_prefix()
        if _is_overlong(body):
            return b'"num_reqs"' in body or b'"num_running_reqs"' in body
        return _entries(path, _parsed(body)) is not None

    def read(self, path: str, body: bytes) -> Reading:
        if not _is_json(body):
            return _read_page(body)
        overlong = _is_overlong(body)
        entries = None if overlong else _entries(path, _parsed(body))
        if overlong or (entries is not None and len(entries) > MAX_RANKS):
            return Reading(problems=(f"the JSON has more than {MAX_RANKS} ranks: nothing of it is believed",))
        if entries is None:
            return Reading(problems=("the JSON has no list of loads per rank as SGLang writes it",))
        return _read_get_load(entries) if path.startswith(GET_LOAD) else _read_loads(entries)


# -- the metrics page ----------------------------------------------------------------------------------------


def _read_page(body: bytes) -> Reading:
    page = Page(body, b"sglang")
    checks = Checks()
    if not page.has_prefix():
        checks.say("the page has no sglang: line; SGLang writes them with --enable-metrics")
        return Reading(problems=checks.problems)
    running = _sum(checks, page, "running", _RUNNING, MAX_REQUESTS)
    waiting = _waiting(checks, page)
    usage = _ranks(checks, page, "kv_usage", _USAGE, None)
    capacities = _ranks(checks, page, "kv_capacity", (_CAPACITY,), MAX_TOKENS)
    return Reading(
        running=running,
        waiting=waiting,
        kv_usage=None if usage is None else _mean(usage, capacities),
        queued_tokens=_page_queued_tokens(checks, page, waiting),
        throughput=_moving(checks, running, _sum(checks, page, "throughput", (_THROUGHPUT,), MAX_RATE)),
        kv_capacity=None if capacities is None else sum(capacities.values()) or None,
        slots=(_sum(checks, page, "slots", (_SLOTS,), MAX_REQUESTS) or None) if page.family(_SLOTS) else None,
        counters=_counters(checks, page),
        process_start=process_start(page.bare(_START).values()),
        problems=checks.problems,
        bad_lines=page.bad_lines,
    )


def _counters(checks: Checks, page: Page) -> Counters:
    totals = {
        field: checks.counter(f"sglang:{name.decode()}_total", field, page.counter(name))
        for field, name in _COUNTERS.items()
    }
    return {field: series for field, series in totals.items() if series}


@remembered
def _rank_of(raw: bytes) -> tuple[tuple[tuple[str, str], ...], str]:
    """What distinguishes a series that is to be added (model, engine type, dp rank, ...), and its priority.

    Series that differ only in a tensor, pipeline, expert or context rank or in the pid are views of one number.
    """
    own = labels(raw)
    kept = {
        key: value
        for key, value in own.items()
        if key == "dp_rank" or not (key.endswith("_rank") or key in ("pid", "priority"))
    }
    return tuple(sorted(kept.items())), own.get("priority", "")


def _ranks(
    checks: Checks, page: Page, field: str, names: tuple[bytes, ...], limit: float | None
) -> dict[object, float] | None:
    """The first of the families that the page has, one value per data-parallel rank; a limit of ``None`` = shares.

    With priority scheduling the series of ``priority=""`` is the total and the others are its parts.
    """
    name, series = names[0], page.family(names[0])
    for name in names[1:]:
        if series:
            break
        series = page.family(name)
    metric = f"sglang:{(name if series else names[0]).decode()}"
    values = (
        checks.shares(metric, field, series.values())
        if limit is None
        else checks.valid(metric, field, series.values(), limit)
    )
    if values is None:
        return None
    by_rank: dict[object, dict[str, float]] = {}
    for raw, value in zip(series, values, strict=True):
        rank, priority = _rank_of(raw)
        parts = by_rank.setdefault(rank, {})
        parts[priority] = max(value, parts.get(priority, 0.0))
    return {rank: parts[""] if "" in parts else sum(parts.values()) for rank, parts in by_rank.items()}


def _sum(checks: Checks, page: Page, field: str, names: tuple[bytes, ...], limit: float) -> float | None:
    ranks = _ranks(checks, page, field, names, limit)
    return None if ranks is None else sum(ranks.values())


def _waiting(checks: Checks, page: Page) -> float | None:
    if not page.family(_QUEUE) and any(page.family(name) for name in _ALL_QUEUES):
        return _sum(checks, page, "waiting", _ALL_QUEUES, MAX_REQUESTS)
    waiting = _sum(checks, page, "waiting", (_QUEUE,), MAX_REQUESTS)
    for names in _OTHER_QUEUES:
        if waiting is not None and any(page.family(name) for name in names):
            more = _sum(checks, page, "waiting", names, MAX_REQUESTS)
            waiting = None if more is None else waiting + more
    return waiting


def _page_queued_tokens(checks: Checks, page: Page, waiting: float | None) -> float | None:
    """Only the text form of the load endpoint tells them."""
    if not page.family(_USED_AND_QUEUED):
        return None
    both = _ranks(checks, page, "queued_tokens", (_USED_AND_QUEUED,), MAX_TOKENS)
    used = _ranks(checks, page, "queued_tokens", (_USED,), MAX_TOKENS)
    return _queued_tokens(checks, both, used, waiting)


# -- the load endpoints --------------------------------------------------------------------------------------


def _read_loads(entries: Ranks) -> Reading:
    checks = Checks()

    def column(name: bytes, field: str, limit: float) -> dict[object, float] | None:
        values = _column(entries, name.decode())
        numbers = checks.valid(name.decode(), field, values, limit)
        return None if numbers is None else dict(zip(entries, numbers, strict=True))

    capacities = column(_CAPACITY, "kv_capacity", MAX_TOKENS)
    if capacities is not None and 0 in capacities.values():
        # No scheduler has a KV cache of no tokens: the entry was never filled in, and its zeros are no load.
        checks.say(f"{_CAPACITY.decode()} is 0: the entries are not filled in, all fields are unknown")
        return Reading(problems=checks.problems)
    running = _added(column(_RUNNING[0], "running", MAX_REQUESTS))
    waiting = _added(column(_ALL_QUEUES[0], "waiting", MAX_REQUESTS))
    used = column(_USED, "queued_tokens", MAX_TOKENS)
    both = column(_USED_AND_QUEUED, "queued_tokens", MAX_TOKENS)
    if used is not None and capacities is not None:
        usage = checks.shares(
            f"{_USED.decode()} / {_CAPACITY.decode()}",
            "kv_usage",
            [used[rank] / capacities[rank] for rank in entries],
        )
    else:
        usage = checks.shares(_USAGE[1].decode(), "kv_usage", _column(entries, _USAGE[1].decode()))
    return Reading(
        running=running,
        waiting=waiting,
        kv_usage=None if usage is None else _mean(dict(zip(entries, usage, strict=True)), capacities),
        queued_tokens=_queued_tokens(checks, both, used, waiting),
        throughput=_moving(checks, running, _added(column(_THROUGHPUT, "throughput", MAX_RATE))),
        kv_capacity=_added(capacities),
        slots=_added(column(_SLOTS, "slots", MAX_REQUESTS)) or None,
        problems=checks.problems,
    )


def _read_get_load(entries: Ranks) -> Reading:
    """``num_reqs`` is running + waiting; the token count includes queued prompts and so tells neither part."""
    checks = Checks()
    requests = checks.total("num_reqs", "inflight", _column(entries, "num_reqs"), MAX_REQUESTS)
    waiting = checks.total("num_waiting_reqs", "waiting", _column(entries, "num_waiting_reqs"), MAX_REQUESTS)
    running = None
    if requests is not None and waiting is not None:
        if waiting > requests:
            checks.unknown(
                "running", f"num_waiting_reqs is {waiting:g}, more than num_reqs with {requests:g}"
            )
        else:
            running = requests - waiting
    return Reading(running=running, waiting=waiting, inflight=requests, problems=checks.problems)


def _is_json(body: bytes) -> bool:
    return body.lstrip()[:1] in (b"{", b"[")


def _is_overlong(body: bytes) -> bool:
    """Whether it has so many parts that they are not even counted by parsing it, which would take seconds."""
    return body.count(b"{") + body.count(b"[") > MAX_RANKS * _PARTS_OF_A_RANK


def _parsed(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _entries(path: str, answer: object) -> Ranks | None:
    """The answer's entries by dp rank; ``None`` if the answer is not SGLang's."""
    if path.startswith(GET_LOAD):
        if isinstance(answer, dict) and "load" in answer:  # 0.4: a token count and nothing else
            return {0: answer}
        listed = answer
        known = "num_reqs"
    else:
        listed = answer.get("loads") if isinstance(answer, dict) else None
        known = _RUNNING[0].decode()
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        return None
    if listed and not any(known in entry for entry in listed):
        return None
    ranks = [entry.get("dp_rank") for entry in listed]
    if len({repr(rank) for rank in ranks}) < len(ranks):
        ranks = list(range(len(listed)))
    return {repr(rank): entry for rank, entry in zip(ranks, listed, strict=True)}


def _column(entries: Ranks, name: str) -> Iterable[object]:
    return [entry.get(name) if isinstance(entry, dict) else None for entry in entries.values()]


# -- what both have in common --------------------------------------------------------------------------------


def _added(ranks: Mapping[object, float] | None) -> float | None:
    return None if ranks is None else sum(ranks.values())


def _mean(shares: Mapping[object, float], capacities: Mapping[object, float] | None) -> float:
    weights = {rank: (capacities or {}).get(rank, 0.0) for rank in shares}
    if 0 in weights.values():
        weights = dict.fromkeys(shares, 1.0)
    return min(1.0, sum(share * weights[rank] for rank, share in shares.items()) / sum(weights.values()))


def _queued_tokens(
    checks: Checks,
    both: Mapping[object, float] | None,
    used: Mapping[object, float] | None,
    waiting: float | None,
) -> float | None:
    """Prompt tokens in the queues: used and queued together, less the used ones."""
    if both is None or used is None:
        return None
    queued = checks.total(
        f"{_USED_AND_QUEUED.decode()} less {_USED.decode()}",
        "queued_tokens",
        [tokens - used.get(rank, 0.0) for rank, tokens in both.items()],
        MAX_TOKENS,
    )
    if queued == 0 and waiting:
        # An empty queue and waiting requests contradict each other; the count of tokens is the one not kept.
        checks.unknown("queued_tokens", f"no queued tokens although {waiting:g} requests wait")
        return None
    return queued


def _moving(checks: Checks, running: float | None, throughput: float | None) -> float | None:
    """0 tokens per second while requests run is what SGLang says before it has measured, or with metrics off."""
    if throughput == 0 and running:
        checks.unknown("throughput", f"{_THROUGHPUT.decode()} is 0 although {running:g} requests run")
        return None
    return throughput
