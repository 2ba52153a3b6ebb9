"""Mixed loads of completion requests, and the engines of the demo's model that they are for."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import NamedTuple

from loadboard.demo import load
from loadboard.demo.load import Shape
from loadboard.sim.model import EngineModel, EngineParameters, Request

_WARM_S = 60.0


class Mix(NamedTuple):
    """What requests ask for, and of which engines."""

    draw: Callable[[random.Random], Shape]
    engine: EngineParameters


def _long(rng: random.Random) -> Shape:
    prompt = rng.randint(6_000, 16_000) if rng.random() < 0.1 else _log_normal(rng, 220.0, 1.2, 4_096)
    return Shape(prompt, _log_normal(rng, 200.0, 0.9, 2_048), chat=True, stream=True)


def _log_normal(rng: random.Random, mean: float, sigma: float, most: int) -> int:
    # The mean of a log-normal is exp(mu + sigma**2 / 2).
    return max(1, min(most, round(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))))


#: The demo's load and engines: each twentieth prompt is of 4k to 10k tokens; small batches, small KV caches.
DEMO = Mix(load.draw, EngineParameters(slots=16, kv_capacity=36_000))
#: Chats with each tenth prompt of 6k to 16k tokens, on engines whose KV cache fills before their batch does.
LONG = Mix(_long, EngineParameters(slots=64, kv_capacity=80_000))


def capacity(mix: Mix, *, seconds: float = 900.0, seed: int = 1) -> float:
    """Requests per second of the mix that one of its engines finishes when it always has work.

    By the engine's model in virtual time, over ``seconds`` of it after a minute.
    """
    rng = random.Random(seed)
    engine = EngineModel(mix.engine)
    now, number, waiting, finished = 0.0, 0, 0, 0
    while now < _WARM_S + seconds:
        while waiting < 2 * mix.engine.slots:
            shape = mix.draw(rng)
            engine.submit(now, Request(number, shape.prompt_tokens, shape.output_tokens))
            number, waiting = number + 1, waiting + 1
        step = engine.step(now)
        assert step is not None  # there is always somebody waiting
        now = step.ends
        waiting = engine.gauges(now).waiting
        finished += len(step.finished) if now > _WARM_S else 0
    return finished / (now - _WARM_S)
