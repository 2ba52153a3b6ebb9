"""Clients of the proxy: streamed completions, counted by the clients themselves."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from tests.real.engines import MODEL_NAME

INSTANCE_HEADER = "x-loadboard-instance"
# Nothing waits this long: a stream without an event for a minute is stuck, and that is a failure.
_TIMEOUT = httpx.Timeout(60.0)


@dataclass
class Request:
    """One streamed completion; times are seconds of ``time.monotonic``."""

    max_tokens: int
    started: float = field(default_factory=time.monotonic)
    instance: str = ""  # who served it, by the proxy's header; "" until the answer's head is there
    status: int = 0
    tokens: int = 0  # completion tokens by the engine's own count, once it has ended well
    error: str = ""
    flowing: bool = False  # the first piece of text has come, the last has not
    ended: float | None = None

    @property
    def succeeded(self) -> bool:
        return self.ended is not None and not self.error


class Clients:
    """Sends requests and remembers every one."""

    def __init__(self, proxy_url: str) -> None:
        self._http = httpx.AsyncClient(
            base_url=proxy_url,
            timeout=_TIMEOUT,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self.requests: list[Request] = []

    async def close(self) -> None:
        await self._http.aclose()

    def flowing(self) -> int:
        """Requests whose text is coming in now."""
        return sum(request.flowing for request in self.requests)

    def flowing_by_instance(self) -> Counter[str]:
        return Counter(request.instance for request in self.requests if request.flowing)

    async def complete(self, max_tokens: int) -> Request:
        """One request from beginning to end; a failure is noted in it, not raised. Cancelling it hangs up."""
        request = Request(max_tokens)
        self.requests.append(request)
        try:
            await self._stream(request)
        except (httpx.HTTPError, httpx.StreamError) as error:
            request.error = f"{type(error).__name__}: {error}"
        finally:
            request.flowing = False
            request.ended = time.monotonic()
        return request

    async def _stream(self, request: Request) -> None:
        body = {
            "model": MODEL_NAME,
            "prompt": "w5 w6 w7",
            "max_tokens": request.max_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        async with self._http.stream("POST", "/v1/completions", json=body) as answer:
            request.status = answer.status_code
            request.instance = answer.headers.get(INSTANCE_HEADER, "")
            if answer.status_code != 200:
                request.error = (
                    f"status {answer.status_code}: {(await answer.aread()).decode(errors='replace')}"
                )
                return
            finished = False
            async for line in answer.aiter_lines():
                if line == "data: [DONE]":
                    finished = True
                elif line.startswith("data: "):
                    _note_event(request, json.loads(line.removeprefix("data: ")))
            if not finished and not request.error:
                request.error = "the stream ended before [DONE]"


def _note_event(request: Request, event: dict[str, object]) -> None:
    if "error" in event:
        request.error = f"error event: {event['error']}"
    elif event.get("choices"):
        request.flowing = True
    usage = event.get("usage")
    if isinstance(usage, dict):
        request.flowing = False  # the engine sends it when the request has left its books
        request.tokens = usage["completion_tokens"]


class Crowd:
    """Clients that send one short request after the other until told to stop."""

    def __init__(self, clients: Clients, size: int, max_tokens: int) -> None:
        self._clients = clients
        self._max_tokens = max_tokens
        self._stopping = False
        #: Each request with its second try, None where it needed none.
        self.sent: list[tuple[Request, Request | None]] = []
        self._tasks = [asyncio.create_task(self._one()) for _ in range(size)]

    async def stop(self) -> None:
        """Let the running requests end."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    def served_by(self, instance_id: str) -> int:
        """How many first tries this instance has answered well so far."""
        return sum(first.succeeded and first.instance == instance_id for first, _ in self.sent)

    async def _one(self) -> None:
        # As an application does: a request that came to nothing is sent once more.
        while not self._stopping:
            first = await self._clients.complete(self._max_tokens)
            second = await self._clients.complete(self._max_tokens) if first.error else None
            self.sent.append((first, second))
