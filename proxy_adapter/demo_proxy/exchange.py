"""One request's way to an instance and its answer's way back, counted on every path."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
from starlette.types import Send

from proxy_adapter import Dispatch, Strategy
from proxy_adapter.demo_proxy.answers import error_event, send_error
from proxy_adapter.demo_proxy.failure_log import FailureLog, describe, reason_of
from proxy_adapter.demo_proxy.headers import INSTANCE_HEADER, Headers, response_headers, value_of
from proxy_adapter.demo_proxy.instances import Instance
from proxy_adapter.demo_proxy.prompts import Work

# Errors of httpx that mean: no connection, so nothing was sent and another instance may be asked.
_NOT_CONNECTED = (httpx.ConnectError, httpx.ConnectTimeout)
_TOO_MANY = 429
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class UpstreamStatusError(Exception):
    """An instance answered with a 5xx or 429. The answer passes to the client; the strategy hears of it."""


class Upstream:
    """What all exchanges of one worker share."""

    def __init__(
        self,
        strategy: Strategy,
        transport: httpx.AsyncBaseTransport,
        failures: FailureLog,
        *,
        connect_timeout_s: float,
        answer_timeout_s: float,
    ) -> None:
        self.strategy = strategy
        self.transport = transport
        self.failures = failures
        self.answer_timeout_s = answer_timeout_s
        # No limit between two reads: a model may think for long, and a client that gave up disconnects.
        self.timeouts = {"connect": connect_timeout_s, "read": None, "write": None, "pool": None}


class Exchange:
    """A buffered request, sent to one instance, or to a second one where the first took no connection.

    ``run`` is one task; cancelling it closes the upstream connection, so that the engine stops working for nobody,
    and releases the count. ``give_up_waiting`` may be called from outside while no headers have come.
    """

    def __init__(
        self,
        upstream: Upstream,
        instances: Sequence[Instance],
        send: Send,
        *,
        method: str,
        target: bytes,
        headers: Headers,
        body: bytes,
        work: Work,
    ) -> None:
        self._upstream = upstream
        self._instances = instances
        self._send = send
        self._method = method
        self._target = target
        self._headers = headers
        self._body = body
        self._work = work
        self._task: asyncio.Task[None] | None = None
        self._waiting = False
        self._overdue = False

    def give_up_waiting(self) -> None:
        """The time for the response headers is over. Without effect once they have come."""
        if self._waiting and self._task is not None:
            self._overdue = True
            self._task.cancel()

    async def run(self) -> None:
        self._task = asyncio.current_task()
        candidates = self._instances
        hint = self._work.hint()
        tokens = self._work.prompt_tokens
        while True:
            with self._upstream.strategy.dispatch(candidates, hint, prompt_tokens=tokens) as guard:
                instance = guard.instance
                try:
                    response = await self._open(instance)
                except httpx.TransportError as error:
                    guard.fail(error)
                    self._upstream.failures.failed(instance, describe(instance, error))
                    others = [one for one in candidates if one.instance_id != instance.instance_id]
                    last = candidates is not self._instances or not others
                    if last or not isinstance(error, _NOT_CONNECTED):
                        await self._answer_failure(instance, error)
                        return
                    candidates = others
                    continue
                await self._relay(instance, guard, response)
                return

    async def _open(self, instance: Instance) -> httpx.Response:
        """Send the request; return when the response headers are there. Raises ``httpx.TransportError`` only."""
        request = httpx.Request(
            self._method,
            instance.url,
            headers=[(b"host", instance.host_header), *self._headers],
            stream=httpx.ByteStream(self._body),
            extensions={
                "timeout": self._upstream.timeouts,
                # As the client wrote it: a URL object would decode, resolve and encode it again.
                "target": instance.prefix + self._target,
            },
        )
        self._waiting = True
        try:
            return await self._upstream.transport.handle_async_request(request)
        except asyncio.CancelledError:
            if self._overdue:
                limit = self._upstream.answer_timeout_s
                raise httpx.ReadTimeout(f"no response headers within {limit:g} s") from None
            raise
        finally:
            self._waiting = False

    async def _answer_failure(self, instance: Instance, error: httpx.TransportError) -> None:
        timeout = isinstance(error, httpx.TimeoutException)
        await send_error(
            self._send,
            504 if timeout else 502,
            describe(instance, error),
            "upstream_timeout" if timeout else "upstream_unreachable",
            ((INSTANCE_HEADER, instance.id_header),),
        )

    async def _relay(self, instance: Instance, guard: Dispatch[Instance], response: httpx.Response) -> None:
        """Hand the response on chunk by chunk, as the bytes that came."""
        stream = response.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        status = response.status_code
        headers = response_headers(response.headers.raw, instance.id_header)
        events = value_of(headers, b"content-type").lower().startswith(b"text/event-stream")
        awaiting_token = events and status < 400
        tail = b"\n\n"
        try:
            if status >= 500 or status == _TOO_MANY:
                # Held: an instance that refuses work in no time would else look idle and draw all of it.
                guard.fail(UpstreamStatusError(f"instance {instance.instance_id} answered {status}"))
            if status >= 500:
                self._upstream.failures.failed(instance, f"instance {instance.instance_id} answered {status}")
            else:
                self._upstream.failures.worked(instance)
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            async for chunk in stream:
                if awaiting_token:
                    awaiting_token = False
                    guard.first_token()
                if events:
                    tail = (tail + chunk)[-4:]
                await self._send({"type": "http.response.body", "body": chunk, "more_body": True})
        except httpx.TransportError as error:
            guard.fail(error)
            message = f"instance {instance.instance_id} broke off its answer: {reason_of(error)}"
            self._upstream.failures.failed(instance, message)
            in_band = events and tail.endswith(_EVENT_ENDS) and _can_append(headers)
            if not in_band:
                # Returning without the last body message makes the server drop the connection: the client must not
                # take half an answer for a whole one.
                return
            event = error_event(message, "server_error", "upstream_broke_off")
            await self._send({"type": "http.response.body", "body": event, "more_body": True})
        finally:
            await stream.aclose()
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})


def _can_append(headers: Headers) -> bool:
    """Whether bytes of our own may follow: not in a body of announced length, nor in an encoded one."""
    return not value_of(headers, b"content-length") and not value_of(headers, b"content-encoding")
