"""The demo's keeper: starts everything, watches it, and takes it all away again.

A process of its own, so that nothing is left behind whatever happens to the one at the terminal: it lives as
long as its standard input is open. On standard output it says, one JSON object a line, first ``{"ready": ...}``
or ``{"failed": ...}`` and, should something end later, ``{"failed": ...}``.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from loadboard.demo.processes import Child, Children, remove_table
from score_table.location import Location

_HOST = "127.0.0.1"
_WORKERS = 2
_USUAL_PORT = 8000

# Slots and KV cache of small machines, so that moderate traffic already shows a load.
_SLOTS = 16
_KV_CAPACITY = 36_000
_SPEEDS = {"engine-1": 1.0, "engine-2": 1.0, "engine-3": 1.0, "engine-4": 0.7}
# These four serve about 28 requests/s of the load's mix; this is 65 % of it.
_RATE = 18.0
# Fewer events than tokens spare the processor; an answer is still seen to stream.
_STREAM_INTERVAL = 4

_START_DEADLINE_S = 60.0
_STOP_GRACE_S = 5.0
_LOOK_S = 0.1
_LISTENING = re.compile(rb"^simulated engine on (\S+)$", re.MULTILINE)


class StoppedError(Exception):
    """The demo ended, or somebody sent SIGTERM."""


class FailedError(Exception):
    """Something did not start or did not stay; the message is for the user."""


class Keeper:
    """Everything that runs in one demo. Whoever makes it calls :meth:`close` in the end."""

    def __init__(self, table: str, directory: Path, stop_fds: Sequence[int]) -> None:
        self._table = table
        self._children = Children(directory, _environment())
        self._stop_fds = stop_fds  # one of them readable: it is time to end

    def start(self, port: int | None) -> dict[str, Any]:
        """Start it all; what the terminal has to know. Raises ``FailedError`` or ``StoppedError``."""
        deadline = time.monotonic() + _START_DEADLINE_S
        with _reserve(port) as reserved:  # first, so that a wrong --port is said at once
            proxy_port: int = reserved.getsockname()[1]
            engines = {name: self._start_engine(name, speed) for name, speed in _SPEEDS.items()}
            urls = {name: self._await_url(child, deadline) for name, child in engines.items()}
        instances = [f"--instance={name}={url}" for name, url in urls.items()]
        monitor = self._children.start("monitor", "loadboard", ["run", f"--table={self._table}", *instances])
        proxy = self._children.start(
            "proxy",
            "loadboard",
            [
                "proxy",
                f"--table={self._table}",
                "--strategy=least_load",
                f"--workers={_WORKERS}",
                f"--host={_HOST}",
                f"--port={proxy_port}",
            ],
        )
        self._await(monitor, Location.parse(self._table).path.exists, "its table", deadline)
        self._await(
            proxy, lambda: _sees_instances(proxy_port, len(urls)), "an answer with all instances", deadline
        )
        url = f"http://{_HOST}:{proxy_port}"
        self._children.start("load", "loadboard.demo.load", [url, f"--rate={_RATE}"])
        slower = {name: f"{speed:.0%} of the others' speed" for name, speed in _SPEEDS.items() if speed < 1}
        return {"proxy": url, "notes": slower}

    def watch(self) -> NoReturn:
        """Returns never: raises ``StoppedError`` when it is time to end, ``FailedError`` when a child ended."""
        while True:
            self._look()

    def close(self) -> None:
        """End the children and remove the table."""
        self._children.stop(_STOP_GRACE_S)
        remove_table(self._table)

    def _start_engine(self, name: str, speed: float) -> Child:
        arguments = [
            f"--host={_HOST}",
            "--port=0",
            f"--slots={_SLOTS}",
            f"--kv-capacity={_KV_CAPACITY}",
            f"--speed={speed}",
            f"--stream-interval={_STREAM_INTERVAL}",
        ]
        return self._children.start(name, "loadboard.sim.server", arguments)

    def _await_url(self, engine: Child, deadline: float) -> str:
        self._await(engine, lambda: _LISTENING.search(engine.log.read_bytes()), "its address", deadline)
        found = _LISTENING.search(engine.log.read_bytes())
        assert found is not None
        return found[1].decode()

    def _await(self, child: Child, ready: Callable[[], object], what: str, deadline: float) -> None:
        while not ready():
            self._look()
            if time.monotonic() > deadline:
                raise FailedError(f"{child.name} did not give {what} in time; its log ends:\n{child.tail()}")

    def _look(self) -> None:
        """Wait a moment for a reason to end."""
        if select.select(self._stop_fds, [], [], _LOOK_S)[0]:
            raise StoppedError
        ended = self._children.first_exited()
        if ended is not None:
            raise FailedError(f"{ended.name} ended; its log ends:\n{ended.tail()}")


def _environment() -> dict[str, str]:
    """Without what the user set for a loadboard of their own."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LOADBOARD_")
        and name not in ("PROXY_INSTANCE_STRATEGY", "PROXY_TAG_STRATEGIES")
    }


def _reserve(wanted: int | None) -> socket.socket:
    """Holds the proxy's port: the one wanted, else 8000 or, if that is taken, a free one."""
    try:
        if wanted is None:
            with contextlib.suppress(OSError):
                return socket.create_server((_HOST, _USUAL_PORT))
        return socket.create_server((_HOST, wanted or 0))
    except OSError as error:
        raise FailedError(
            f"the proxy cannot listen on {_HOST} port {wanted or 0}: {error.strerror}"
        ) from None


def _sees_instances(port: int, count: int) -> bool:
    connection = http.client.HTTPConnection(_HOST, port, timeout=1.0)
    try:
        connection.request("GET", "/health")
        return len(json.loads(connection.getresponse().read())["instances"]) == count
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return False
    finally:
        connection.close()


def _say(what: dict[str, Any]) -> None:
    # Nobody reads it any more once the demo is dead.
    try:
        os.write(sys.stdout.fileno(), json.dumps(what).encode() + b"\n")
    except OSError:
        return


def main(argv: Sequence[str] | None = None) -> int:
    """Keep one demo until standard input is closed or SIGTERM comes."""
    parser = argparse.ArgumentParser(prog="loadboard.demo.keeper")
    parser.add_argument("--table", required=True)
    parser.add_argument("--directory", required=True, type=Path)
    parser.add_argument("--port", type=int)
    args = parser.parse_args(argv)

    asked_read, asked_write = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(asked_write, b"\0"))
    # Ctrl-C and a closed terminal reach the demo, which then closes standard input. Not SIG_IGN: children
    # would inherit it.
    for signum in (signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda *_: None)

    keeper = Keeper(args.table, args.directory, (sys.stdin.fileno(), asked_read))
    failure: FailedError | None = None
    try:
        _say({"ready": keeper.start(args.port)})
        keeper.watch()
    except StoppedError:
        pass
    except FailedError as error:
        failure = error
    finally:
        keeper.close()
    if failure is not None:
        _say({"failed": f"{failure}\nAll logs: {args.directory}"})
        return 1
    shutil.rmtree(args.directory, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
