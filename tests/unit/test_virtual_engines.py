"""The routing bench's fleet, compiled and plain, against the engine model itself."""

from __future__ import annotations

import heapq
import itertools
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.virtual.engines import Began, Engines, build, server
from loadboard.sim.model import EngineModel, EngineParameters, Gauges, Request

ROOT = Path(__file__).parents[2]


def fleet(
    implementation: str,
    parameters: Sequence[EngineParameters],
    prompts: Sequence[int],
    outputs: Sequence[int],
) -> Engines:
    if implementation == "compiled":
        pytest.importorskip("numba")
    engines = build(parameters, np.array(prompts), np.array(outputs), compiled=implementation == "compiled")
    assert engines.name == implementation
    return engines


@pytest.fixture(params=["compiled", "plain"])
def implementation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- against the model ----------------------------------------------------------------------------------


def drive(
    engines: Engines,
    parameters: Sequence[EngineParameters],
    lengths: Sequence[tuple[int, int]],
    rng: random.Random,
    gap_s: float,
    cancel_share: float,
) -> list[Gauges]:
    """Random arrivals, cancels and looks at the gauges; every answer is the model's. Its gauges at the end."""
    models = [EngineModel(each) for each in parameters]
    busy = [False] * len(models)
    order = itertools.count()
    events: list[tuple[float, int, str, Any]] = []

    def plan(when: float, what: str, argument: Any) -> None:
        heapq.heappush(events, (when, next(order), what, argument))

    def begin(now: float, engine: int) -> None:
        step, began = models[engine].step(now), engines.step(engine, now)
        busy[engine] = step is not None
        if step is None:
            assert began is None
            return
        assert began is not None
        assert Began(began.ends, tuple(began.first), tuple(began.finished)) == Began(
            step.ends, step.first, step.finished
        )
        plan(step.ends, "step", engine)
        looked = rng.uniform(now, step.ends)
        assert engines.gauges(engine, looked) == models[engine].gauges(looked)

    now = 0.0
    for request in range(len(lengths)):
        plan(now, "submit", request)
        now += rng.expovariate(1 / gap_s) if rng.random() < 0.8 else 0.0
    while events:
        now, _, what, argument = heapq.heappop(events)
        if what == "step":
            begin(now, argument)
        elif what == "submit":
            engine = rng.randrange(len(models))
            models[engine].submit(now, Request(argument, *lengths[argument]))
            assert engines.submit(engine, now, argument) is not busy[engine]
            if rng.random() < cancel_share:
                plan(now + rng.expovariate(1 / (20 * gap_s)), "cancel", (engine, argument))
            if not busy[engine]:
                begin(now, engine)
        else:
            engine, request = argument
            assert engines.cancel(engine, request) is models[engine].cancel(request)
            assert engines.gauges(engine, now) == models[engine].gauges(now)
    assert all(engines.step(engine, now) is None for engine in range(len(models)))
    final = [engines.gauges(engine, now) for engine in range(len(models))]
    assert final == [model.gauges(now) for model in models]
    assert engines.works(now).tolist() == [0.0] * len(models)
    return final


@pytest.mark.parametrize("cancel_share", [0.0, 0.3])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_long_run_with_little_kv_cache_is_the_models_run(
    implementation: str, seed: int, cancel_share: float
) -> None:
    rng = random.Random(seed)
    parameters = [
        EngineParameters(kv_capacity=6_000, speed=1.0),
        EngineParameters(kv_capacity=9_000, speed=0.7, watermark=0.0, slots=200),
        EngineParameters(kv_capacity=40_000, speed=1.9, step_tokens=512, slots=16),
    ]
    lengths = [(rng.randint(1, 3000 if rng.random() < 0.1 else 300), rng.randint(1, 300)) for _ in range(700)]
    engines = fleet(implementation, parameters, *zip(*lengths, strict=True))
    final = drive(engines, parameters, lengths, rng, 0.03, cancel_share)
    assert final[0].preemptions > 20
    assert final[1].preemptions > 5
    cancelled = len(lengths) - sum(gauges.finished for gauges in final)
    assert cancelled == 0 if cancel_share == 0 else cancelled > 50


