"""Failing instances and clients that leave: what the other side sees, and that each count ends exactly once."""

from __future__ import annotations

import asyncio
import json
import logging
import weakref

import httpx
import pytest

from tests.unit.proxy_adapter.demo_proxy_rig import (
    OK,
    SSE_HEAD,
    Proxy,
    Received,
    Server,
    answer_ok,
    proxying,
    refusing,
    serving,
    until_closed,
)
from tests.waiting import wait_until_async

POST = b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 14\r\n\r\n{"prompt":"a"}'


async def _silent(request: Received) -> None:
    await until_closed(request)


def _failures(proxy: Proxy) -> list[list[str]]:
    return [[type(error).__name__ for error in guard.failures] for guard in proxy.strategy.guards]


def test_a_client_that_leaves_before_the_headers_ends_the_upstream_request() -> None:
    async def main() -> None:
        async with serving(_silent) as server, proxying(server) as proxy:
            _, writer = await proxy.connect(POST)
            await wait_until_async(lambda: server.requests, what="the request upstream")
            assert server.gone == 0
            writer.close()
            await wait_until_async(lambda: server.gone == 1, what="the close upstream")
            await proxy.strategy.all_released()
            assert _failures(proxy) == [[]]

    asyncio.run(main())


def test_a_client_that_leaves_in_the_middle_of_a_stream_ends_the_upstream_request() -> None:
    async def script(request: Received) -> None:
        await request.answer(SSE_HEAD)
        await request.chunk(b"data: one\n\n")
        await until_closed(request)

    async def main() -> None:
        async with serving(script) as server, proxying(server) as proxy:
            reader, writer = await proxy.connect(POST)
            await reader.readuntil(b"data: one\n\n")
            assert proxy.strategy.guards[0].releases == 0
            writer.close()
            await wait_until_async(lambda: server.gone == 1, what="the close upstream")
            await proxy.strategy.all_released()
            assert _failures(proxy) == [[]]

    asyncio.run(main())


def test_a_client_that_leaves_while_it_does_not_read_ends_the_upstream_request() -> None:
    async def script(request: Received) -> None:
        await request.answer(SSE_HEAD)
        while not request.writer.is_closing():
            await request.chunk(b"data: " + b"x" * 60_000 + b"\n\n")

    async def main() -> None:
        async with serving(script) as server, proxying(server) as proxy:
            reader, writer = await proxy.connect(POST)
            await reader.readuntil(b"\r\n\r\n")
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await wait_until_async(lambda: proxy.strategy.guards[0].first_tokens)
            writer.transport.abort()
            await wait_until_async(lambda: server.gone == 1, what="the close upstream")
            await proxy.strategy.all_released()
            assert _failures(proxy) == [[]]

    asyncio.run(main())


def test_a_client_that_leaves_while_it_still_sends_costs_nothing() -> None:
    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server) as proxy:
            _, writer = await proxy.connect(POST[:-3])
            writer.close()
            assert (await proxy.client.get("/v1/models")).status_code == 200
            assert len(server.requests) == len(proxy.strategy.guards) == 1

    asyncio.run(main())


def test_no_connection_is_kept_for_a_cancelled_request() -> None:
    async def main() -> None:
        async with serving(_silent) as server, proxying(server) as proxy:
            for count in range(1, 4):
                _, writer = await proxy.connect(POST)
                await wait_until_async(lambda count=count: len(server.requests) == count)  # type: ignore[misc]
                writer.close()
                await wait_until_async(lambda count=count: server.gone == count)  # type: ignore[misc]
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_a_refused_connection_is_retried_on_another_instance() -> None:
    async def main() -> None:
        async with refusing() as dead, serving(answer_ok) as alive, proxying(dead, alive) as proxy:
            response = await proxy.client.post("/v1/completions", json={"prompt": "abcdefgh"})
            assert response.status_code == 200
            assert response.headers["x-loadboard-instance"] == "s1"
            assert json.loads(alive.requests[0].body) == {"prompt": "abcdefgh"}
            await proxy.strategy.all_released()
            assert proxy.strategy.candidates == [["s0", "s1"], ["s1"]]
            assert _failures(proxy) == [["ConnectError"], []]
            assert [guard.prompt_tokens for guard in proxy.strategy.guards] == [2, 2]

    asyncio.run(main())


