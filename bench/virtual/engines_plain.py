"""The fleet without numba: the product's own engine model, one object per engine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from bench.virtual.engines import Began
from loadboard.sim.model import EngineModel, EngineParameters, Gauges, Request


class PlainEngines:
    """:class:`~bench.virtual.engines.Engines` over :class:`loadboard.sim.model.EngineModel`."""

    name = "plain"

    def __init__(
        self, parameters: Sequence[EngineParameters], prompts: NDArray[np.int64], outputs: NDArray[np.int64]
    ) -> None:
        self._models = [_Model(each) for each in parameters]
        self._idle = [True] * len(self._models)
        self._requests = [
            Request(index, prompt, output)
            for index, (prompt, output) in enumerate(zip(prompts.tolist(), outputs.tolist(), strict=True))
        ]
        self._engine_of: dict[int, int] = {}

    def submit(self, engine: int, now: float, request: int) -> bool:
        model = self._model(engine)
        wanted = self._request(request)
        if request in self._engine_of:
            raise ValueError(f"request {request} is in engine {self._engine_of[request]} already")
        model.submit(now, wanted)
        self._engine_of[request] = engine
        return self._idle[engine]

    def step(self, engine: int, now: float) -> Began | None:
        step = self._model(engine).step(now)
        self._idle[engine] = step is None
        if step is None:
            return None
        for request in step.finished:
            del self._engine_of[request]
        return Began(step.ends, step.first, step.finished)

    def cancel(self, engine: int, request: int) -> bool:
        model = self._model(engine)
        if not model.cancel(self._request(request).id):
            return False
        del self._engine_of[request]
        return True

    def gauges(self, engine: int, now: float) -> Gauges:
        return self._model(engine).gauges(now)

    def work(self, engine: int, now: float) -> float:
        return self._model(engine).work(now)

    def works(self, now: float) -> NDArray[np.float64]:
        return np.array([model.work(now) for model in self._models], np.float64)

    def _model(self, engine: int) -> _Model:
        if not 0 <= engine < len(self._models):
            raise IndexError(f"engine {engine} does not exist")
        return self._models[engine]

    def _request(self, request: int) -> Request:
        if not 0 <= request < len(self._requests):
            raise IndexError(f"request {request} does not exist")
        return self._requests[request]


class _Model(EngineModel):
    """The model, and the work left in it, which is no figure that an engine has of itself."""

    def work(self, now: float) -> float:
        parameters = self.parameters
        seconds = 0.0
        for each in chain(self._running, self._waiting):
            prefill = each.goal - each.computed
            context = each.computed + prefill / 2
            prefill_s = parameters.prefill_token_s * prefill * (1 + context / parameters.prefill_context)
            tokens = each.output - each.produced
            context = each.prompt + each.produced + tokens / 2
            token_s = parameters.sequence_s + parameters.step_s / parameters.slots
            seconds += prefill_s + tokens * (token_s + parameters.kv_token_s * context)
        return max(0.0, self._step_ends - now) + seconds / parameters.speed
