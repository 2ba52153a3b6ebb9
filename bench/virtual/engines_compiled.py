"""The fleet compiled: :mod:`bench.virtual.engines_kernel` and the arrays it works on. Needs numba."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from bench.virtual import engines_kernel as kernel
from bench.virtual.engines import Began
from loadboard.sim.model import EngineParameters, Gauges


class CompiledEngines:
    """:class:`~bench.virtual.engines.Engines` over compiled functions."""

    name = "compiled"

    def __init__(
        self, parameters: Sequence[EngineParameters], prompts: NDArray[np.int64], outputs: NDArray[np.int64]
    ) -> None:
        self._engines = np.zeros(len(parameters), kernel.ENGINE)
        for engine, each in zip(self._engines, parameters, strict=True):
            engine["slots"], engine["step_tokens"] = each.slots, each.step_tokens
            engine["capacity"] = each.kv_capacity
            engine["limit"] = each.kv_capacity * (1 - each.watermark)
            for cost in kernel.COSTS:
                engine[cost] = getattr(each, cost)
        self._engines["head"] = self._engines["tail"] = kernel.NONE
        self._engines["ends"] = -np.inf
        self._requests = np.zeros(len(prompts), kernel.REQUEST)
        self._requests["prompt"], self._requests["output"] = prompts, outputs
        self._requests["engine"] = kernel.NONE
        # No batch is larger than the run has requests; one column at least, or there is nothing to index.
        slots = max(1, min(len(prompts), max((each.slots for each in parameters), default=1)))
        self._batch = np.zeros((len(parameters), slots), np.int64)
        self._gauges = np.zeros((len(parameters), 2, len(Gauges())), np.int64)
        self._report = np.zeros((3, slots), np.int64)

    def submit(self, engine: int, now: float, request: int) -> bool:
        answer = kernel.submit(self._requests, self._engines, engine, request)
        if answer < 0:
            self._refuse(answer, engine, request)
        return answer == 1

    def step(self, engine: int, now: float) -> Began | None:
        ends, first, finished = kernel.step(
            self._requests, self._engines, self._batch, self._gauges, self._report, engine, now
        )
        if first < 0:
            if first == kernel.IDLE:
                return None
            if first == kernel.UNDER_WAY:
                raise ValueError(f"the step under way ends at {ends}, not before {now}")
            self._refuse(first, engine, kernel.NONE)
        # Lists of their own: the report is the next step's, of whichever engine.
        return Began(
            ends,
            self._report[kernel.FIRST, :first].tolist() if first else (),
            self._report[kernel.FINISHED, :finished].tolist() if finished else (),
        )

    def cancel(self, engine: int, request: int) -> bool:
        answer = kernel.cancel(self._requests, self._engines, self._batch, self._gauges, engine, request)
        if answer < 0:
            self._refuse(answer, engine, request)
        return answer == 1

    def gauges(self, engine: int, now: float) -> Gauges:
        if not 0 <= engine < len(self._engines):
            self._refuse(kernel.NO_ENGINE, engine, kernel.NONE)
        ended = now >= self._engines["ends"][engine]
        return Gauges(*self._gauges[engine, int(ended)].tolist())

    def work(self, engine: int, now: float) -> float:
        if not 0 <= engine < len(self._engines):
            self._refuse(kernel.NO_ENGINE, engine, kernel.NONE)
        return kernel.work(self._requests, self._engines, self._batch, engine, now)

    def works(self, now: float) -> NDArray[np.float64]:
        return kernel.works(self._requests, self._engines, self._batch, now)

    def _refuse(self, answer: int, engine: int, request: int) -> NoReturn:
        if answer == kernel.NO_ENGINE:
            raise IndexError(f"engine {engine} does not exist")
        if answer == kernel.NO_REQUEST:
            raise IndexError(f"request {request} does not exist")
        row = self._requests[request]
        if answer == kernel.ELSEWHERE:
            raise ValueError(f"request {request} is in engine {row['engine']} already")
        raise ValueError(
            f"request {request} needs {row['prompt'] + row['output'] - 1} KV tokens, "
            f"the engine has {self._engines['capacity'][engine]}"
        )