def test_there_is_one_retry_not_more() -> None:
    async def main() -> None:
        async with (
            refusing() as one,
            refusing() as two,
            serving(answer_ok) as three,
            proxying(one, two, three) as proxy,
        ):
            response = await proxy.client.post("/v1/completions", json={})
            assert response.status_code == 502
            assert response.headers["x-loadboard-instance"] == "s1"
            assert proxy.strategy.candidates == [["s0", "s1", "s2"], ["s1", "s2"]]
            assert _failures(proxy) == [["ConnectError"], ["ConnectError"]]
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_a_lone_instance_that_refuses_is_a_502_in_openai_form() -> None:
    async def main() -> None:
        async with refusing() as dead, proxying(dead) as proxy:
            response = await proxy.client.post("/v1/completions", json={})
            assert response.status_code == 502
            assert response.headers["content-type"] == "application/json"
            error = response.json()["error"]
            assert set(error) == {"message", "type", "param", "code"}
            assert (error["type"], error["code"]) == ("server_error", "upstream_unreachable")
            assert "s0" in error["message"]
            assert _failures(proxy) == [["ConnectError"]]
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_an_instance_that_takes_the_request_and_hangs_up_is_not_retried() -> None:
    async def script(request: Received) -> None:
        request.writer.close()

    async def main() -> None:
        async with serving(script) as bad, serving(answer_ok) as good, proxying(bad, good) as proxy:
            response = await proxy.client.post("/v1/completions", json={})
            assert response.status_code == 502
            assert "broke the connection" in response.json()["error"]["message"]
            assert len(proxy.strategy.guards[0].failures) == 1
            assert good.requests == []
            await proxy.strategy.all_released()

    asyncio.run(main())


async def _answer_once_then_close(request: Received) -> None:
    """As a server whose keep-alive time is over just when the second request of a connection comes in."""
    if request.writer in _used:
        request.writer.close()
        return
    _used.add(request.writer)
    await request.answer(OK)


_used: weakref.WeakSet[asyncio.StreamWriter] = weakref.WeakSet()


def test_a_request_that_meets_a_connection_being_closed_is_sent_once_more_to_the_same_instance() -> None:
    async def main() -> None:
        async with (
            serving(_answer_once_then_close) as server,
            serving(answer_ok) as other,
            proxying(server, other) as proxy,
        ):
            for _ in range(3):
                response = await proxy.client.post("/v1/completions", json={"prompt": "abcd"})
                assert (response.status_code, response.headers["x-loadboard-instance"]) == (200, "s0")
            assert {request.body for request in server.requests} == {b'{"prompt":"abcd"}'}
            assert len(server.requests) == 5, "the second and the third twice"
            assert other.requests == []
            assert _failures(proxy) == [[], [], []]
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_a_request_is_not_sent_again_when_the_instance_took_its_time_to_hang_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("proxy_adapter.demo_proxy.connections._CLOSING_S", -1.0)

    async def main() -> None:
        async with serving(_answer_once_then_close) as server, proxying(server) as proxy:
            statuses = [(await proxy.client.post("/v1/completions", json={})).status_code for _ in range(2)]
            assert statuses == [200, 502]
            assert len(server.requests) == 2

    asyncio.run(main())


def test_a_request_is_not_sent_again_when_something_came_back() -> None:
    answers = [b"SSH-2.0-OpenSSH_9.2\r\n\r\n", OK]

    async def script(request: Received) -> None:
        await request.answer(answers.pop())

    async def main() -> None:
        async with serving(script) as server, proxying(server) as proxy:
            statuses = [(await proxy.client.post("/v1/completions", json={})).status_code for _ in range(2)]
            assert statuses == [200, 502]
            assert len(server.requests) == 2

    asyncio.run(main())