@pytest.mark.parametrize("name", ["compiled", "plain"])
@settings(max_examples=150, deadline=None)
@given(
    machines=st.lists(
        st.builds(
            EngineParameters,
            slots=st.integers(1, 6),
            kv_capacity=st.integers(59, 150),
            speed=st.floats(0.1, 10.0),
            step_tokens=st.integers(6, 40),
            watermark=st.sampled_from([0.0, 0.01, 0.6]),
            prefill_context=st.sampled_from([100.0, float("inf")]),
        ),
        min_size=1,
        max_size=3,
    ),
    lengths=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=30),
    seed=st.integers(0, 2**32),
    gap_s=st.sampled_from([1e-3, 1e-2, 1e-1]),
    cancel_share=st.sampled_from([0.0, 0.5]),
)
def test_any_fleet_answers_as_its_models(
    name: str,
    machines: list[EngineParameters],
    lengths: list[tuple[int, int]],
    seed: int,
    gap_s: float,
    cancel_share: float,
) -> None:
    engines = fleet(name, machines, *zip(*lengths, strict=True))
    drive(engines, machines, lengths, random.Random(seed), gap_s, cancel_share)


def test_both_know_the_same_work_left_in_the_same_run() -> None:
    rng = random.Random(5)
    parameters = [EngineParameters(kv_capacity=5_000, step_tokens=256, speed=speed) for speed in (1.0, 1.7)]
    lengths = [(rng.randint(1, 900), rng.randint(1, 200)) for _ in range(120)]
    both = [fleet(name, parameters, *zip(*lengths, strict=True)) for name in ("compiled", "plain")]
    for request in range(len(lengths)):
        assert len({each.submit(request % 2, 0.0, request) for each in both}) == 1
    now = 0.0
    for _ in range(400):
        begun = [each.step(0, now) for each in both]
        assert begun[0] is not None
        looked = rng.uniform(now, begun[0].ends)
        assert both[0].work(0, looked) == both[1].work(0, looked)
        assert both[0].works(looked).tolist() == both[1].works(looked).tolist()
        now = begun[0].ends
    assert both[0].gauges(0, now).preemptions > 0


# -- by hand ----------------------------------------------------------------------------------------------


def test_work_is_prefill_and_tokens_to_come_and_the_rest_of_the_step(implementation: str) -> None:
    engines = fleet(implementation, [EngineParameters(speed=2.0, step_tokens=64)], [100], [3])
    prefill = 50e-6 * 100 * (1 + 50 / 32768)
    tokens = 3 * (50e-6 + 10e-3 / 64 + 60e-9 * (100 + 1.5))
    engines.submit(0, 0.0, 0)
    assert engines.work(0, 0.0) == pytest.approx((prefill + tokens) / 2)
    began = engines.step(0, 0.0)
    assert began is not None
    rest = 50e-6 * 36 * (1 + (64 + 18) / 32768)
    assert engines.work(0, began.ends) == pytest.approx((rest + tokens) / 2)
    assert engines.work(0, 0.0) == pytest.approx(began.ends + (rest + tokens) / 2)
    began = engines.step(0, began.ends)
    assert began is not None
    tokens = 2 * (50e-6 + 10e-3 / 64 + 60e-9 * (101 + 1))
    assert engines.works(began.ends).tolist() == pytest.approx([tokens / 2])


def test_a_server_serves_first_come_first_served_each_for_exactly_its_own_time(implementation: str) -> None:
    """Lindley's recursion: the wait is max(0, the last one's wait + its service - the gap).

    All times are multiples of 2**-20 s, so that floats add them without an error.
    """
    tick = 2.0**-20
    rng = np.random.default_rng(3)
    services = np.maximum(1, np.rint(rng.exponential(0.2 / tick, 500))).astype(np.int64)
    arrivals = np.cumsum(np.rint(rng.exponential(0.25 / tick, 500))) * tick
    engines = fleet(implementation, [server(tick)], services.tolist(), [1] * 500)
    waits, departures, now, wait = [], [], float("-inf"), 0.0
    for request, (arrival, service) in enumerate(zip(arrivals.tolist(), services.tolist(), strict=True)):
        gap = arrival - (arrivals[request - 1] if request else -1e9)
        wait = max(0.0, wait + (services[request - 1] * tick if request else 0.0) - gap)
        while now <= arrival:
            began = engines.step(0, max(now, 0.0))
            if began is None:
                break
            departures.append((list(began.finished), list(began.first), began.ends))
            now = began.ends
        waits.append(engines.work(0, arrival))
        assert waits[-1] == wait
        if engines.submit(0, arrival, request):
            began = engines.step(0, arrival)
            assert began is not None
            departures.append((list(began.finished), list(began.first), began.ends))
            now = began.ends
            assert began.ends == arrival + wait + service * tick
    while (began := engines.step(0, now)) is not None:
        departures.append((list(began.finished), list(began.first), began.ends))
        now = began.ends
    assert departures == [
        ([request], [request], float(arrivals[request] + waits[request] + services[request] * tick))
        for request in range(500)
    ]
    assert max(waits) > 1.0


