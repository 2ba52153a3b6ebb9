"""The fleet compiled by numba: the twin of :mod:`loadboard.sim.model`.

The same float operations in the same order, so that the same times come out. Everything compiled is in this
module, because numba's cache of it is renewed when this file changes, whatever it imports. The cache is in
``NUMBA_CACHE_DIR``, else beside this file.

The state is a record per engine and per request, and arrays shared by the fleet:

``batch[e, :running]``
    an engine's running sequences by admission: the last one is the youngest.
``gauges[e, 0]``, ``gauges[e, 1]``
    the figures until the step under way ends and from then on, in the order of ``Gauges``.
``report[SERVED]``, ``report[FIRST]``, ``report[FINISHED]``
    requests of the step just begun; the next call overwrites them.

A queue is a list linked in both directions through the requests, ``NONE`` at its ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from numba import types
from numpy.typing import NDArray

NONE = -1
#: What a call says instead of a count.
IDLE, UNDER_WAY, NO_ENGINE, NO_REQUEST, ELSEWHERE, TOO_LARGE = -1, -2, -3, -4, -5, -6
SERVED, FIRST, FINISHED = 0, 1, 2
#: Positions in ``Gauges``.
RUNNING, WAITING, KV, DONE, PROMPT_TOKENS, TOKENS, PREEMPTIONS = range(7)

_COUNTS = ("slots", "capacity", "step_tokens", "running", "waiting", "head", "tail", "kv", "busy")
#: As in ``EngineParameters``.
COSTS = ("speed", "step_s", "sequence_s", "kv_token_s", "prefill_token_s", "prefill_context")
_SEQUENCE = ("prompt", "output", "engine", "produced", "computed", "goal", "kv", "before", "after")
ENGINE = np.dtype(
    [(name, np.int64) for name in _COUNTS] + [(name, np.float64) for name in (*COSTS, "limit", "ends")],
    align=True,
)
REQUEST = np.dtype([(name, np.int64) for name in _SEQUENCE], align=True)

_Function = TypeVar("_Function", bound=Callable[..., Any])
_engine, _request = numba.from_dtype(ENGINE), numba.from_dtype(REQUEST)
_engines, _requests = _engine[::1], _request[::1]
_table, _tables, _int, _float = types.int64[:, ::1], types.int64[:, :, ::1], types.int64, types.float64


def _compiled(result: Any, *arguments: Any) -> Callable[[_Function], _Function]:
    # With its signature: an argument of another type is converted, where numba would compile once more.
    decorator: Callable[[_Function], _Function] = numba.njit(result(*arguments), cache=True)
    return decorator


@_compiled(_int, _requests, _engines, _int, _int)
def submit(requests: Any, engines: Any, engine_id: int, request_id: int) -> int:
    """Whether the engine is idle, or why not."""
    if not 0 <= engine_id < len(engines):
        return NO_ENGINE
    if not 0 <= request_id < len(requests):
        return NO_REQUEST
    engine = engines[engine_id]
    request = requests[request_id]
    if request.engine != NONE:
        return ELSEWHERE
    if request.prompt + request.output - 1 > engine.capacity:
        return TOO_LARGE
    request.engine = engine_id
    request.produced = request.computed = request.kv = 0
    request.goal = request.prompt
    request.before = engine.tail
    request.after = NONE
    if engine.tail == NONE:
        engine.head = request_id
    else:
        requests[engine.tail].after = request_id
    engine.tail = request_id
    engine.waiting += 1
    idle: int = 1 - engine.busy
    return idle


@_compiled(types.void, _requests, _engine, _int)
def _unlink(requests: Any, engine: Any, request_id: int) -> None:
    request = requests[request_id]
    if request.before == NONE:
        engine.head = request.after
    else:
        requests[request.before].after = request.after
    if request.after == NONE:
        engine.tail = request.before
    else:
        requests[request.after].before = request.before
    engine.waiting -= 1


@_compiled(_int, _requests, _engines, _table, _tables, _int, _int)
def cancel(requests: Any, engines: Any, batch: Any, gauges: Any, engine_id: int, request_id: int) -> int:
    if not 0 <= engine_id < len(engines):
        return NO_ENGINE
    if not 0 <= request_id < len(requests):
        return NO_REQUEST
    engine = engines[engine_id]
    request = requests[request_id]
    if request.engine != engine_id:
        return 0
    request.engine = NONE
    running = batch[engine_id]
    place = 0
    while place < engine.running and running[place] != request_id:
        place += 1
    if place < engine.running:
        for index in range(place + 1, engine.running):
            running[index - 1] = running[index]
        engine.running -= 1
        engine.kv -= request.kv
    else:
        _unlink(requests, engine, request_id)
    if engine.running + engine.waiting == 0:
        # No later step would say so.
        gauges[engine_id, 1, RUNNING] = gauges[engine_id, 1, WAITING] = gauges[engine_id, 1, KV] = 0
    return 1


@_compiled(types.UniTuple(_int, 2), _requests, _engine, types.int64[::1])
def _make_room(requests: Any, engine: Any, running: Any) -> tuple[int, int]:
    """Preempt until the decoding sequences can grow: how many went, and how many decode."""
    growth = 0
    for index in range(engine.running):
        request = requests[running[index]]
        if request.computed == request.goal:
            growth += 1
    preempted = 0
    while engine.kv + growth > engine.capacity:
        engine.running -= 1
        youngest_id = running[engine.running]
        youngest = requests[youngest_id]
        if youngest.computed == youngest.goal:
            growth -= 1
        engine.kv -= youngest.kv
        youngest.kv = youngest.computed = 0
        youngest.goal = youngest.prompt + youngest.produced
        youngest.before = NONE
        youngest.after = engine.head
        if engine.head == NONE:
            engine.tail = youngest_id
        else:
            requests[engine.head].before = youngest_id
        engine.head = youngest_id
        engine.waiting += 1
        preempted += 1
    return preempted, growth


@_compiled(_float, _engine, _request, _int)
def _compute(engine: Any, request: Any, chunk: int) -> float:
    context = request.computed + chunk / 2
    request.computed += chunk
    seconds: float = engine.prefill_token_s * chunk * (1 + context / engine.prefill_context)
    return seconds


@_compiled(types.Tuple((_float, _int, _int)), _requests, _engines, _table, _tables, _table, _int, _float)
def step(
    requests: Any, engines: Any, batch: Any, gauges: Any, report: Any, engine_id: int, now: float
) -> tuple[float, int, int]:
    """The step's end and how many are in the report as first and finished; or why there is none."""
    if not 0 <= engine_id < len(engines):
        return now, NO_ENGINE, 0
    engine = engines[engine_id]
    if now < engine.ends:
        return engine.ends, UNDER_WAY, 0
    if engine.running + engine.waiting == 0:
        engine.busy = 0
        return now, IDLE, 0
    engine.busy = 1
    running = batch[engine_id]
    preempted, served = _make_room(requests, engine, running)
    budget = engine.step_tokens - served
    place = 0
    for index in range(engine.running):
        request = requests[running[index]]
        if request.computed == request.goal:
            request.kv += 1
            report[SERVED, place] = running[index]
            place += 1
    engine.kv += served
    seconds = 0.0
    # Those that decode are passed over; they are already served.
    for index in range(engine.running):
        if budget == 0:
            break
        request = requests[running[index]]
        if request.computed == request.goal:
            continue
        chunk = min(budget, request.goal - request.computed)
        budget -= chunk
        seconds += _compute(engine, request, chunk)
        if request.computed == request.goal:
            report[SERVED, place] = running[index]
            place += 1
    if preempted == 0:
        admitted = 0.0
        while engine.head != NONE and budget > 0 and engine.running < engine.slots:
            request_id = engine.head
            request = requests[request_id]
            # An empty engine takes any request, or one above the watermark would wait for ever.
            if engine.running > 0 and engine.kv + request.goal > engine.limit:
                break
            _unlink(requests, engine, request_id)
            running[engine.running] = request_id
            engine.running += 1
            request.kv = request.goal
            engine.kv += request.goal
            chunk = min(budget, request.goal)
            budget -= chunk
            admitted += _compute(engine, request, chunk)
            if request.computed == request.goal:
                report[SERVED, place] = request_id
                place += 1
        seconds += admitted
    seconds += engine.step_s + engine.sequence_s * engine.running + engine.kv_token_s * engine.kv
    engine.ends = now + seconds / engine.speed

    shown = gauges[engine_id, 0]
    following = gauges[engine_id, 1]
    shown[:] = following
    first = finished = 0
    for index in range(place):
        request_id = report[SERVED, index]
        request = requests[request_id]
        request.produced += 1
        if request.produced == 1:
            report[FIRST, first] = request_id
            first += 1
            following[PROMPT_TOKENS] += request.prompt
        if request.produced == request.output:
            report[FINISHED, finished] = request_id
            finished += 1
            engine.kv -= request.kv
            request.engine = NONE
    if finished > 0:
        left = 0
        for index in range(engine.running):
            request = requests[running[index]]
            if request.produced < request.output:
                running[left] = running[index]
                left += 1
        engine.running = left
    following[RUNNING] = engine.running
    following[WAITING] = engine.waiting
    following[KV] = engine.kv
    following[DONE] += finished
    following[TOKENS] += place
    following[PREEMPTIONS] += preempted
    return engine.ends, first, finished


