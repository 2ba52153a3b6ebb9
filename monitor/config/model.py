"""The options with their types, ranges, defaults and meaning. Nothing else in the project states any of these."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from monitor.config.address import address_of, base_url
from monitor.config.scoring import Scoring
from monitor.config.strict import Strict, fault, option
from score_table.location import DEFAULT_TABLE, Location

#: What an identity block of the table holds, in bytes of UTF-8.
MAX_ID_BYTES = 190
MAX_TAGS_BYTES = 350

_MAX_TABLE_NAME_BYTES = 200  # the names beside the table add to it
_MODES = ("0600", "0640", "0644", "0660", "0664")


class Common(Strict):
    """Table, polling and log: options that no pool has of its own."""

    table: str = option(
        DEFAULT_TABLE,
        "the table: /NAME in shared memory, or the path of a file",
        form="`/NAME` or a path",
        reloadable=False,
    )
    table_mode: str = option(
        "0660",
        "access mode of a new table; who may write it may change every pick",
        form=", ".join(f"`{mode}`" for mode in _MODES),
        reloadable=False,
    )
    group: str = option(
        "",
        "group that owns a new table; empty for the monitor's own",
        form="name or number",
        reloadable=False,
    )
    slots: int = option(
        64, "instances the table has room for", reloadable=False, ge=16, le=4096, multiple_of=16
    )
    lanes: int = option(32, "proxy worker processes the table has room for", reloadable=False, ge=1, le=256)
    interval: float = option(1.0, "time between two polls of an instance", unit="s", ge=0.05, le=300)
    timeout: float = option(2.0, "deadline of one poll", unit="s", ge=0.05, le=60)
    jitter: float = option(0.1, "random part of the interval, as a share of it", ge=0, le=0.5)
    staleness: float = option(5.0, "age from which a sample no longer counts", unit="s", ge=0.1, le=3600)
    tick: float = option(0.02, "time between two updates of the scores", unit="s", ge=0.005, le=0.05)
    max_heartbeat_age: float = option(
        1.0,
        "silence of the monitor after which picks are made without it; written into a new table",
        unit="s",
        reloadable=False,
        ge=0.2,
        le=30,
    )
    concurrency: int = option(64, "polls under way at the same time", ge=1, le=1024)
    max_body_bytes: int = option(
        4_194_304, "longest answer that is read from an instance", unit="bytes", ge=65_536, le=67_108_864
    )
    log_format: Literal["auto", "console", "json"] = option(
        "auto", "form of the log; auto is console on a terminal and json elsewhere", reloadable=False
    )
    log_level: Literal["debug", "info", "warning", "error"] = option("info", "least level that is logged")

    @property
    def table_mode_bits(self) -> int:
        """``table_mode`` as a number, for ``fchmod``."""
        return int(self.table_mode, 8)

    def interval_of(self, instance: InstanceConfig) -> float:
        """Seconds between two polls of ``instance``."""
        return self.interval if instance.interval is None else instance.interval

    def timeout_of(self, instance: InstanceConfig) -> float:
        """Deadline of one poll of ``instance`` in seconds."""
        return self.timeout if instance.timeout is None else instance.timeout

    @field_validator("table")
    @classmethod
    def _table_is_a_name_or_path(cls, table: str) -> str:
        last = table.rpartition("/")[2]
        if not table.isprintable() or last in ("", ".", ".."):
            raise fault(f"{table!r} names no table: write /NAME for shared memory or a path for a file")
        if len(last.encode()) > _MAX_TABLE_NAME_BYTES:
            raise fault(
                f"the name is {len(last.encode())} bytes long: use at most {_MAX_TABLE_NAME_BYTES}, "
                "because the lock beside the table has a longer one"
            )
        try:
            Location.parse(table)
        except ValueError as error:
            raise fault(str(error)) from None
        return table

    @field_validator("table_mode")
    @classmethod
    def _table_mode_is_safe(cls, mode: str) -> str:
        if mode not in _MODES:
            raise fault(
                f"{mode!r} is not one of {', '.join(_MODES)}: the monitor must read and write the table, "
                "nobody executes it, and writers other than the group could change every pick"
            )
        return mode

    @field_validator("group")
    @classmethod
    def _group_is_a_name(cls, group: str) -> str:
        if not re.fullmatch(r"[\w.][\w.-]*\$?|", group):
            raise fault(f"{group!r} is no name or number of a group")
        return group


class Settings(Scoring, Common):
    """Every option that is one for all instances; each is a key, a flag and a variable."""


class InstanceConfig(Strict):
    """One ``[[instances]]`` table. ``url`` and ``metrics_url`` are normalised, ``id`` is always filled in.

    After :func:`monitor.config.load_config`, ``bearer_token`` holds the token wherever it came from.
    """

    id: str = option("", "name of the instance, as proxies know it; `host:port` of the url if absent")
    url: str = Field(
        description="base URL at which proxies reach the instance; a path prefix is kept",
        json_schema_extra={"form": "`http://HOST[:PORT]`, `https://...`"},
    )
    tags: dict[str, str] = option(
        {}, "labels shown with the instance; proxies tell pools by them", form="a table of texts"
    )
    engine: Literal["auto", "vllm", "sglang"] = option("auto", "the engine; auto finds it from its answers")
    metrics_url: str | None = option(
        None, "base URL for polls where it is not the url", form="`http://HOST[:PORT]`, `https://...`"
    )
    interval: float | None = option(None, "instead of the common interval", unit="s", ge=0.05, le=300)
    timeout: float | None = option(None, "instead of the common timeout", unit="s", ge=0.05, le=60)
    bearer_token: SecretStr | None = option(None, "token sent with polls", form="a secret")
    bearer_token_env: str | None = option(
        None, "environment variable of the monitor that holds the token", form="a variable's name"
    )
    bearer_token_file: str | None = option(
        None, "file that holds the token; read at the start and at each reload", form="a path"
    )
    verify_tls: bool = option(True, "whether the certificate of an https URL is checked")
    ca_file: str | None = option(None, "PEM file of the authorities trusted for polls", form="a path")
    kv_capacity: int | None = option(
        None, "KV cache, where the engine does not tell it", unit="tokens", ge=1, le=10**9
    )
    slots: int | None = option(
        None, "requests that fit its batch, where the engine does not tell them", ge=1, le=1_000_000
    )
    weight: float = option(
        1.0, "its share of the traffic, relative to the weights of the others in its pool", ge=0.01, le=100
    )
    draining: bool = option(False, "whether it gets no new requests while others can take them")

    @property
    def metrics_base(self) -> str:
        """The base URL of the polls."""
        return self.metrics_url or self.url

    @model_validator(mode="before")
    @classmethod
    def _fill_in_the_id(cls, data: Any) -> Any:
        if isinstance(data, dict) and "id" not in data and isinstance(data.get("url"), str):
            try:
                return {**data, "id": address_of(base_url(data["url"]))}
            except ValueError:
                return data  # reported for the url itself
        return data

    @field_validator("id")
    @classmethod
    def _id_fits(cls, id: str) -> str:
        if not id.strip() or id != id.strip() or not id.isprintable():
            raise fault(f"{id!r} is no id: use printable characters, without spaces at its ends")
        if len(id.encode()) > MAX_ID_BYTES:
            raise fault(f"{id!r} is {len(id.encode())} bytes long and the table holds {MAX_ID_BYTES}")
        return id

    @field_validator("url", "metrics_url")
    @classmethod
    def _url_is_a_base(cls, url: str | None, info: ValidationInfo) -> str | None:
        if url is None:
            return None
        try:
            normal = base_url(url)
        except ValueError as error:
            raise fault(str(error)) from None
        if info.field_name == "metrics_url" and normal.endswith("/metrics"):
            raise fault(
                f"{normal!r} is not a base URL: leave off /metrics, the monitor adds the paths it asks"
            )
        return normal

    @field_validator("tags")
    @classmethod
    def _tags_fit(cls, tags: dict[str, str]) -> dict[str, str]:
        size = len(json.dumps(tags, ensure_ascii=False, separators=(",", ":")).encode())
        if size > MAX_TAGS_BYTES:
            raise fault(f"the tags are {size} bytes long as JSON and the table holds {MAX_TAGS_BYTES}")
        return tags

    @field_validator("bearer_token")
    @classmethod
    def _token_can_be_sent(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not is_token(token.get_secret_value()):
            raise fault("a bearer token has at least one character and only visible ASCII ones")
        return token

    @model_validator(mode="after")
    def _keys_go_together(self) -> InstanceConfig:
        given = [
            key for key in ("bearer_token", "bearer_token_env", "bearer_token_file") if getattr(self, key)
        ]
        if len(given) > 1:
            raise fault(f"{' and '.join(given)} are given: keep one of them")
        if self.ca_file and not self.verify_tls:
            raise fault("ca_file has no effect with verify_tls = false: remove one of them")
        if (self.ca_file or not self.verify_tls) and not self.metrics_base.startswith("https:"):
            key = "ca_file" if self.ca_file else "verify_tls"
            raise fault(f"{key} has no effect on {self.metrics_base!r}: use an https URL or remove {key}")
        return self


def is_token(text: str) -> bool:
    """Whether ``text`` can stand in an ``Authorization`` header as it is."""
    return bool(text) and all("!" <= char <= "~" for char in text)
