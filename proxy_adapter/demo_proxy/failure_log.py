"""Failures in words, and in the log once per change instead of once per request."""

from __future__ import annotations

import logging

import httpx

from proxy_adapter.demo_proxy.instances import Instance

logger = logging.getLogger("loadboard.proxy_adapter")


def reason_of(error: Exception) -> str:
    """What it says; where it says nothing, its name."""
    return str(error) or type(error).__name__


def describe(instance: Instance, error: httpx.TransportError) -> str:
    """One sentence for the client and the log: which instance, and what it did."""
    name = f"instance {instance.instance_id}"
    if isinstance(error, httpx.ConnectTimeout):
        return f"{name} took no connection in time"
    if isinstance(error, httpx.TimeoutException):
        return f"{name} did not answer in time: {error}" if str(error) else f"{name} did not answer in time"
    if isinstance(error, httpx.ConnectError):
        return f"{name} could not be connected to: {reason_of(error)}"
    return f"{name} broke the connection before it answered: {reason_of(error)}"


class FailureLog:
    """Warns when an instance starts to fail and tells when it works again."""

    def __init__(self) -> None:
        self._failing: set[str] = set()

    def failed(self, instance: Instance, message: str) -> None:
        if instance.instance_id not in self._failing:
            self._failing.add(instance.instance_id)
            logger.warning("%s", message)
        else:
            logger.debug("%s", message)

    def worked(self, instance: Instance) -> None:
        if instance.instance_id in self._failing:
            self._failing.discard(instance.instance_id)
            logger.info("instance %s answers again", instance.instance_id)
