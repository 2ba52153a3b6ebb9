"""Running means of the fleet's requests: how long their prompts and answers are."""

from __future__ import annotations

import math

TAU_S = 60.0
#: Finished requests per second that the configured start values count for; they fade with the window.
START_RATE = 0.1
#: What a request has generated so far, as a share of what it will have at its end. The start values of the
#: routing study have this ratio (120 of 200 tokens): long answers are more often met while they run.
GENERATED_SHARE = 0.6
#: Bounds of both means, in tokens.
LEAST, MOST = 1.0, 1e6


class Means:
    """Means over all instances, weighted by their finished requests, over about the last minute."""

    def __init__(self, prompt_tokens: float, generated_tokens: float) -> None:
        self._finished = START_RATE
        self._prompt = START_RATE * prompt_tokens
        self._generated = START_RATE * generated_tokens / GENERATED_SHARE
        self._at_ns = 0

    @property
    def prompt_tokens(self) -> float:
        """Prompt tokens of a request, 1..10^6."""
        return min(max(self._prompt / self._finished, LEAST), MOST)

    @property
    def generated_tokens(self) -> float:
        """Tokens that a request has generated so far, 1..10^6."""
        return min(max(GENERATED_SHARE * self._generated / self._finished, LEAST), MOST)

    def sampled(
        self,
        finished_per_s: float | None,
        mean_prompt: float | None,
        tokens_per_s: float | None,
        mono_ns: int,
    ) -> None:
        """Take in what one poll said; without finished requests, or with a part unknown, nothing changes."""
        last_ns, self._at_ns = self._at_ns, mono_ns
        if not last_ns or not finished_per_s or not mean_prompt or tokens_per_s is None:
            return
        step = -math.expm1(-max(mono_ns - last_ns, 0) / 1e9 / TAU_S)
        self._finished += (finished_per_s - self._finished) * step
        self._prompt += (finished_per_s * mean_prompt - self._prompt) * step
        self._generated += (tokens_per_s - self._generated) * step
