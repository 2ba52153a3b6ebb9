"""Tells systemd how the monitor is: one datagram per message, see sd_notify(3)."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping


class Notifier:
    """Sends to the service manager's socket; does nothing where there is none, and never raises or blocks."""

    def __init__(self, address: str = "", watchdog_interval: float | None = None) -> None:
        self._address = address
        self.watchdog_interval = watchdog_interval
        """Seconds between two ``watchdog()``, half of what the manager allows; None if it does not watch."""

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Notifier:
        """From ``NOTIFY_SOCKET``, ``WATCHDOG_USEC`` and ``WATCHDOG_PID`` as systemd sets them."""
        address = environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        allowed = environ.get("WATCHDOG_USEC", "")
        watched = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        if not (watched and allowed.isascii() and allowed.isdigit() and int(allowed)):
            return cls(address)
        return cls(address, int(allowed) / 2e6)

    def ready(self) -> None:
        """Started, or done with a reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        """A reload has begun; ``ready()`` ends it."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """The end has begun."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """A line for ``systemctl status``."""
        self._send("STATUS=" + " ".join(text.split()))

    def watchdog(self) -> None:
        """A sign of life."""
        self._send("WATCHDOG=1")

    def _send(self, message: str) -> None:
        if not self._address:
            return
        # A leading @ stands for the zero byte of an abstract socket.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
                channel.setblocking(False)
                channel.sendto(message.encode("utf-8", "replace"), address)
        except (OSError, ValueError):
            # A manager that does not listen is its own problem: it acts on our silence by itself.
            return
