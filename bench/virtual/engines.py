"""A fleet of simulated engines behind one interface, compiled where numba is installed.

Both implementations do what :mod:`loadboard.sim.model` does, step for step and bit for bit: one is that model,
the other its compiled twin, several times faster. All requests of a run are known beforehand; a request's id is
its index. Times are seconds on any clock that does not go backwards.

The driver owns the time: it calls :meth:`Engines.step` when an idle engine got a request, and again at each
``Began.ends`` until it gets ``None``.

A first-come-first-served server with given service times, as queueing theory wants it, is :func:`server` with
requests of one output token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from loadboard.sim.model import EngineParameters, Gauges


class Began(NamedTuple):
    """A step that has begun. Its tokens come at ``ends``, not before."""

    ends: float
    first: Sequence[int]  #: requests that get their first token
    finished: Sequence[int]  #: requests that get their last token and leave the engine


class Engines(Protocol):
    """Engines ``0..M-1``. A request is in at most one of them at a time, and may be submitted again after that.

    ``IndexError`` for an engine or a request that does not exist.
    """

    name: str  #: the implementation, for reports

    def submit(self, engine: int, now: float, request: int) -> bool:
        """Queue ``request`` with nothing computed; whether the engine is idle and has to be stepped now.

        ``ValueError`` for a request that could never finish there or that is in an engine already.
        """

    def step(self, engine: int, now: float) -> Began | None:
        """Begin a step; ``None`` when there is nothing to do: the engine is idle from then on.

        ``ValueError`` while the step before has not ended.
        """

    def cancel(self, engine: int, request: int) -> bool:
        """Take ``request`` out and free its KV cache at once; ``False`` if it is not in the engine.

        The step under way still takes its time and still names the request as first: the driver skips it
        there. As finished it is never named after ``True``: a request is out of the engine from the beginning
        of the step that gives its last token.
        """

    def gauges(self, engine: int, now: float) -> Gauges:
        """What the engine says of itself: the figures as of the last step that had ended at ``now``."""

    def work(self, engine: int, now: float) -> float:
        """Seconds of work left at ``now``, which only an omniscient policy knows.

        The rest of the step under way, and the sum over the requests in the engine, divided by ``speed``, of::

            p * prefill_token_s * (1 + c / prefill_context)
                + o * (sequence_s + step_s / slots + kv_token_s * d)

        with *p* tokens to compute before the next one can come, *o* output tokens to come, *c* and *d* the
        contexts at the middle of these. Of a :func:`server` it is the time until a request submitted now is
        begun.
        """

    def works(self, now: float) -> NDArray[np.float64]:
        """:meth:`work` of every engine, spare ones too, shape (M,)."""


def build(
    parameters: Sequence[EngineParameters],
    prompts: NDArray[np.int64],
    outputs: NDArray[np.int64],
    *,
    compiled: bool | None = None,
) -> Engines:
    """A fleet, one engine for each of ``parameters``; request ``i`` has ``prompts[i]`` and ``outputs[i]`` tokens.

    ``compiled`` chooses the implementation, by default the compiled one where numba can be imported.
    ``ValueError`` for lengths that differ and for a request without tokens.
    """
    prompts, outputs = np.asarray(prompts, np.int64), np.asarray(outputs, np.int64)
    if prompts.ndim != 1 or prompts.shape != outputs.shape:
        raise ValueError(
            f"prompts and outputs must be one row of equal lengths, not {prompts.shape} and {outputs.shape}"
        )
    empty = np.flatnonzero((prompts < 1) | (outputs < 1))
    if empty.size:
        raise ValueError(f"request {empty[0]} needs at least 1 prompt token and 1 output token")
    if compiled is not False:
        try:
            from bench.virtual.engines_compiled import CompiledEngines
        except ImportError:
            if compiled:
                raise
        else:
            return CompiledEngines(parameters, prompts, outputs)
    from bench.virtual.engines_plain import PlainEngines

    return PlainEngines(parameters, prompts, outputs)


def server(second_per_token: float, speed: float = 1.0) -> EngineParameters:
    """An engine that serves one request after the other, in the order of their coming.

    The service of a request of one output token takes exactly ``second_per_token * prompt_tokens / speed``:
    whole multiples, and never 0.
    """
    return EngineParameters(
        slots=1,
        kv_capacity=2**52,
        speed=speed,
        step_tokens=2**52,
        watermark=0.0,
        step_s=0.0,
        sequence_s=0.0,
        kv_token_s=0.0,
        prefill_token_s=second_per_token,
        prefill_context=math.inf,
    )
