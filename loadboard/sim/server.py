"""A simulated engine as an HTTP server that looks like vLLM: OpenAI API, /health, /metrics.

It generates nothing; it takes the time that the engine model says and answers with filler text. It names
itself: the model is ``simulated``, the server header ``loadboard-sim``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from loadboard.sim import exposition
from loadboard.sim.live import LiveEngine, Ticket
from loadboard.sim.model import EngineModel, EngineParameters
from loadboard.sim.openai import BadRequest, Call, error_body

SERVER_NAME = "loadboard-sim"


def create_app(parameters: EngineParameters, *, stream_interval: int = 1) -> Starlette:
    """The ASGI application of one engine.

    ``stream_interval``: tokens per event of a streamed answer, except that the first token comes alone
    (vLLM's ``--stream-interval``).
    """
    engine = LiveEngine(EngineModel(parameters))
    started = time.time()

    @contextlib.asynccontextmanager
    async def running(_app: Starlette) -> AsyncIterator[None]:
        steps = asyncio.create_task(engine.run(), name="engine-steps")
        try:
            yield
        finally:
            steps.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await steps

    async def completions(request: Request) -> Response | _Generation:
        body = await request.body()
        try:
            call = Call.of(body, chat=request.url.path.startswith("/v1/chat/"))
            needed, limit = call.prompt_tokens + call.max_tokens, parameters.kv_capacity
            if needed > limit:
                raise BadRequest(f"the prompt and max_tokens need {needed} tokens, the KV cache has {limit}")
        except BadRequest as error:
            return JSONResponse(error_body(error), error.status)
        return _Generation(engine, call, stream_interval)

    async def models(_request: Request) -> Response:
        model = {"id": exposition.MODEL_NAME, "object": "model", "created": int(started)}
        return JSONResponse({"object": "list", "data": [model | {"owned_by": SERVER_NAME}]})

    async def health(_request: Request) -> Response:
        return Response()

    async def metrics(request: Request) -> Response:
        # As in vLLM, only the path with the slash filters.
        asked = request.query_params.getlist("name[]") if request.url.path.endswith("/") else []
        page = exposition.page(
            engine.gauges(), kv_capacity=parameters.kv_capacity, started=started, names=asked or None
        )
        return Response(page, headers={"content-type": exposition.CONTENT_TYPE})

    return Starlette(
        routes=[
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/v1/chat/completions", completions, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/metrics/", metrics),
        ],
        lifespan=running,
    )


def create_server(parameters: EngineParameters, *, stream_interval: int = 1) -> uvicorn.Server:
    """The server of one engine; run it with the listening socket of its own."""
    config = uvicorn.Config(
        create_app(parameters, stream_interval=stream_interval),
        log_level="warning",
        access_log=False,
        server_header=False,
        headers=[("server", SERVER_NAME)],
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


class _Generation:
    """The answer to one call, as an ASGI application: a client that goes away cancels its request."""

    def __init__(self, engine: LiveEngine, call: Call, stream_interval: int) -> None:
        self._engine = engine
        self._call = call
        self._stream_interval = stream_interval

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = self._call
        interval = self._stream_interval if call.stream else call.max_tokens
        with self._engine.request(call.prompt_tokens, call.max_tokens, interval) as ticket:
            watch = asyncio.create_task(_disconnected(receive), name="disconnect-watch")
            watch.add_done_callback(lambda _: ticket.abandon())
            try:
                if call.stream:
                    await self._stream(ticket, send)
                elif await self._all(ticket):
                    await JSONResponse(call.answer())(scope, receive, send)
            finally:
                watch.cancel()

    async def _all(self, ticket: Ticket) -> bool:
        came = 0
        while new := await ticket.take():
            came += new
        return came == self._call.max_tokens

    async def _stream(self, ticket: Ticket, send: Send) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        sent, most = 0, self._call.max_tokens
        while new := await ticket.take():
            event = self._call.chunk(new, first=sent == 0, last=sent + new == most)
            sent += new
            if sent == most:
                event += self._call.end()
            await send({"type": "http.response.body", "body": event, "more_body": sent < most})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def main(argv: Sequence[str] | None = None) -> int:
    """Serve one engine until SIGTERM or SIGINT; says on standard output where it listens."""
    defaults = EngineParameters()
    parser = argparse.ArgumentParser(
        prog="loadboard.sim.server", description="One simulated inference engine over HTTP."
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--port", type=int, default=0, help="port; 0, the default, takes a free one")
    parser.add_argument("--slots", type=int, default=defaults.slots, help="batch size (default %(default)s)")
    parser.add_argument(
        "--kv-capacity", type=int, default=defaults.kv_capacity, help="KV tokens (default %(default)s)"
    )
    parser.add_argument(
        "--speed", type=float, default=defaults.speed, help="1 is the model's speed (default %(default)s)"
    )
    parser.add_argument(
        "--stream-interval", type=int, default=1, help="tokens per streamed event (default %(default)s)"
    )
    args = parser.parse_args(argv)
    try:
        parameters = EngineParameters(slots=args.slots, kv_capacity=args.kv_capacity, speed=args.speed)
    except ValueError as error:
        parser.error(str(error))
    if args.stream_interval < 1:
        parser.error(f"--stream-interval must be at least 1, not {args.stream_interval}")

    family = socket.AF_INET6 if ":" in args.host else socket.AF_INET
    try:
        listener = socket.create_server((args.host, args.port), family=family, backlog=1024)
    except OSError as error:
        print(f"cannot listen on {args.host} port {args.port}: {error.strerror or error}", file=sys.stderr)
        return 1
    with listener:
        # Connections inherit it. asyncio sets it by itself only where it made the listening socket; without it a
        # token may wait 40 ms for the client's acknowledgement of the one before.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        host, port = listener.getsockname()[:2]
        name = f"[{host}]" if family == socket.AF_INET6 else host
        print(f"simulated engine on http://{name}:{port}", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            create_server(parameters, stream_interval=args.stream_interval).run(sockets=[listener])
    return 0


if __name__ == "__main__":
    sys.exit(main())
