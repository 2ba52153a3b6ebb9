"""What the workers of the proxy need to know; it travels to them as JSON in one environment variable."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

#: Set by the parent process only, read by the workers only.
ENVIRONMENT_KEY = "LOADBOARD_PROXY_SETTINGS"

DEFAULT_MAX_BODY_BYTES = 32 * 1024 * 1024
DEFAULT_UPSTREAM_TIMEOUT_S = 600.0
CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class ProxySettings:
    """Settings of one proxy, the same in each of its workers."""

    strategy: str  #: canonical name
    table: str | None = None  #: location of the table; None: no table
    instances: tuple[tuple[str, str], ...] = ()  #: (id, url); empty: the instances that the table names
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES  #: of a request
    upstream_timeout_s: float = DEFAULT_UPSTREAM_TIMEOUT_S  #: from the send to the response headers
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    pools: str = ""  #: with strategies of their own, as proxy_adapter.pools writes them; "": none

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> ProxySettings:
        values = json.loads(text)
        values["instances"] = tuple((id_, url) for id_, url in values["instances"])
        return cls(**values)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ProxySettings:
        """Raises ``RuntimeError`` where nothing was handed over: a worker is only ever started by the proxy."""
        text = environment.get(ENVIRONMENT_KEY)
        if text is None:
            raise RuntimeError(f"{ENVIRONMENT_KEY} is not set; start the proxy with `loadboard proxy`")
        return cls.from_json(text)
