"""The ASGI application of one worker: ``/v1/*`` passes through, ``/health`` tells how the worker sees things."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from proxy_adapter import Strategy, build_instance_strategy
from proxy_adapter.demo_proxy.answers import error_body, send_error
from proxy_adapter.demo_proxy.client import (
    BodyTooLargeError,
    ClientGoneError,
    disconnected,
    read_body,
    refuse_body,
    start,
    stop,
)
from proxy_adapter.demo_proxy.connections import Connections
from proxy_adapter.demo_proxy.exchange import Exchange, Upstream
from proxy_adapter.demo_proxy.failure_log import FailureLog
from proxy_adapter.demo_proxy.headers import TAGS_HEADER, Headers, list_of, request_headers
from proxy_adapter.demo_proxy.instances import FixedInstances, InstanceSource, make_instance
from proxy_adapter.demo_proxy.prompts import work_of
from proxy_adapter.demo_proxy.settings import ProxySettings
from proxy_adapter.demo_proxy.table_instances import TableInstances
from proxy_adapter.pools import read_tags

logger = logging.getLogger("loadboard.proxy_adapter")


class PassThrough:
    """``/v1/*``, any method."""

    def __init__(self, source: InstanceSource, upstream: Upstream, max_body_bytes: int) -> None:
        self._source = source
        self._upstream = upstream
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if "/." in path and not {".", ".."}.isdisjoint(path.split("/")):
            # Resolved behind us, such a path would leave /v1/ for the engine's own administration.
            await send_error(send, 404, "a path must not hold '.' or '..' segments", "not_found")
            return
        try:
            tags = _tags_asked(scope["headers"])
        except ValueError as error:
            await send_error(send, 400, f"{TAGS_HEADER.decode()}: {error}", "bad_tags")
            return
        try:
            body = await read_body(receive, scope["headers"], self._max_body_bytes)
        except ClientGoneError:
            return
        except BodyTooLargeError:
            await refuse_body(receive, send, scope["headers"], self._max_body_bytes)
            return
        instances = self._source.current()
        if not instances:
            await send_error(
                send,
                503,
                "no instances yet: the table names none; start the monitor, or name them with --instance",
                "no_instances",
                ((b"retry-after", b"1"),),
            )
            return
        query: bytes = scope["query_string"]
        target: bytes = scope["raw_path"]
        method: str = scope["method"]
        exchange = Exchange(
            self._upstream,
            instances,
            send,
            method=method,
            target=target + b"?" + query if query else target,
            headers=request_headers(method, scope["headers"], body),
            body=body,
            work=work_of(path, body)._replace(tags=tags),
        )
        await _run_for_client(exchange, receive, self._upstream.answer_timeout_s)


def _tags_asked(headers: Headers) -> dict[str, str]:
    """The tags that the client asks for. ``ValueError`` names the one that is malformed."""
    text = list_of(headers, TAGS_HEADER)
    return {} if text is None else read_tags(text.decode("utf-8", "replace"), ",")


async def _run_for_client(exchange: Exchange, receive: Receive, answer_timeout_s: float) -> None:
    """Run the exchange for as long as the client is there. The server tells of its going in ``receive`` only."""
    work = start(exchange.run())
    gone = start(disconnected(receive))
    try:
        done, _ = await asyncio.wait(
            (work, gone), timeout=answer_timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            exchange.give_up_waiting()
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
    finally:
        gone.cancel()
        await stop(work)
    if not work.cancelled():
        work.result()


def make_source(settings: ProxySettings) -> InstanceSource:
    """The named instances, or those of the table. ``ValueError`` where neither is given."""
    if settings.instances:
        return FixedInstances(tuple(make_instance(url, id_) for id_, url in settings.instances))
    if settings.table is None:
        raise ValueError("without a table the instances must be named")
    return TableInstances(settings.table)


def create_app(
    settings: ProxySettings, strategy: Strategy, source: InstanceSource | None = None
) -> Starlette:
    """The application over a strategy, which it closes when it shuts down."""
    instances = make_source(settings) if source is None else source
    connections = Connections()
    upstream = Upstream(
        strategy,
        connections,
        FailureLog(),
        connect_timeout_s=settings.connect_timeout_s,
        answer_timeout_s=settings.upstream_timeout_s,
    )

    async def health(request: Request) -> Response:
        return JSONResponse(
            {
                "status": "ok",
                "pid": os.getpid(),
                "strategy": strategy.name,
                "instances": [instance.instance_id for instance in instances.current()],
                "table": strategy.status(),
            }
        )

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        # Opens the table now rather than at the first request, so that the log tells at once if that fails.
        strategy.status()
        pools = f", by tag {settings.pools}, else {settings.strategy}" if settings.pools else ""
        logger.info("instance strategy: %s%s (table: %s)", strategy.name, pools, settings.table or "none")
        chores = [start(instances.run()), start(connections.run())]
        try:
            yield
        finally:
            for chore in chores:
                await stop(chore)
            await connections.aclose()
            strategy.close()

    app = Starlette(
        routes=[
            Route("/health", health),
            Route("/v1/{path:path}", PassThrough(instances, upstream, settings.max_body_bytes)),
        ],
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # registered for nothing else
    message = f"{request.method} {request.url.path}: {error.detail}; this proxy serves /v1/* and /health"
    body = error_body(message, "invalid_request_error", "not_found")
    return Response(body, error.status_code, error.headers, "application/json")


async def _internal_error(request: Request, error: Exception) -> Response:
    return Response(error_body("the proxy failed", "server_error", "internal"), 500, None, "application/json")


def worker_app() -> Starlette:
    """What uvicorn calls in each worker process."""
    settings = ProxySettings.from_environment(os.environ)
    return create_app(
        settings, build_instance_strategy(settings.strategy, pools=settings.pools, table=settings.table)
    )
