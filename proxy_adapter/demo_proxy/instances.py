"""Instances as the proxy sees them: where to send, and under which id the table knows it."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, urlsplit

import httpx

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True)
class Instance:
    """One inference server. The bytes are what every request to it starts from, made once."""

    instance_id: str
    host: str  #: without brackets
    port: int
    url: httpx.URL  #: scheme, host and port only
    prefix: bytes  #: path under which its API lives, without a slash at the end; mostly empty
    host_header: bytes
    id_header: bytes  #: the id, percent-encoded where a header could not carry it


class InstanceSource(Protocol):
    """Where the instances come from."""

    def current(self) -> tuple[Instance, ...]:
        """The instances known now; the same object for as long as nothing changed."""
        ...

    async def run(self) -> None:
        """Keep ``current`` up to date until cancelled."""
        ...


def make_instance(url: str, instance_id: str | None = None) -> Instance:
    """The instance at ``url``; its id is ``host:port`` unless given.

    ``ValueError`` says what is wrong with the URL, without a password that may be in it.
    """
    shown = url.rpartition("@")[2]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"instance URL {shown!r}: {error} (an IPv6 address goes in brackets)") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError(f"instance URL {shown!r}: must start with http:// or https://")
    if not parts.hostname:
        raise ValueError(f"instance URL {shown!r}: names no host")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(
            f"instance URL {shown!r}: may hold a scheme, a host, a port and a path, nothing else"
        )
    if port is None:
        port = _DEFAULT_PORTS[parts.scheme]
    name = parts.hostname
    try:
        # The compressed form, so that the id is the one that the monitor makes of the same URL.
        host = ipaddress.IPv6Address(name).compressed if ":" in name else name.encode("idna").decode("ascii")
        prefix = parts.path.rstrip("/").encode("ascii")
    except ValueError as error:
        raise ValueError(f"instance URL {shown!r}: {error}") from None
    netloc = f"[{host}]" if ":" in host else host
    if instance_id is None:
        instance_id = f"{netloc if ':' in host else name}:{port}"
    if not instance_id:
        raise ValueError(f"instance URL {shown!r}: its id is empty")
    return Instance(
        instance_id=instance_id,
        host=host,
        port=port,
        url=httpx.URL(f"{parts.scheme}://{netloc}:{port}"),
        prefix=prefix,
        host_header=(netloc if port == _DEFAULT_PORTS[parts.scheme] else f"{netloc}:{port}").encode("ascii"),
        id_header=quote(instance_id, safe="!#$&'()*+,/:;=?@[]~ ").encode("ascii"),
    )


def split_instance(text: str) -> tuple[str, str]:
    """(id, URL) of ``[ID=]URL`` as the command line takes it. ``ValueError`` says what is wrong."""
    before, equals, after = text.partition("=")
    if equals and "://" not in before:
        return make_instance(after, before.strip()).instance_id, after
    return make_instance(text).instance_id, text


class FixedInstances:
    """Instances named once, at start. ``ValueError`` on an id that is used twice."""

    def __init__(self, instances: tuple[Instance, ...]) -> None:
        seen: set[str] = set()
        for instance in instances:
            if instance.instance_id in seen:
                raise ValueError(f"instance id {instance.instance_id!r} is used twice")
            seen.add(instance.instance_id)
        self._instances = instances

    def current(self) -> tuple[Instance, ...]:
        return self._instances

    async def run(self) -> None:
        """Nothing to keep up to date."""
