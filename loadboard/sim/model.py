"""A continuous-batching inference engine in virtual time: no clock of its own, no I/O, no randomness.

The scheduler is vLLM V1's in outline. One step does, in this order and within ``step_tokens`` tokens:
one token for every decoding sequence, then a chunk of every prompt under way, then admissions from the
queue, first come first served, while the whole prompt fits the KV cache. When the decoding sequences'
growth does not fit, the youngest sequence is preempted: it loses its KV cache, goes back to the head of the
queue and is computed again, tokens already handed out included.

A step takes, divided by ``speed``::

    10 ms + 50 us * running sequences + 60 ns * KV tokens in use
          + sum over prompt chunks of 50 us * tokens * (1 + context / 32768)

where *context* is the position of the chunk's middle in its sequence. A sequence holds the KV cache of its
whole prompt from its admission, and of one more token with each token after its first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class EngineParameters:
    """What kind of machine is simulated; ``ValueError`` for one that could never work."""

    slots: int = 64  #: sequences in the batch at most, 1..step_tokens
    kv_capacity: int = 400_000  #: KV cache in tokens, >= 1
    speed: float = 1.0  #: divides every step's time, > 0
    step_tokens: int = 2048  #: tokens computed per step at most
    watermark: float = 0.01  #: share of the KV cache that admissions leave free, 0..1
    step_s: float = 10e-3  #: seconds of any step
    sequence_s: float = 50e-6  #: seconds per running sequence and step
    kv_token_s: float = 60e-9  #: seconds per KV token in use and step
    prefill_token_s: float = 50e-6  #: seconds per prompt token at context 0
    prefill_context: float = 32_768.0  #: context at which a prompt token costs twice as much

    def __post_init__(self) -> None:
        if not 1 <= self.slots <= self.step_tokens:
            raise ValueError(
                f"slots must be 1..{self.step_tokens} (the tokens of one step), not {self.slots}"
            )
        if self.kv_capacity < 1:
            raise ValueError(f"kv_capacity must be at least 1 token, not {self.kv_capacity}")
        if not self.speed > 0:
            raise ValueError(f"speed must be greater than 0, not {self.speed}")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark must be in 0..1, not {self.watermark}")


@dataclass(frozen=True)
class Request:
    """One request: it gets exactly ``output_tokens`` tokens unless it is cancelled."""

    id: int  #: unique among the requests in the engine
    prompt_tokens: int  #: >= 1
    output_tokens: int  #: >= 1


class Step(NamedTuple):
    """One step as planned at its start; all of it happens at ``ends``."""

    ends: float
    duration: float
    tokens: tuple[int, ...]  #: ids that get a token, the ones in ``first`` and ``finished`` too
    first: tuple[int, ...]  #: ids that get their first token
    finished: tuple[int, ...]  #: ids that get their last token and leave the engine
    preempted: tuple[int, ...]  #: ids that went back to the queue at the step's start


class Gauges(NamedTuple):
    """What the engine says of itself; ``running`` and ``waiting`` miss requests that came during the step."""

    running: int = 0
    waiting: int = 0
    kv_tokens: int = 0  #: KV cache in use, in tokens
    finished: int = 0  #: running totals, cancelled requests not among ``finished``
    prompt_tokens: int = 0
    generated_tokens: int = 0
    preemptions: int = 0


class _Sequence:
    __slots__ = ("computed", "goal", "kv", "output", "produced", "prompt", "request_id")

    def __init__(self, request: Request) -> None:
        self.request_id = request.id
        self.prompt = request.prompt_tokens
        self.output = request.output_tokens
        self.produced = 0
        self.computed = 0  # of ``goal``: tokens to compute before the next token can come
        self.goal = request.prompt_tokens
        self.kv = 0


class EngineModel:
    """The engine. Whoever drives it owns the time: seconds on any clock that does not go backwards.

    Call :meth:`step` when the engine is idle and something was submitted, and again at each ``Step.ends``
    until it returns ``None``. Not thread-safe.
    """

    def __init__(self, parameters: EngineParameters | None = None) -> None:
        self.parameters = parameters or EngineParameters()
        self._waiting: deque[_Sequence] = deque()
        self._running: list[_Sequence] = []  # by admission: the last one is the youngest
        self._sequences: dict[int, _Sequence] = {}
        self._kv = 0
        self._step_ends = float("-inf")
        self._shown = Gauges()  # until the step under way ends
        self._next = Gauges()  # from then on

    def submit(self, now: float, request: Request) -> float:
        """Queue ``request``; returns when the engine next looks at its queue: ``now``, or the step's end.

        ``ValueError`` for a request that could never finish here or whose id is in the engine already.
        """
        if request.prompt_tokens < 1 or request.output_tokens < 1:
            raise ValueError(f"request {request.id} needs at least 1 prompt token and 1 output token")
        largest = request.prompt_tokens + request.output_tokens - 1
        capacity = self.parameters.kv_capacity
        if largest > capacity:
            raise ValueError(f"request {request.id} needs {largest} KV tokens, the engine has {capacity}")
        if request.id in self._sequences:
            raise ValueError(f"request {request.id} is in the engine already")
        sequence = _Sequence(request)
        self._sequences[request.id] = sequence
        self._waiting.append(sequence)
        return max(now, self._step_ends)

    def cancel(self, request_id: int) -> bool:
        """Take a request out and free its KV cache at once; ``False`` if it is not in the engine.

        The step under way still takes its time and still names the request: its driver skips it there.
        """
        sequence = self._sequences.pop(request_id, None)
        if sequence is None:
            return False
        if sequence in self._running:
            self._running.remove(sequence)
            self._kv -= sequence.kv
        else:
            self._waiting.remove(sequence)
        if not self._sequences:
            # No later step would say so.
            self._next = self._next._replace(running=0, waiting=0, kv_tokens=0)
        return True

    def gauges(self, now: float) -> Gauges:
        """The figures as of the last step that had ended at ``now``."""
        return self._next if now >= self._step_ends else self._shown

    def step(self, now: float) -> Step | None:
        """Begin a step at ``now``; ``None`` when there is nothing to do.

        ``ValueError`` while the step before has not ended.
        """
        if now < self._step_ends:
            raise ValueError(f"the step under way ends at {self._step_ends}, not before {now}")
        if not self._sequences:
            return None
        preempted = self._make_room()
        decoding = [sequence for sequence in self._running if sequence.computed == sequence.goal]
        for sequence in decoding:
            sequence.kv += 1
        self._kv += len(decoding)
        budget, seconds, prefilled = self._prefill(self.parameters.step_tokens - len(decoding))
        if not preempted:
            admitted_seconds, admitted = self._admit(budget)
            seconds += admitted_seconds
            prefilled += admitted
        parameters = self.parameters
        seconds += (
            parameters.step_s + parameters.sequence_s * len(self._running) + parameters.kv_token_s * self._kv
        )
        return self._conclude(now, seconds / parameters.speed, decoding + prefilled, preempted)

    def _make_room(self) -> list[int]:
        # A lone sequence always has room: submit() saw to that.
        preempted: list[int] = []
        growth = sum(sequence.computed == sequence.goal for sequence in self._running)
        while self._kv + growth > self.parameters.kv_capacity:
            youngest = self._running.pop()
            growth -= youngest.computed == youngest.goal
            self._kv -= youngest.kv
            youngest.kv = youngest.computed = 0
            youngest.goal = youngest.prompt + youngest.produced
            self._waiting.appendleft(youngest)
            preempted.append(youngest.request_id)
        return preempted

    def _prefill(self, budget: int) -> tuple[int, float, list[_Sequence]]:
        """Go on with the prompts under way: the budget left, the seconds, and the ones now complete."""
        seconds = 0.0
        complete: list[_Sequence] = []
        for sequence in self._running:
            if budget == 0:
                break
            if sequence.computed == sequence.goal:
                continue
            chunk = min(budget, sequence.goal - sequence.computed)
            budget -= chunk
            seconds += self._compute(sequence, chunk)
            if sequence.computed == sequence.goal:
                complete.append(sequence)
        return budget, seconds, complete

    def _admit(self, budget: int) -> tuple[float, list[_Sequence]]:
        """Admit from the queue's head: the seconds, and the ones whose prompt is complete at once."""
        parameters = self.parameters
        seconds = 0.0
        complete: list[_Sequence] = []
        limit = parameters.kv_capacity * (1 - parameters.watermark)
        while self._waiting and budget > 0 and len(self._running) < parameters.slots:
            sequence = self._waiting[0]
            # An empty engine takes any request, or one above the watermark would wait for ever.
            if self._running and self._kv + sequence.goal > limit:
                break
            self._waiting.popleft()
            self._running.append(sequence)
            sequence.kv = sequence.goal
            self._kv += sequence.goal
            chunk = min(budget, sequence.goal)
            budget -= chunk
            seconds += self._compute(sequence, chunk)
            if sequence.computed == sequence.goal:
                complete.append(sequence)
        return seconds, complete

    def _compute(self, sequence: _Sequence, chunk: int) -> float:
        context = sequence.computed + chunk / 2
        sequence.computed += chunk
        parameters = self.parameters
        return parameters.prefill_token_s * chunk * (1 + context / parameters.prefill_context)

    def _conclude(self, now: float, duration: float, served: list[_Sequence], preempted: list[int]) -> Step:
        before = self._next
        prompt_tokens = 0
        tokens: list[int] = []
        first: list[int] = []
        finished: list[int] = []
        for sequence in served:
            request_id = sequence.request_id
            tokens.append(request_id)
            sequence.produced += 1
            if sequence.produced == 1:
                first.append(request_id)
                prompt_tokens += sequence.prompt
            if sequence.produced == sequence.output:
                finished.append(request_id)
                self._kv -= sequence.kv
                del self._sequences[request_id]
        if finished:
            self._running = [s for s in self._running if s.produced < s.output]
        self._step_ends = now + duration
        self._shown = before
        self._next = Gauges(
            running=len(self._running),
            waiting=len(self._waiting),
            kv_tokens=self._kv,
            finished=before.finished + len(finished),
            prompt_tokens=before.prompt_tokens + prompt_tokens,
            generated_tokens=before.generated_tokens + len(tokens),
            preemptions=before.preemptions + len(preempted),
        )
        return Step(self._step_ends, duration, tuple(tokens), tuple(first), tuple(finished), tuple(preempted))
