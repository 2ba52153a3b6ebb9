"""Whom a TLS connection trusts: one context per choice, built once and off the event loop.

To read all authorities takes 100 ms and more, which no tick has time for.
"""

from __future__ import annotations

import asyncio
import os
import ssl

import httpx


class Trust:
    """The contexts built so far. Belongs to one event loop."""

    def __init__(self) -> None:
        #: For plain http: a transport that is given none would build one with all authorities.
        self.nobody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._building: dict[bool | str, asyncio.Task[ssl.SSLContext]] = {}

    async def context(self, verify: bool | str) -> ssl.SSLContext:
        """The context for ``verify`` as in ``Target``. Raises ``OSError`` for a file that cannot be used.

        A caller that is cancelled leaves the building to the others; what failed is tried anew next time.
        """
        task = self._building.get(verify)
        if task is None:
            task = asyncio.ensure_future(asyncio.to_thread(_built, verify))
            self._building[verify] = task
            task.add_done_callback(lambda done: self._over(verify, done))
        return await asyncio.shield(task)

    async def aclose(self) -> None:
        """Wait for nothing that is still being built."""
        waiting = [task for task in self._building.values() if not task.done()]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    def _over(self, verify: bool | str, done: asyncio.Task[ssl.SSLContext]) -> None:
        if done.cancelled() or done.exception() is not None:
            del self._building[verify]


def _built(verify: bool | str) -> ssl.SSLContext:
    if isinstance(verify, bool):
        return httpx.create_ssl_context(verify=verify, trust_env=False)
    if os.path.isdir(verify):
        return ssl.create_default_context(capath=verify)
    return ssl.create_default_context(cafile=verify)
