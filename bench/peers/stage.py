"""What one run needs: engines and a gateway in processes of their own, in a directory that goes with them."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.peers import nginx
from bench.peers.slot_engine import LISTENING
from loadboard.demo.processes import Child, Children, remove_table
from loadboard.sim.model import EngineParameters

#: The gateways by name. The first three are the demo proxy; ``per_process`` counts without a table.
LEAST_LOAD, ROUND_ROBIN, PER_PROCESS = "least_load", "round_robin", "per_process"
NGINX, NGINX_ZONE = "nginx", "nginx_zone"

WORKERS = 4

_ROOT = Path(__file__).parents[2]
_START_S = 60.0
_STOP_S = 5.0
_LOOK_S = 0.02
_ENGINE_IS_AT = re.compile(rf"^(?:simulated engine on |{LISTENING})(\S+)$", re.MULTILINE)
_INSTANCE = '[[instances]]\nid = "{}"\nurl = "{}"\nslots = {}\n'
# uvicorn says so in each worker.
_WORKER_IS_UP = "Application startup complete"


class StageError(Exception):
    """Something did not start or did not stay; the message holds the end of its log."""


class Stage:
    """Use it with ``with``: leaving ends everything that was started, the last one first."""

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="loadboard-bench-"))
        self._children = Children(self._directory, _environment())
        self._tables: dict[str, str] = {}  # by gateway

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._children.stop(_STOP_S)
        for table in self._tables.values():
            remove_table(table)
        shutil.rmtree(self._directory, ignore_errors=True)

    def slot_engines(self, count: int, slots: int) -> dict[str, str]:
        """Engines whose requests say how long they take; their URLs by name."""
        return self._engines(
            count, lambda name: ("bench.peers.slot_engine", [f"--name={name}", f"--slots={slots}"])
        )

    def model_engines(self, count: int, parameters: EngineParameters, stream_interval: int) -> dict[str, str]:
        """The demo's engines: continuous batching. Their URLs by name."""
        arguments = [
            f"--slots={parameters.slots}",
            f"--kv-capacity={parameters.kv_capacity}",
            f"--speed={parameters.speed}",
            f"--stream-interval={stream_interval}",
        ]
        return self._engines(count, lambda _: ("loadboard.sim.server", arguments))

    def gateway(self, name: str, engines: Mapping[str, str], *, slots: int, workers: int = WORKERS) -> str:
        """Start a gateway in front of ``engines``; its URL, once all of its workers are up.

        ``slots`` of each engine's batch are told to the monitor, as they would be in its configuration.
        """
        with socket.create_server(("127.0.0.1", 0)) as reserved:
            port: int = reserved.getsockname()[1]
        if name in (NGINX, NGINX_ZONE):
            self._start_nginx(name, port, list(engines.values()), workers)
        else:
            # Also beside the one that does not use it: all have the same company.
            table = f"/loadboard-bench-{os.getpid()}-{len(self._tables)}"
            self._tables[name] = table
            config = self._directory / f"monitor-{name}.toml"
            config.write_text("".join(_INSTANCE.format(id_, url, slots) for id_, url in engines.items()))
            self._children.start(
                f"monitor-{name}", "loadboard", ["run", f"--table={table}", f"--config={config}"]
            )
            address = [f"--port={port}", f"--workers={workers}"]
            if name == PER_PROCESS:
                instances = [f"--instance={id_}={url}" for id_, url in engines.items()]
                proxy = self._children.start(name, "bench.peers.per_process", [*address, *instances])
            else:
                self._await(lambda: _dump(table), f"table {table}")
                arguments = ["proxy", f"--table={table}", f"--strategy={name}", *address]
                proxy = self._children.start(name, "loadboard", arguments)
            self._await(lambda: proxy.log.read_text().count(_WORKER_IS_UP) >= workers, f"{workers} workers")
            self._await(lambda: _polled(table, len(engines)), "a poll of every engine")
        url = f"http://127.0.0.1:{port}"
        self._await(lambda: _answers(port), f"an answer of {name} at {url}")
        return url

    def degraded(self, gateway: str) -> dict[str, int]:
        """Degraded picks by reason of such a gateway, those that happened."""
        facts = _dump(self._tables[gateway]) if gateway in (LEAST_LOAD, ROUND_ROBIN) else None
        total: Counter[str] = Counter()
        for lane in facts["lanes"] if facts else ():
            total.update(lane["degraded_picks"])
        return {reason: count for reason, count in total.items() if count}

    def check(self) -> None:
        """``StageError`` if anything has ended."""
        ended = self._children.first_exited()
        if ended is not None:
            raise StageError(f"{ended.name} ended; its log ends:\n{ended.tail()}")

    def _engines(self, count: int, program: Callable[[str], tuple[str, list[str]]]) -> dict[str, str]:
        children = {}
        for number in range(1, count + 1):
            name = f"engine-{number}"
            children[name] = self._children.start(name, *program(name))
        return {name: self._engine_url(child) for name, child in children.items()}

    def _engine_url(self, engine: Child) -> str:
        self._await(lambda: _ENGINE_IS_AT.search(engine.log.read_text()), f"the address of {engine.name}")
        found = _ENGINE_IS_AT.search(engine.log.read_text())
        assert found is not None
        return found[1]

    def _start_nginx(self, name: str, port: int, engines: Sequence[str], workers: int) -> None:
        program = nginx.find()
        if program is None:
            raise StageError(nginx.MISSING)
        place = self._directory / f"{name}-files"
        place.mkdir()
        config = nginx.configuration(port, engines, workers=workers, zone=name == NGINX_ZONE)
        master = self._children.start_program(name, nginx.command(program, place, config))
        pid = master.popen.pid
        offspring = Path(f"/proc/{pid}/task/{pid}/children")
        self._await(lambda: len(offspring.read_text().split()) >= workers, f"{workers} workers of {name}")

    def _await(self, ready: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _START_S
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise StageError(f"waited {_START_S:g} s in vain for {what}; logs: {self._logs()}")
            time.sleep(_LOOK_S)

    def _logs(self) -> str:
        return "\n".join(f"{file.name}: {file.read_text()[-400:]}" for file in self._directory.glob("*.log"))


def _environment() -> dict[str, str]:
    """Without what the user set for a loadboard of their own; the bench itself is not installed."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("LOADBOARD_") and name != "PROXY_INSTANCE_STRATEGY"
    }
    return kept | {"PYTHONPATH": str(_ROOT)}


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False


def _dump(table: str) -> dict[str, Any] | None:
    """What the table holds; ``None`` while there is none."""
    # In a process of its own: this one must keep to one thread while it starts others.
    command = [sys.executable, "-m", "loadboard", "dump", "--json", f"--table={table}"]
    done = subprocess.run(command, env=_environment(), cwd=_ROOT, capture_output=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def _polled(table: str, engines: int) -> bool:
    facts = _dump(table)
    return facts is not None and [each["state"] for each in facts["instances"]].count("up") == engines
