"""What the proxy passes on, in both directions, and what it keeps to itself."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from tests.unit.proxy_adapter.demo_proxy_rig import (
    OK,
    SSE_HEAD,
    Received,
    answer_ok,
    proxying,
    serving,
)
from tests.waiting import wait_until_async


def test_method_path_query_and_body_arrive_as_they_were_sent() -> None:
    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server) as proxy:
            _, writer = await proxy.connect(
                b"PATCH /v1/files/a%2Fb%20c?q=%zz&x=1;2 HTTP/1.1\r\nHost: public.example\r\n"
                b"Content-Length: 9\r\n\r\n{not json"
            )
            await wait_until_async(lambda: server.requests)
            request = server.requests[0]
            assert request.line == b"PATCH /v1/files/a%2Fb%20c?q=%zz&x=1;2 HTTP/1.1"
            assert request.body == b"{not json"
            assert request.values(b"host") == [b"127.0.0.1:%d" % server.port]
            assert request.values(b"content-length") == [b"9"]
            writer.close()
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_a_request_without_a_body_gets_none() -> None:
    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server) as proxy:
            response = await proxy.client.get("/v1/models")
            assert response.status_code == 200
            assert response.headers["x-loadboard-instance"] == "s0"
            assert server.requests[0].values(b"content-length") == []
            assert server.requests[0].values(b"transfer-encoding") == []
            assert proxy.strategy.guards[0].prompt_tokens is None
            assert proxy.strategy.guards[0].first_tokens == 0

    asyncio.run(main())


def test_a_chunked_request_body_arrives_whole_with_its_length() -> None:
    async def main() -> None:
        async def body() -> AsyncIterator[bytes]:
            yield b"one, "
            yield b"two"

        async with serving(answer_ok) as server, proxying(server) as proxy:
            await proxy.client.post("/v1/audio", content=body())
            assert server.requests[0].body == b"one, two"
            assert server.requests[0].values(b"content-length") == [b"8"]
            assert server.requests[0].values(b"transfer-encoding") == []

    asyncio.run(main())


def test_fields_of_one_connection_stay_on_it() -> None:
    async def script(request: Received) -> None:
        await request.answer(
            b"HTTP/1.1 200 OK\r\nConnection: x-secret-hop\r\nX-Secret-Hop: 1\r\nKeep-Alive: timeout=9\r\n"
            b"X-Loadboard-Instance: forged\r\nServer: engine\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n"
            b"Content-Length: 2\r\n\r\nhi"
        )

    async def main() -> None:
        async with serving(script) as server, proxying(server) as proxy:
            headers = {
                "Connection": "keep-alive, X-Hop",
                "X-Hop": "1",
                "TE": "trailers",
                "Upgrade": "h2c",
                "Proxy-Authorization": "Basic abc",
                "Authorization": "Bearer key",
                "X-Request-Id": "7",
            }
            response = await proxy.client.get("/v1/models", headers=headers)
            names = {name for name, _ in server.requests[0].headers}
            assert names.isdisjoint({b"x-hop", b"te", b"upgrade", b"proxy-authorization", b"keep-alive"})
            assert server.requests[0].values(b"authorization") == [b"Bearer key"]
            assert server.requests[0].values(b"x-request-id") == [b"7"]
            assert "x-secret-hop" not in response.headers
            assert "keep-alive" not in response.headers
            assert response.headers.get_list("x-loadboard-instance") == ["s0"]
            assert response.headers.get_list("server") == ["engine"]
            assert response.headers.get_list("set-cookie") == ["a=1", "b=2"]
            # A cookie of one client's answer must never travel with another client's request.
            await proxy.client.get("/v1/models", headers={"Cookie": ""})
            assert server.requests[1].values(b"cookie") in ([], [b""])

    asyncio.run(main())


def test_an_encoded_body_passes_untouched() -> None:
    packed = gzip.compress(b"x" * 5000)

    async def script(request: Received) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(packed)
        await request.answer(head + packed)

    async def main() -> None:
        async with (
            serving(script) as server,
            proxying(server) as proxy,
            proxy.client.stream("GET", "/v1/models") as response,
        ):
            assert response.headers["content-encoding"] == "gzip"
            assert b"".join([part async for part in response.aiter_raw()]) == packed

    asyncio.run(main())


def test_chunks_arrive_while_the_instance_still_generates() -> None:
    async def main() -> None:
        seen = asyncio.Event()

        async def script(request: Received) -> None:
            await request.answer(SSE_HEAD)
            await request.chunk(b"data: one\n\n")
            await seen.wait()
            await request.chunk(b"data: [DONE]\n\n")
            await request.answer(b"0\r\n\r\n")

        async with serving(script) as server, proxying(server) as proxy:
            body = {"stream": True, "prompt": "a" * 400}
            async with proxy.client.stream("POST", "/v1/completions", json=body) as response:
                guard = proxy.strategy.guards[0]
                parts = response.aiter_raw()
                assert await parts.__anext__() == b"data: one\n\n"
                assert (guard.first_tokens, guard.releases) == (1, 0)
                seen.set()
                assert b"".join([part async for part in parts]) == b"data: [DONE]\n\n"
            await proxy.strategy.all_released()
            assert guard.first_tokens == 1
            assert guard.failures == []
            assert (guard.prompt_tokens, guard.hint) == (100, {"stream": True})

    asyncio.run(main())


def test_the_count_stands_until_the_body_ends_not_only_the_headers() -> None:
    async def main() -> None:
        finish = asyncio.Event()

        async def script(request: Received) -> None:
            await request.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhe")
            await finish.wait()
            await request.answer(b"re")

        async with serving(script) as server, proxying(server) as proxy:
            async with proxy.client.stream("GET", "/v1/models") as response:
                assert proxy.strategy.guards[0].releases == 0
                finish.set()
                assert await response.aread() == b"here"
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_a_head_request_is_answered_without_a_body() -> None:
    async def script(request: Received) -> None:
        await request.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 512\r\n\r\n")

    async def main() -> None:
        async with serving(script) as server, proxying(server) as proxy:
            response = await proxy.client.head("/v1/models")
            assert (response.headers["content-length"], response.content) == ("512", b"")
            assert server.requests[0].line == b"HEAD /v1/models HTTP/1.1"

    asyncio.run(main())


@pytest.mark.parametrize("status", [301, 400, 404, 422])
def test_an_answer_below_500_passes_and_is_no_failure(status: int) -> None:
    async def script(request: Received) -> None:
        await request.answer(b"HTTP/1.1 %d X\r\nLocation: /x\r\nContent-Length: 4\r\n\r\nmine" % status)

    async def main() -> None:
        async with serving(script) as server, proxying(server) as proxy:
            response = await proxy.client.post("/v1/completions", content=b"[")
            assert (response.status_code, response.content) == (status, b"mine")
            assert proxy.strategy.guards[0].failures == []
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_an_ipv6_instance_is_reached_and_named_with_brackets() -> None:
    async def main() -> None:
        async with serving(answer_ok, "::1") as server, proxying(server) as proxy:
            assert (await proxy.client.get("/v1/models")).status_code == 200
            assert server.requests[0].values(b"host") == [b"[::1]:%d" % server.port]

    asyncio.run(main())


def test_the_path_of_the_instance_comes_first() -> None:
    async def main() -> None:
        async with serving(answer_ok) as server:
            server.path = "/tenant/"
            async with proxying(server) as proxy:
                await proxy.client.get("/v1/models?a=b")
            assert server.requests[0].line == b"GET /tenant/v1/models?a=b HTTP/1.1"

    asyncio.run(main())


@pytest.mark.parametrize("path", ["/v1/../health", "/v1/%2e%2e/reset", "/v1/./x", "/metrics", "/", "/v1"])
def test_nothing_outside_v1_is_reachable(path: str) -> None:
    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server) as proxy:
            reader, writer = await proxy.connect(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 404")
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"application/json" in head
            writer.close()
            assert server.requests == []
            assert proxy.strategy.guards == []

    asyncio.run(main())


def test_connections_to_the_instance_are_reused() -> None:
    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server) as proxy:
            for _ in range(3):
                await proxy.client.get("/v1/models")
            ports = {request.writer.get_extra_info("peername") for request in server.requests}
            assert len(ports) == 1

    asyncio.run(main())


def test_http_1_0_clients_are_served() -> None:
    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server) as proxy:
            reader, writer = await proxy.connect(b"GET /v1/models HTTP/1.0\r\n\r\n")
            data = await reader.read()
            assert data.endswith(b"{}")
            assert server.requests[0].line == b"GET /v1/models HTTP/1.1"
            writer.close()

    asyncio.run(main())


def test_proxy_variables_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")

    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server) as proxy:
            assert (await proxy.client.get("/v1/models")).status_code == 200

    asyncio.run(main())


def test_health_names_the_strategy_and_the_instances() -> None:
    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server) as proxy:
            response = await proxy.client.get("/health")
            assert response.status_code == 200
            said = response.json()
            assert (said["status"], said["strategy"], said["instances"]) == ("ok", "recording", ["s0"])
            assert said["table"] == {"table": None, "picks": 0}
            assert server.requests == []

    asyncio.run(main())


def test_a_body_at_the_cap_passes_and_one_above_is_refused() -> None:
    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server, max_body_bytes=1000) as proxy:
            assert (await proxy.client.post("/v1/x", content=b"a" * 1000)).status_code == 200
            response = await proxy.client.post("/v1/x", content=b"a" * 1001)
            assert response.status_code == 413
            error = response.json()["error"]
            assert error["type"] == "invalid_request_error"
            assert set(error) == {"message", "type", "param", "code"}
            assert "1000 bytes" in error["message"]
            assert len(server.requests) == 1
            assert len(proxy.strategy.guards) == 1

    asyncio.run(main())


def test_a_body_of_unknown_length_is_refused_once_it_passes_the_cap() -> None:
    async def main() -> None:
        async def body() -> AsyncIterator[bytes]:
            for _ in range(200):
                yield b"a" * 10_000

        async with serving(answer_ok) as server, proxying(server, max_body_bytes=500_000) as proxy:
            response = await proxy.client.post("/v1/x", content=body())
            assert response.status_code == 413
            assert response.headers["connection"] == "close"
            assert server.requests == []

    asyncio.run(main())


def test_a_client_that_asks_first_is_told_of_the_cap_before_it_sends() -> None:
    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server, max_body_bytes=10) as proxy:
            reader, writer = await proxy.connect(
                b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\nExpect: 100-continue\r\n\r\n"
            )
            assert (await reader.read()).startswith(b"HTTP/1.1 413")
            writer.close()
            reader, writer = await proxy.connect(
                b"POST /v1/x HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n"
            )
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
            writer.write(b"ok")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            assert server.requests[0].values(b"expect") == []
            writer.close()

    asyncio.run(main())


def test_two_clients_at_once_do_not_wait_for_each_other() -> None:
    async def main() -> None:
        release = asyncio.Event()

        async def script(request: Received) -> None:
            if request.line.startswith(b"GET /v1/slow"):
                await release.wait()
            await request.answer(OK)

        async with serving(script) as server, proxying(server) as proxy:
            slow = asyncio.ensure_future(proxy.client.get("/v1/slow"))
            await wait_until_async(lambda: server.requests)
            assert (await proxy.client.get("/v1/fast")).json() == {}
            assert not slow.done()
            release.set()
            assert json.loads((await slow).content) == {}
            await proxy.strategy.all_released()

    asyncio.run(main())


def test_a_large_response_passes_whole() -> None:
    async def script(request: Received) -> None:
        await request.answer(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\n\r\n")
        for _ in range(30):
            await request.answer(b"z" * 100_000)

    async def main() -> None:
        async with serving(script) as server, proxying(server) as proxy:
            response: httpx.Response = await proxy.client.get("/v1/models")
            assert response.content == b"z" * 3_000_000

    asyncio.run(main())