@_compiled(_float, _engine, _request)
def _seconds_left(engine: Any, request: Any) -> float:
    prefill = request.goal - request.computed
    context = request.computed + prefill / 2
    prefill_s = engine.prefill_token_s * prefill * (1 + context / engine.prefill_context)
    tokens = request.output - request.produced
    context = request.prompt + request.produced + tokens / 2
    token_s = engine.sequence_s + engine.step_s / engine.slots
    seconds: float = prefill_s + tokens * (token_s + engine.kv_token_s * context)
    return seconds


@_compiled(_float, _requests, _engines, _table, _int, _float)
def work(requests: Any, engines: Any, batch: Any, engine_id: int, now: float) -> float:
    engine = engines[engine_id]
    seconds = 0.0
    for index in range(engine.running):
        seconds += _seconds_left(engine, requests[batch[engine_id, index]])
    request_id = engine.head
    while request_id != NONE:
        seconds += _seconds_left(engine, requests[request_id])
        request_id = requests[request_id].after
    left: float = max(0.0, engine.ends - now) + seconds / engine.speed
    return left


@_compiled(types.float64[::1], _requests, _engines, _table, _float)
def works(requests: Any, engines: Any, batch: Any, now: float) -> NDArray[np.float64]:
    seconds = np.empty(len(engines))
    for engine_id in range(len(engines)):
        seconds[engine_id] = work(requests, engines, batch, engine_id, now)
    return seconds