def test_an_empty_engine_takes_a_request_above_the_watermark(implementation: str) -> None:
    engines = fleet(implementation, [EngineParameters(kv_capacity=100, watermark=0.5)], [60, 60], [1, 1])
    for request in (0, 1):
        engines.submit(0, 0.0, request)
    began = engines.step(0, 0.0)
    assert began is not None
    assert list(began.finished) == [0]
    began = engines.step(0, began.ends)
    assert began is not None
    assert list(began.finished) == [1]


def test_a_request_may_come_again_after_it_left_and_starts_anew(implementation: str) -> None:
    engines = fleet(implementation, [EngineParameters()] * 2, [50, 60], [2, 2])
    assert engines.submit(0, 0.0, 0)
    assert engines.step(0, 0.0) is not None
    assert engines.cancel(0, 0)
    assert not engines.cancel(0, 0)
    assert not engines.cancel(1, 0)
    assert engines.submit(1, 0.0, 0)
    began = engines.step(1, 0.0)
    assert began is not None
    assert list(began.first) == [0]
    began = engines.step(1, began.ends)
    assert began is not None
    assert list(began.finished) == [0]
    assert not engines.submit(1, began.ends, 0)
    assert engines.gauges(1, began.ends) == Gauges(0, 0, 0, 1, 50, 2, 0)


def test_a_step_that_was_begun_stays_as_it_was_while_others_begin(implementation: str) -> None:
    engines = fleet(implementation, [EngineParameters()] * 2, [50, 60], [1, 1])
    begun = []
    for engine in (0, 1):
        engines.submit(engine, 0.0, engine)
        begun.append(engines.step(engine, 0.0))
    assert [each and list(each.finished) for each in begun] == [[0], [1]]


def test_whole_numbers_of_any_type_are_taken_as_times_and_ids(implementation: str) -> None:
    engines = fleet(implementation, [EngineParameters()], [50], [1])
    assert engines.submit(np.int32(0), 0, np.int32(0))
    assert engines.step(np.int64(0), 0) is not None


# -- what cannot be -----------------------------------------------------------------------------------------


def test_it_is_said_what_does_not_exist(implementation: str) -> None:
    engines = fleet(implementation, [EngineParameters()], [50], [1])
    for engine in (-1, 1):
        with pytest.raises(IndexError, match=f"engine {engine} does not exist"):
            engines.submit(engine, 0.0, 0)
        with pytest.raises(IndexError, match=f"engine {engine} does not exist"):
            engines.step(engine, 0.0)
        with pytest.raises(IndexError, match=f"engine {engine} does not exist"):
            engines.cancel(engine, 0)
        with pytest.raises(IndexError, match=f"engine {engine} does not exist"):
            engines.gauges(engine, 0.0)
        with pytest.raises(IndexError, match=f"engine {engine} does not exist"):
            engines.work(engine, 0.0)
    for request in (-1, 1):
        with pytest.raises(IndexError, match=f"request {request} does not exist"):
            engines.submit(0, 0.0, request)
        with pytest.raises(IndexError, match=f"request {request} does not exist"):
            engines.cancel(0, request)


def test_it_is_said_what_cannot_be_submitted_or_begun(implementation: str) -> None:
    engines = fleet(implementation, [EngineParameters(kv_capacity=50)] * 2, [50, 50], [1, 2])
    with pytest.raises(ValueError, match="request 1 needs 51 KV tokens, the engine has 50"):
        engines.submit(0, 0.0, 1)
    engines.submit(1, 0.0, 0)
    for engine in (0, 1):
        with pytest.raises(ValueError, match="request 0 is in engine 1 already"):
            engines.submit(engine, 0.0, 0)
    began = engines.step(1, 0.0)
    assert began is not None
    with pytest.raises(ValueError, match=rf"the step under way ends at {began.ends}, not before 0\.0"):
        engines.step(1, 0.0)


def test_requests_without_tokens_or_of_unequal_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="request 1 needs at least 1 prompt token and 1 output token"):
        build([EngineParameters()], np.array([1, 2]), np.array([1, 0]))
    with pytest.raises(ValueError, match=r"equal lengths, not \(2,\) and \(1,\)"):
        build([EngineParameters()], np.array([1, 2]), np.array([1]))


def test_without_numba_the_model_itself_is_used() -> None:
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "from bench.virtual.engines import EngineParameters, build\n"
        "print(build([EngineParameters()], [1], [1]).name)\n"
        "build([EngineParameters()], [1], [1], compiled=True)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "plain\n"
    assert "import of numba halted" in done.stderr
