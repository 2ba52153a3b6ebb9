"""A client that asks the demo proxy for instances of certain tags."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time

import httpx
import pytest

from proxy_adapter import build_instance_strategy
from proxy_adapter.demo_proxy.app import create_app
from proxy_adapter.demo_proxy.settings import ProxySettings
from score_table.identity import Identity
from score_table.writer import TableWriter
from tests.tables import PRICES, publish
from tests.unit.proxy_adapter.demo_proxy_rig import answer_ok, proxying, running, serving

TAGS = "x-loadboard-tags"


@pytest.mark.parametrize(
    ("field", "stream", "hint"),
    [
        (None, False, None),
        (None, True, {"stream": True}),
        ("role=decode", False, {"tags": {"role": "decode"}}),
        ("role = decode , model=m", True, {"stream": True, "tags": {"role": "decode", "model": "m"}}),
    ],
)
def test_the_tags_of_the_field_are_in_the_hint_and_the_field_goes_no_further(
    field: str | None, stream: bool, hint: object
) -> None:
    async def main() -> None:
        headers = {} if field is None else {TAGS.upper(): field}
        async with serving(answer_ok) as server, proxying(server) as proxy:
            response = await proxy.client.post(
                "/v1/completions", json={"prompt": "hello", "stream": stream}, headers=headers
            )
            assert response.status_code == 200
            assert proxy.strategy.guards[0].hint == hint
            assert server.requests[0].values(TAGS.encode()) == []

    asyncio.run(main())


def test_tags_that_are_not_written_as_tags_are_the_clients_mistake() -> None:
    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server) as proxy:
            response = await proxy.client.post("/v1/completions", json={}, headers={TAGS: "decode"})
            assert response.status_code == 400
            error = response.json()["error"]
            assert error["code"] == "bad_tags"
            assert error["message"] == "x-loadboard-tags: tag 'decode' is not written as key=value"
            assert not proxy.strategy.guards
            assert not server.requests

    asyncio.run(main())


@pytest.mark.parametrize(
    ("fields", "hint", "said"),
    [
        (["role=decode", "model=m,role=decode"], {"role": "decode", "model": "m"}, ""),
        (["role=decode", "role=prefill"], None, "tag 'role' is given twice, as 'decode' and as 'prefill'"),
        (["role=decode", ""], None, "tag '' is not written as key=value"),
        ([""], None, "tag '' is not written as key=value"),
    ],
)
def test_several_fields_are_one_list_and_an_empty_one_is_refused(
    fields: list[str], hint: dict[str, str] | None, said: str
) -> None:
    async def main() -> None:
        async with serving(answer_ok) as server, proxying(server) as proxy:
            headers = [(TAGS, field) for field in fields]
            response = await proxy.client.post("/v1/completions", json={"prompt": "x"}, headers=headers)
            if hint is not None:
                assert response.status_code == 200
                assert proxy.strategy.guards[0].hint == {"tags": hint}
                return
            assert response.status_code == 400
            assert response.json()["error"]["code"] == "bad_tags"
            assert response.json()["error"]["message"] == f"x-loadboard-tags: {said}"
            assert not server.requests

    asyncio.run(main())


def test_requests_go_to_the_pool_they_ask_for_and_to_any_where_there_is_none(table_name: str) -> None:
    writer = TableWriter.open(table_name, slots=16, lanes=4)

    async def main() -> None:
        async with contextlib.AsyncExitStack() as stack:
            servers = [await stack.enter_async_context(serving(answer_ok)) for _ in range(4)]
            for slot, server in enumerate(servers):
                tags = {"role": "decode" if slot == 3 else "prefill"}
                writer.assign(slot, Identity(f"i{slot}", server.url, 1, PRICES, tags))
            publish(writer, now_ns=time.monotonic_ns())
            settings = ProxySettings(
                "least_load",
                table_name,
                tuple((f"i{slot}", server.url) for slot, server in enumerate(servers)),
                pools="role=prefill:least_load,role=decode:power_of_two",
            )
            strategy = build_instance_strategy(settings.strategy, pools=settings.pools, table=table_name)
            server = await stack.enter_async_context(running(create_app(settings, strategy)))
            host, port = server.servers[0].sockets[0].getsockname()[:2]
            client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=f"http://{host}:{port}", trust_env=False, timeout=10)
            )

            async def served(count: int, **headers: str) -> set[str]:
                said = set()
                for _ in range(count):
                    response = await client.post("/v1/completions", json={"prompt": "x"}, headers=headers)
                    said.add(response.headers["x-loadboard-instance"])
                return said

            assert await served(6, **{TAGS: "role=decode"}) == {"i3"}
            assert await served(9, **{TAGS: "role=prefill"}) == {"i0", "i1", "i2"}
            assert await served(8, **{TAGS: "role=encode"}) == {"i0", "i1", "i2", "i3"}
            health = json.loads((await client.get("/health")).content)
            assert health["strategy"] == "by_tag"
            assert health["table"]["degraded_picks"]["untagged"] == 8
            assert {name: said["picks"] for name, said in health["table"]["pools"].items()} == {
                "role=prefill": 9,
                "role=decode": 6,
                "default": 8,
            }

    try:
        asyncio.run(main())
        assert writer.naturals().outstanding.sum() == 0
    finally:
        writer.close()
