"""The engine model: hand-computed steps, and its invariants over random traffic."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadboard.sim.model import EngineModel, EngineParameters, Gauges, Request, Step


@dataclass
class Run:
    """Drives a model to the end of its work and keeps what it said."""

    model: EngineModel
    now: float = 0.0
    first: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    preempted: list[int] = field(default_factory=list)
    tokens: dict[int, int] = field(default_factory=dict)

    def step(self) -> Step | None:
        step = self.model.step(self.now)
        if step is not None:
            self.now = step.ends
            self.first += step.first
            self.finished += step.finished
            self.preempted += step.preempted
            for request_id in step.tokens:
                self.tokens[request_id] = self.tokens.get(request_id, 0) + 1
        return step

    def to_the_end(self, most_steps: int = 100_000) -> Run:
        for _ in range(most_steps):
            if self.step() is None:
                return self
        raise AssertionError(f"work left after {most_steps} steps")


def engine(**parameters: float) -> Run:
    return Run(EngineModel(EngineParameters(**parameters)))  # type: ignore[arg-type]


# -- one request, by hand -------------------------------------------------------------------------------


def test_a_lone_request_takes_the_time_of_the_formula() -> None:
    run = engine()
    run.model.submit(0.0, Request(1, prompt_tokens=100, output_tokens=3))
    prefill = run.step()
    assert prefill is not None
    assert prefill.duration == pytest.approx(10e-3 + 50e-6 + 60e-9 * 100 + 50e-6 * 100 * (1 + 50 / 32768))
    assert (prefill.first, prefill.finished) == ((1,), ())
    decode = run.step()
    assert decode is not None
    assert decode.duration == pytest.approx(10e-3 + 50e-6 + 60e-9 * 101)
    run.to_the_end()
    assert run.finished == [1]
    assert run.tokens == {1: 3}


def test_speed_divides_the_time_of_every_step() -> None:
    slow, fast = engine(speed=0.5), engine(speed=2.0)
    for run in (slow, fast):
        run.model.submit(0.0, Request(1, 300, 20))
        run.to_the_end()
    assert slow.now == pytest.approx(4 * fast.now)


def test_a_prompt_longer_than_the_step_budget_is_computed_in_chunks_beside_the_decodes() -> None:
    run = engine()
    run.model.submit(run.now, Request(1, 10, 50))
    run.step()
    run.model.submit(run.now, Request(2, 4095, 1))
    # 2048 - 1 decode leave 2047 a step: 2047 + 2047 + 1.
    steps = [run.step() for _ in range(3)]
    assert [step.tokens for step in steps if step] == [(1,), (1,), (1, 2)]
    assert run.finished == [2]


def test_one_output_token_comes_with_the_prompt_and_ends_the_request() -> None:
    run = engine(kv_capacity=10)
    run.model.submit(0.0, Request(1, 10, 1))
    step = run.step()
    assert step is not None
    assert step.tokens == step.first == step.finished == (1,)
    assert run.step() is None


def test_running_prompts_get_their_chunks_before_new_ones_are_admitted() -> None:
    run = engine()
    run.model.submit(0.0, Request(1, 3000, 1))
    run.model.submit(0.0, Request(2, 2000, 1))
    run.step()
    assert run.model.gauges(run.now).running == 1
    run.step()  # 952 tokens of the first prompt, then 1096 of the second
    assert run.finished == [1]
    assert run.model.gauges(run.now).running == 1
    run.step()
    assert run.finished == [1, 2]


# -- admission ------------------------------------------------------------------------------------------


def test_no_more_sequences_run_than_there_are_slots() -> None:
    run = engine(slots=2)
    for request_id in range(5):
        run.model.submit(0.0, Request(request_id, 10, 4))
    run.step()
    assert run.model.gauges(run.now)[:2] == (2, 3)


def test_admission_leaves_the_watermark_free() -> None:
    run = engine(kv_capacity=1000)
    run.model.submit(0.0, Request(1, 500, 20))
    run.model.submit(0.0, Request(2, 491, 20))  # 991 > 990
    run.step()
    assert run.model.gauges(run.now)[:2] == (1, 1)


def test_an_empty_engine_admits_a_request_above_the_watermark() -> None:
    run = engine(kv_capacity=1000)
    run.model.submit(0.0, Request(1, 1000, 1))
    assert run.to_the_end(5).finished == [1]


def test_a_prompt_that_does_not_fit_keeps_smaller_ones_behind_it_waiting() -> None:
    run = engine(kv_capacity=1000)
    run.model.submit(0.0, Request(1, 600, 5))
    run.model.submit(0.0, Request(2, 600, 5))
    run.model.submit(0.0, Request(3, 10, 5))
    run.to_the_end()
    assert run.first == [1, 2, 3]


def test_a_request_that_could_never_fit_is_refused_with_both_numbers() -> None:
    model = EngineModel(EngineParameters(kv_capacity=100))
    with pytest.raises(ValueError, match=r"request 7 needs 101 KV tokens, the engine has 100"):
        model.submit(0.0, Request(7, 100, 2))


@pytest.mark.parametrize("request_", [Request(1, 0, 1), Request(1, 1, 0)])
def test_a_request_without_tokens_is_refused(request_: Request) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        EngineModel().submit(0.0, request_)


def test_an_id_is_refused_while_it_is_in_the_engine_and_free_afterwards() -> None:
    run = engine()
    run.model.submit(0.0, Request(1, 5, 1))
    with pytest.raises(ValueError, match="already"):
        run.model.submit(0.0, Request(1, 5, 1))
    run.to_the_end()
    run.model.submit(run.now, Request(1, 5, 1))


@pytest.mark.parametrize(
    "wrong", [{"slots": 0}, {"slots": 4000}, {"kv_capacity": 0}, {"speed": 0.0}, {"watermark": 1.0}]
)
def test_impossible_parameters_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        engine(**wrong)


# -- time and gauges ------------------------------------------------------------------------------------


def test_gauges_change_at_the_steps_end_and_miss_what_came_during_the_step() -> None:
    model = EngineModel()
    model.submit(0.0, Request(1, 100, 2))
    step = model.step(0.0)
    assert step is not None
    middle = step.ends / 2
    assert model.submit(middle, Request(2, 100, 2)) == step.ends
    assert model.gauges(middle) == Gauges()
    assert model.gauges(step.ends) == Gauges(1, 0, 100, 0, 100, 1, 0)


def test_an_idle_engine_looks_at_its_queue_at_once() -> None:
    run = engine()
    assert run.model.submit(5.0, Request(1, 5, 1)) == 5.0


def test_a_step_cannot_begin_before_the_last_one_ended() -> None:
    model = EngineModel()
    model.submit(0.0, Request(1, 100, 2))
    step = model.step(0.0)
    assert step is not None
    with pytest.raises(ValueError, match="under way"):
        model.step(step.ends / 2)


def test_an_idle_engine_has_no_step() -> None:
    assert EngineModel().step(0.0) is None


# -- preemption and cancellation ------------------------------------------------------------------------


def test_the_youngest_is_preempted_recomputed_and_still_gets_exactly_its_tokens() -> None:
    run = engine(kv_capacity=220, watermark=0.0)
    run.model.submit(0.0, Request(1, 100, 40))
    run.model.submit(0.0, Request(2, 100, 40))
    run.to_the_end()
    assert set(run.preempted) == {2}
    assert run.tokens == {1: 40, 2: 40}
    assert run.first == run.finished == [1, 2]
    gauges = run.model.gauges(run.now)
    assert gauges.preemptions == len(run.preempted)
    assert (gauges.generated_tokens, gauges.prompt_tokens) == (80, 200)


def test_a_preempted_sequence_pays_for_its_prompt_and_its_tokens_again() -> None:
    run = engine(kv_capacity=220, watermark=0.0)
    run.model.submit(0.0, Request(1, 100, 40))
    run.model.submit(0.0, Request(2, 100, 40))
    while not run.preempted:
        run.step()
    produced = run.tokens[2]
    step: Step | None = None
    while run.tokens[2] == produced:
        step = run.step()
    assert step is not None
    again = 100 + produced
    assert step.duration == pytest.approx(
        10e-3 + 50e-6 + 60e-9 * again + 50e-6 * again * (1 + again / 2 / 32768)
    )


def test_a_preempted_sequence_goes_back_to_the_head_of_the_queue() -> None:
    run = engine(kv_capacity=220, watermark=0.0, slots=2)
    for request_id in (1, 2, 3):
        run.model.submit(0.0, Request(request_id, 100, 40))
    run.to_the_end()
    assert run.preempted[0] == 2
    assert run.first == [1, 2, 3]


def test_cancelling_frees_slot_and_kv_cache_at_once() -> None:
    run = engine(kv_capacity=1000, slots=1)
    run.model.submit(0.0, Request(1, 900, 50))
    run.model.submit(0.0, Request(2, 900, 2))
    run.step()
    assert run.model.cancel(1)
    run.to_the_end()
    assert run.finished == [2]
    assert run.model.gauges(run.now) == Gauges(0, 0, 0, 1, 1800, 3, 0)


def test_a_waiting_request_can_be_cancelled() -> None:
    run = engine(slots=1)
    run.model.submit(0.0, Request(1, 5, 2))
    run.model.submit(0.0, Request(2, 5, 2))
    run.step()
    assert run.model.cancel(2)
    assert run.to_the_end().finished == [1]


def test_cancelling_the_last_request_empties_the_gauges_without_another_step() -> None:
    model = EngineModel()
    model.submit(0.0, Request(1, 5, 9))
    step = model.step(0.0)
    assert step is not None
    model.cancel(1)
    assert model.gauges(step.ends)[:3] == (0, 0, 0)
    assert model.step(step.ends) is None


def test_cancelling_what_is_not_there_says_so() -> None:
    run = engine()
    run.model.submit(0.0, Request(1, 5, 1))
    run.to_the_end()
    assert not run.model.cancel(1)


# -- invariants over random traffic ---------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_random_traffic_keeps_every_invariant(data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, 6))
    capacity = data.draw(st.integers(20, 200))
    parameters = EngineParameters(
        slots=slots, kv_capacity=capacity, step_tokens=data.draw(st.integers(slots, 40)), watermark=0.05
    )
    run = Run(EngineModel(parameters))
    submitted: dict[int, Request] = {}
    cancelled: set[int] = set()
    for request_id in range(data.draw(st.integers(1, 25))):
        prompt = data.draw(st.integers(1, capacity // 2))
        request = Request(request_id, prompt, data.draw(st.integers(1, capacity - prompt + 1)))
        run.model.submit(run.now, request)
        submitted[request_id] = request
        for _ in range(data.draw(st.integers(0, 3))):
            step = run.step()
            gauges = run.model.gauges(run.now)
            assert 0 <= gauges.kv_tokens <= capacity
            assert gauges.running <= slots
            if step is not None:
                assert step.duration > 0
                assert len(set(step.tokens)) == len(step.tokens)
                assert set(step.first) | set(step.finished) <= set(step.tokens)
        if data.draw(st.integers(0, 9)) == 0 and run.model.cancel(request_id):
            cancelled.add(request_id)
    run.to_the_end()

    expected = submitted.keys() - cancelled
    assert sorted(run.finished) == sorted(expected)
    assert {i: run.tokens[i] for i in expected} == {i: submitted[i].output_tokens for i in expected}
    # First come, first served; a preempted sequence keeps its place.
    assert run.first == sorted(run.first)
    gauges = run.model.gauges(run.now)
    assert gauges[:3] == (0, 0, 0)
    assert gauges.finished == len(expected)
    assert gauges.preemptions == len(run.preempted)
    assert gauges.generated_tokens == sum(run.tokens.values())


def test_the_same_traffic_gives_the_same_run() -> None:
    def once() -> tuple[float, list[int], list[int]]:
        rng = random.Random(5)
        run = engine(kv_capacity=3000, slots=8)
        for request_id in range(60):
            run.model.submit(run.now, Request(request_id, rng.randint(1, 900), rng.randint(1, 300)))
            run.step()
        run.to_the_end()
        return run.now, run.finished, run.preempted

    assert once() == once()
    assert once()[2], "this traffic is meant to preempt"


def test_saturated_throughput_on_the_chat_mix_matches_the_routing_study() -> None:
    # The study states 17.5 requests/s for 64 slots and an ample KV cache; mean 220/200 tokens, log-normal.
    rng = random.Random(1)

    def length(mean: float, sigma: float, top: int) -> int:
        return max(1, min(top, round(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))))

    run = engine()
    request_id, after_warm_up = 0, 0
    while run.now < 300:
        while request_id - len(run.first) < 20:
            run.model.submit(run.now, Request(request_id, length(220, 1.2, 4096), length(200, 0.9, 2048)))
            request_id += 1
        run.step()
        if run.now < 50:
            after_warm_up = len(run.finished)
    assert (len(run.finished) - after_warm_up) / 250 == pytest.approx(17.5, rel=0.05)
