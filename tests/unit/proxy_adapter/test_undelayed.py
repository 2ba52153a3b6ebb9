"""Answers go out at once, also where the workers share a listening socket that asyncio did not make."""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from uvicorn.server import ServerState

from proxy_adapter.demo_proxy.undelayed import UndelayedHTTP
from tests.waiting import wait_until_async


def test_connections_of_a_shared_listening_socket_are_not_delayed() -> None:
    found: list[int] = []

    class Seen(UndelayedHTTP):  # type: ignore[misc, valid-type, unused-ignore]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            connection = transport.get_extra_info("socket")
            found.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    async def main() -> None:
        config = uvicorn.Config(lambda: None, http=Seen, log_config=None)
        config.load()
        # As uvicorn makes it for several workers: without a protocol number, by which asyncio goes.
        with socket.create_server(("127.0.0.1", 0)) as listener:
            assert listener.proto == 0
            server = await asyncio.get_running_loop().create_server(
                lambda: config.http_protocol_class(config, ServerState(), {}), sock=listener
            )
            _, writer = await asyncio.open_connection(*listener.getsockname())
            await wait_until_async(lambda: found)
            writer.close()
            await writer.wait_closed()
            server.close()

    asyncio.run(main())
    assert found[0] != 0
