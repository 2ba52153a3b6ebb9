"""The demo's clients: steady mixed traffic to one URL, a process of its own.

Open loop: requests come at random times whatever the answers do, as users do. What they ask for is mixed:
log-normal prompts and answers with some very long prompts, chats and plain completions, streamed or not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import httpx

# An overloaded or dead proxy must not make this process grow without bound.
_MOST_OPEN = 512
_REPORT_S = 10.0
_ANSWER_TIMEOUT_S = 120.0
_WORD = "word"  # four bytes: one token for whoever counts bytes


class Shape(NamedTuple):
    """What one request asks for."""

    prompt_tokens: int
    output_tokens: int
    chat: bool
    stream: bool


def draw(rng: random.Random) -> Shape:
    """One request of the mix: prompts of 220 tokens on average, every twentieth 4k to 10k; 150 tokens back."""
    if rng.random() < 0.05:
        prompt = rng.randint(4_000, 10_000)
    else:
        prompt = _log_normal(rng, mean=220.0, sigma=1.2, most=4_096)
    output = _log_normal(rng, mean=150.0, sigma=0.9, most=1_024)
    return Shape(prompt, output, chat=rng.random() < 0.5, stream=rng.random() < 0.6)


def _log_normal(rng: random.Random, *, mean: float, sigma: float, most: int) -> int:
    # The mean of a log-normal is exp(mu + sigma**2 / 2).
    return max(1, min(most, round(rng.lognormvariate(math.log(mean) - sigma * sigma / 2, sigma))))


def body(shape: Shape) -> tuple[str, bytes]:
    """Path and body of the request."""
    prompt = _WORD * shape.prompt_tokens
    asked: dict[str, Any] = {
        "model": "simulated",
        "max_tokens": shape.output_tokens,
        "stream": shape.stream,
    }
    if shape.chat:
        asked["messages"] = [{"role": "user", "content": prompt}]
        return "/v1/chat/completions", json.dumps(asked).encode()
    asked["prompt"] = prompt
    return "/v1/completions", json.dumps(asked).encode()


@dataclass
class Tally:
    """What became of the requests so far."""

    sent: int = 0
    answered: int = 0
    failed: int = 0  #: no answer, or one that is not 200
    skipped: int = 0  #: not sent because too many were open
    last_failure: str = ""

    def __str__(self) -> str:
        text = f"{self.sent} sent, {self.answered} answered, {self.failed} failed, {self.skipped} skipped"
        return f"{text}; last failure: {self.last_failure}" if self.last_failure else text


async def generate(client: httpx.AsyncClient, rate: float, rng: random.Random, tally: Tally) -> None:
    """Send ``rate`` requests per second on average until cancelled; then the open ones are cut off too."""
    open_requests: set[asyncio.Task[None]] = set()
    due = time.monotonic()
    try:
        while True:
            due += rng.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            shape = draw(rng)
            if len(open_requests) >= _MOST_OPEN:
                tally.skipped += 1
                continue
            task = asyncio.create_task(_one(client, shape, tally))
            open_requests.add(task)
            task.add_done_callback(open_requests.discard)
    finally:
        for task in open_requests:
            task.cancel()
        await asyncio.gather(*open_requests, return_exceptions=True)


async def _one(client: httpx.AsyncClient, shape: Shape, tally: Tally) -> None:
    path, content = body(shape)
    tally.sent += 1
    try:
        async with client.stream("POST", path, content=content) as answer:
            async for _ in answer.aiter_bytes():
                pass
    except httpx.HTTPError as error:
        tally.failed += 1
        tally.last_failure = f"{type(error).__name__}: {error}"
        return
    if answer.status_code == 200:
        tally.answered += 1
    else:
        tally.failed += 1
        tally.last_failure = f"status {answer.status_code}"


async def _run(url: str, rate: float, seed: int | None) -> None:
    tally = Tally()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
    headers = {"content-type": "application/json"}
    async with httpx.AsyncClient(
        base_url=url, trust_env=False, limits=limits, headers=headers, timeout=_ANSWER_TIMEOUT_S
    ) as client:
        sending = asyncio.create_task(generate(client, rate, random.Random(seed), tally))
        for signum in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(signum, sending.cancel)
        while not sending.done():
            await asyncio.wait({sending}, timeout=_REPORT_S)
            print(tally, flush=True)
    if not sending.cancelled():
        sending.result()


def main(argv: Sequence[str] | None = None) -> int:
    """Send traffic until SIGTERM or SIGINT, and say every ten seconds what became of it."""
    parser = argparse.ArgumentParser(
        prog="loadboard.demo.load", description="Steady mixed completion traffic."
    )
    parser.add_argument("url", help="where to send it, e.g. http://127.0.0.1:8000")
    parser.add_argument("--rate", type=float, default=18.0, help="requests per second (default %(default)s)")
    parser.add_argument("--seed", type=int, help="for the same traffic again (default: different each time)")
    args = parser.parse_args(argv)
    if not args.rate > 0:
        parser.error(f"--rate must be greater than 0, not {args.rate}")
    asyncio.run(_run(args.url, args.rate, args.seed))
    return 0


if __name__ == "__main__":
    sys.exit(main())
