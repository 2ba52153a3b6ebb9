"""Run the workers under uvicorn."""

from __future__ import annotations

import errno
import os
import signal
import socket
from types import FrameType
from typing import Any, NoReturn

from proxy_adapter.demo_proxy.settings import ENVIRONMENT_KEY, ProxySettings

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DEFAULT_GRACEFUL_TIMEOUT_S = 30

# Clients that pause between requests should find their connection still open.
_CLIENT_KEEPALIVE_S = 65

# Each worker logs for itself, so the process is named.
_LOGGING: dict[str, Any] = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {"format": "%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s"},
    },
    "handlers": {
        "stderr": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stderr"},
    },
    "loggers": {
        name: {"handlers": ["stderr"], "level": "INFO", "propagate": False}
        for name in ("uvicorn", "loadboard")
    },
}

#: What uvicorn is told besides addresses and times.
SERVER_OPTIONS: dict[str, Any] = {
    "access_log": False,
    "ws": "none",
    # Those of the instance pass through; a second set would contradict them.
    "server_header": False,
    "date_header": False,
    # Nothing here uses the client's address.
    "proxy_headers": False,
    "timeout_keep_alive": _CLIENT_KEEPALIVE_S,
}


class CannotListen(Exception):
    """The address is not to be had; the message is for the user."""


def check_address(host: str, port: int) -> None:
    """Raises ``CannotListen`` where nobody could listen there now.

    Somebody else may still come first: then uvicorn reports it, in more words.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}: {error.strerror or error}") from None
    failures = []
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    # Else the probe of :: would find the port of 0.0.0.0 taken.
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise CannotListen(f"port {port} is in use: choose another with --port") from None
            failures.append(error)
    # A name may stand for an address of a family that this machine does not have.
    if len(failures) == len(found):
        raise CannotListen(f"cannot listen on {host} port {port}: {failures[-1].strerror}")


def _leave(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def serve(
    settings: ProxySettings,
    *,
    host: str = DEFAULT_HOST,
    port: int = DEFAULT_PORT,
    workers: int = 1,
    graceful_timeout_s: int = DEFAULT_GRACEFUL_TIMEOUT_S,
) -> int:
    """Serve until SIGTERM or SIGINT; streams then get ``graceful_timeout_s`` seconds to end.

    Returns the exit status: 0 after a signal, 1 where the proxy could not start (uvicorn logs why).
    Raises ``CannotListen`` before anything is started.
    """
    import uvicorn

    from proxy_adapter.demo_proxy.undelayed import UndelayedHTTP

    check_address(host, port)
    os.environ[ENVIRONMENT_KEY] = settings.to_json()
    # uvicorn raises the signal again once it has shut down; a stop that was asked for is no failure.
    signal.signal(signal.SIGTERM, _leave)
    try:
        uvicorn.run(
            "proxy_adapter.demo_proxy.app:worker_app",
            factory=True,
            host=host,
            port=port,
            workers=workers,
            http=UndelayedHTTP,
            log_config=_LOGGING,
            timeout_graceful_shutdown=graceful_timeout_s,
            **SERVER_OPTIONS,
        )
    except SystemExit as exit_:
        return 1 if exit_.code else 0
    return 0
