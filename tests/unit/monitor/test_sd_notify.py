"""What the service manager is told, over a real datagram socket."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.sd_notify import Notifier


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, str]]:
    """A manager's socket, and its address as systemd writes it."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@loadboard-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind("\0" + name[1:] if name.startswith("@") else name)
        listening.settimeout(5)
        yield listening, name


def test_each_message_is_one_datagram(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    notifier = Notifier.from_env({"NOTIFY_SOCKET": name})
    notifier.ready()
    notifier.status("3 of 4 instances\nup")
    notifier.watchdog()
    notifier.reloading()
    notifier.stopping()
    received = [listening.recv(4096).decode() for _ in range(5)]
    assert received[:3] == ["READY=1", "STATUS=3 of 4 instances up", "WATCHDOG=1"]
    state, _, stamp = received[3].partition("\n")
    assert state == "RELOADING=1"
    assert stamp.removeprefix("MONOTONIC_USEC=").isdigit()
    assert received[4] == "STOPPING=1"


@pytest.mark.parametrize("environ", [{}, {"NOTIFY_SOCKET": ""}, {"NOTIFY_SOCKET": "vsock:2:1"}])
def test_without_a_socket_nothing_happens(environ: dict[str, str]) -> None:
    notifier = Notifier.from_env({**environ, "WATCHDOG_USEC": "1000000"})
    notifier.ready()
    assert notifier.watchdog_interval is None


@pytest.mark.parametrize("address", ["/no/such/socket", "/dev/null", "/" + "x" * 200, "/a\0b"])
def test_a_socket_that_does_not_answer_is_no_error(address: str) -> None:
    Notifier.from_env({"NOTIFY_SOCKET": address}).ready()


def test_a_manager_that_does_not_read_never_blocks_the_monitor(manager: tuple[socket.socket, str]) -> None:
    listening, name = manager
    notifier = Notifier.from_env({"NOTIFY_SOCKET": name})
    for _ in range(5000):  # more than the queue of any datagram socket holds
        notifier.watchdog()
    assert listening.recv(4096) == b"WATCHDOG=1"


def test_no_descriptor_is_left_open(manager: tuple[socket.socket, str]) -> None:
    before = len(os.listdir("/proc/self/fd"))
    notifier = Notifier.from_env({"NOTIFY_SOCKET": manager[1]})
    notifier.ready()
    Notifier.from_env({"NOTIFY_SOCKET": "/no/such/socket"}).ready()
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("environ", "interval"),
    [
        ({"WATCHDOG_USEC": "10000000"}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": str(os.getpid())}, 5.0),
        ({"WATCHDOG_USEC": "10000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "-1"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_the_watchdog_is_fed_at_half_of_what_is_allowed(
    environ: dict[str, str], interval: float | None
) -> None:
    notifier = Notifier.from_env({"NOTIFY_SOCKET": "/run/notify", **environ})
    assert notifier.watchdog_interval == interval