def test_an_instance_that_dies_over_a_request_is_told_by_the_first_error() -> None:
    async def main() -> None:
        async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"{}")
            await Received(b"", [], b"", reader, writer).answer(OK)
            await reader.readuntil(b"{}")
            listener.close()
            writer.close()

        listener = await asyncio.start_server(connection, "127.0.0.1", 0)
        server = Server("127.0.0.1", listener.sockets[0].getsockname()[1])
        async with serving(answer_ok) as other, proxying(server, other) as proxy:
            assert (await proxy.client.post("/v1/completions", json={})).status_code == 200
            response = await proxy.client.post("/v1/completions", json={})
            assert response.status_code == 502
            assert "broke the connection" in response.json()["error"]["message"]
            assert _failures(proxy) == [[], ["RemoteProtocolError"]]
            assert other.requests == [], "the request may have been begun"
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_an_instance_that_answers_garbage_is_a_502() -> None:
    async def script(request: Received) -> None:
        await request.answer(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
        request.writer.close()

    async def main() -> None:
        async with serving(script) as server, proxying(server) as proxy:
            assert (await proxy.client.post("/v1/completions", json={})).status_code == 502
            assert _failures(proxy) == [["RemoteProtocolError"]]
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_an_instance_that_sends_no_headers_in_time_is_a_504_and_is_closed() -> None:
    async def main() -> None:
        async with serving(_silent) as server, proxying(server, upstream_timeout_s=0.2) as proxy:
            response = await proxy.client.post("/v1/completions", json={})
            assert response.status_code == 504
            assert response.json()["error"]["code"] == "upstream_timeout"
            assert "0.2 s" in response.json()["error"]["message"]
            assert _failures(proxy) == [["ReadTimeout"]]
            await wait_until_async(lambda: server.gone == 1, what="the close upstream")
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_the_time_limit_ends_with_the_headers() -> None:
    async def main() -> None:
        limit_over = asyncio.Event()

        async def script(request: Received) -> None:
            await request.answer(SSE_HEAD)
            await request.chunk(b"data: 1\n\n")
            await limit_over.wait()
            await request.answer(b"0\r\n\r\n")

        async with serving(script) as server, proxying(server, upstream_timeout_s=0.1) as proxy:
            async with proxy.client.stream("POST", "/v1/completions", json={}) as response:
                assert response.status_code == 200
                asyncio.get_running_loop().call_later(0.3, limit_over.set)
                assert await response.aread() == b"data: 1\n\n"
            assert _failures(proxy) == [[]]
            await proxy.strategy.all_released()

    asyncio.run(main())


@pytest.mark.parametrize("status", [429, 500, 503, 599])
def test_a_5xx_or_429_passes_unchanged_and_counts_as_failed(status: int) -> None:
    async def script(request: Received) -> None:
        await request.answer(
            b"HTTP/1.1 %d Oops\r\nRetry-After: 3\r\nContent-Type: text/event-stream\r\nContent-Length: 4\r\n\r\nfull"
            % status
        )

    async def main() -> None:
        async with serving(script) as server, serving(answer_ok) as other, proxying(server, other) as proxy:
            response = await proxy.client.post("/v1/completions", json={})
            assert (response.status_code, response.content) == (status, b"full")
            assert response.headers["retry-after"] == "3"
            assert _failures(proxy) == [["UpstreamStatusError"]]
            assert proxy.strategy.guards[0].first_tokens == 0
            assert other.requests == []
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_a_stream_that_breaks_off_between_events_ends_with_an_error_event_and_no_done() -> None:
    async def script(request: Received) -> None:
        await request.answer(SSE_HEAD)
        await request.chunk(b"data: one\n\n")
        request.writer.close()

    async def main() -> None:
        async with serving(script) as server, proxying(server) as proxy:
            response = await proxy.client.post("/v1/completions", json={})
            first, second, rest = response.content.split(b"\n\n")
            assert first == b"data: one"
            assert rest == b""
            error = json.loads(second.removeprefix(b"data: "))["error"]
            assert (error["type"], error["code"]) == ("server_error", "upstream_broke_off")
            assert b"[DONE]" not in response.content
            assert len(proxy.strategy.guards[0].failures) == 1
            await proxy.strategy.all_released()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("head", "part"),
    [
        pytest.param(SSE_HEAD, b"9\r\ndata: one\r\n", id="in-the-middle-of-an-event"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"6\r\nsome\n\n\r\n", id="no-events"
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n", b"some", id="announced-length"),
        pytest.param(
            SSE_HEAD.replace(b"\r\n\r\n", b"\r\nContent-Encoding: br\r\n\r\n"), b"2\r\n\n\n\r\n", id="encoded"
        ),
    ],
)
def test_an_answer_that_breaks_off_elsewhere_is_never_ended_cleanly(head: bytes, part: bytes) -> None:
    async def script(request: Received) -> None:
        await request.answer(head + part)
        request.writer.close()

    async def main() -> None:
        async with serving(script) as server, proxying(server) as proxy:
            request = proxy.client.build_request("POST", "/v1/completions", json={})
            response = await proxy.client.send(request, stream=True)
            with pytest.raises(httpx.RemoteProtocolError):
                async for _ in response.aiter_raw():
                    pass
            await response.aclose()
            assert len(proxy.strategy.guards[0].failures) == 1
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_a_shutdown_lets_a_stream_end() -> None:
    async def main() -> None:
        finish = asyncio.Event()

        async def script(request: Received) -> None:
            await request.answer(SSE_HEAD)
            await request.chunk(b"data: 1\n\n")
            await finish.wait()
            await request.chunk(b"data: [DONE]\n\n")
            await request.answer(b"0\r\n\r\n")

        async with serving(script) as server, proxying(server) as proxy:
            async with proxy.client.stream("POST", "/v1/completions", json={}) as response:
                parts = response.aiter_raw()
                await parts.__anext__()
                proxy.server.should_exit = True
                await wait_until_async(lambda: not proxy.server.servers[0].is_serving())
                finish.set()
                assert [part async for part in parts] == [b"data: [DONE]\n\n"]
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_a_shutdown_that_takes_too_long_cuts_the_stream_and_releases_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def script(request: Received) -> None:
        await request.answer(SSE_HEAD)
        await request.chunk(b"data: 1\n\n")
        await until_closed(request)

    async def main() -> None:
        async with serving(script) as server:
            async with proxying(server) as proxy:
                proxy.server.config.timeout_graceful_shutdown = 1
                reader, writer = await proxy.connect(POST)
                await reader.readuntil(b"data: 1\n\n")
                strategy = proxy.strategy
            await strategy.all_released()
            assert strategy.guards[0].failures == []
            await wait_until_async(lambda: server.gone == 1, what="the close upstream")
            writer.close()

    asyncio.run(main())


def test_an_instance_that_fails_is_named_in_the_log_once_until_it_works_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = True

    async def script(request: Received) -> None:
        await request.answer(
            b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n" if broken else OK,
        )

    async def main() -> None:
        nonlocal broken
        async with serving(script) as server, proxying(server) as proxy:
            for _ in range(3):
                await proxy.client.post("/v1/completions", json={"prompt": "private words"})
            broken = False
            for _ in range(2):
                await proxy.client.post(
                    "/v1/completions", json={}, headers={"Authorization": "Bearer private-key"}
                )

    with caplog.at_level(logging.INFO, "loadboard.proxy_adapter"):
        asyncio.run(main())
    said = [record.message for record in caplog.records if "s0" in record.message]
    assert said == ["instance s0 answered 500", "instance s0 answers again"]
    assert "private" not in caplog.text
