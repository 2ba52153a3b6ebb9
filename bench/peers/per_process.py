"""What proxies do without a shared table: each worker process counts what it has outstanding itself.

As a program: the demo proxy in every other respect, with four such workers
(``python -m bench.peers.per_process --port P --instance ID=URL ...``).
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, NamedTuple

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bench.peers.client import WORKER_HEADER
from proxy_adapter import Dispatch, build_instance_strategy
from proxy_adapter.contract import Instance
from proxy_adapter.demo_proxy.app import create_app
from proxy_adapter.demo_proxy.instances import split_instance
from proxy_adapter.demo_proxy.serve import SERVER_OPTIONS
from proxy_adapter.demo_proxy.settings import ENVIRONMENT_KEY, ProxySettings
from proxy_adapter.demo_proxy.undelayed import UndelayedHTTP
from score_table.explanation import Explanation

NAME = "per_process"


class _Load(NamedTuple):
    inflight: int
    qps_1m: None = None


@dataclass(frozen=True)
class _Seen(Generic[Instance]):
    """An instance as the rule without a table wants it: with its load."""

    instance: Instance
    instance_id: str
    host: str
    port: int
    load: _Load


class LeastOutstanding:
    """The instance to which this process has the fewest requests under way; ties rotate from a random start.

    The rule is that of ``least_load`` without a table, on this process's own counts.
    """

    name = NAME

    def __init__(self, rng: random.Random) -> None:
        self._rule = build_instance_strategy("least_load", table=None, rng=rng)
        self._outstanding: Counter[str] = Counter()

    def select(self, instances: Sequence[Instance], hint: Any = None) -> Instance:
        """Not counted."""
        return self._rule.select(self._seen(instances)).instance

    def dispatch(
        self, instances: Sequence[Instance], hint: Any = None, *, prompt_tokens: int | None = None
    ) -> Dispatch[Instance]:
        """Counted until the guard is released."""
        instance = self.select(instances)
        self._outstanding[instance.instance_id] += 1
        return _Counted(instance, self._outstanding)

    def why(self, instances: Sequence[Instance], hint: Any = None) -> Explanation:
        """As the rule sees them."""
        return self._rule.why(self._seen(instances))

    def status(self) -> dict[str, Any]:
        """Of the rule, and what this process has outstanding."""
        outstanding = sum(self._outstanding.values())
        return self._rule.status() | {"strategy": self.name, "outstanding": outstanding}

    def close(self) -> None:
        """Nothing of a table is held."""
        self._rule.close()

    def _seen(self, instances: Sequence[Instance]) -> list[_Seen[Instance]]:
        counts = self._outstanding
        return [
            _Seen(each, each.instance_id, each.host, each.port, _Load(counts[each.instance_id]))
            for each in instances
        ]


class _Counted(Generic[Instance]):
    """A guard; a failed request is over for it as any other."""

    def __init__(self, instance: Instance, outstanding: Counter[str]) -> None:
        self.instance = instance
        self._outstanding: Counter[str] | None = outstanding

    def first_token(self) -> None:
        """Only requests are counted."""

    def fail(self, error: BaseException | None = None) -> None:
        self.release()

    def release(self) -> None:
        counts, self._outstanding = self._outstanding, None
        if counts is not None:
            counts[self.instance.instance_id] -= 1

    def __enter__(self) -> _Counted[Instance]:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()

    async def __aenter__(self) -> _Counted[Instance]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        self.release()


def worker_app() -> ASGIApp:
    """What uvicorn calls in each worker process."""
    settings = ProxySettings.from_environment(os.environ)
    app = create_app(settings, LeastOutstanding(random.Random()))
    field = (WORKER_HEADER.encode(), str(os.getpid()).encode())

    async def signed(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], field]
            await send(message)

        await app(scope, receive, send_signed if scope["type"] == "http" else send)

    return signed


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog="bench.peers.per_process", description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--instance", type=split_instance, action="append", required=True, metavar="ID=URL")
    args = parser.parse_args(argv)
    settings = ProxySettings(strategy=NAME, instances=tuple(args.instance))
    os.environ[ENVIRONMENT_KEY] = settings.to_json()
    uvicorn.run(
        "bench.peers.per_process:worker_app",
        factory=True,
        host="127.0.0.1",
        port=args.port,
        workers=args.workers,
        http=UndelayedHTTP,
        timeout_graceful_shutdown=1,
        **SERVER_OPTIONS,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
