"""A monitor as a real process, and engines as real HTTP servers."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from monitor.logs import Log
from score_table.errors import TableError
from score_table.reader import InstanceFacts, TableReader, TableSnapshot
from tests.waiting import wait_until

#: Of a start: a loaded machine takes seconds to import everything.
START_S = 30.0


class Engine:
    """Answers ``/metrics`` like vLLM with ``values``; a value that is ``None`` is a missing family."""

    def __init__(self, port: int = 0) -> None:
        self.values: dict[str, str | None] = {
            "vllm:num_requests_running": "0",
            "vllm:num_requests_waiting": "0",
            "vllm:kv_cache_usage_perc": "0.0",
            "vllm:request_success_total": "0",
            "vllm:generation_tokens_total": "0",
            "vllm:prompt_tokens_total": "0",
        }
        self.polls = 0
        self.headers: list[str] = []
        #: Cleared to let every poll hang.
        self.answering = threading.Event()
        self.answering.set()
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                engine.polls += 1
                engine.headers.append(str(self.headers))
                engine.answering.wait(30)
                body = engine.page() if self.path == "/metrics" else b""
                self.send_response(200 if body else 404)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # the monitor may go away in the middle of an answer

            def process_request(self, request: Any, client_address: Any) -> None:
                engine._open.append(request)
                super().process_request(request, client_address)

        self._open: list[socket.socket] = []
        self._server = Server(("127.0.0.1", port), Handler)
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def says(self, **values: object) -> None:
        """Set families by their name without prefix."""
        self.values.update(
            {f"vllm:{name}": None if value is None else str(value) for name, value in values.items()}
        )

    def page(self) -> bytes:
        lines = [
            f'{name}{{model_name="m"}} {value}' for name, value in self.values.items() if value is not None
        ]
        lines.append(
            'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="64000",num_gpu_blocks="4000"} 1.0'
        )
        lines.append("process_start_time_seconds 1.79e9")
        return ("\n".join(lines) + "\n").encode()

    def close(self) -> None:
        """Listen no more and end every connection: the next poll is refused."""
        self.answering.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()


@contextlib.contextmanager
def engines(count: int) -> Iterator[list[Engine]]:
    """Some engines; those that a test closes or replaces in the list are its own affair."""
    listed = [Engine() for _ in range(count)]
    try:
        yield listed
    finally:
        for engine in listed:
            engine.close()


class Monitor:
    """``loadboard run`` on a configuration file that tests may rewrite."""

    def __init__(self, directory: Path, table: str, listed: dict[str, str], **options: object) -> None:
        self.table = table
        self.file = directory / "loadboard.toml"
        self._log = directory / "log"
        self._options = {"interval": 0.05, "timeout": 1.0, "staleness": 3.0, "slots": 16, **options}
        self._process: subprocess.Popen[bytes] | None = None
        #: What Python is told to run; takes the command line of ``loadboard``.
        self.program = ["-m", "loadboard.cli"]
        self.configure(listed)

    def configure(self, listed: dict[str, str], extra: str = "", **options: object) -> None:
        """Write the configuration: instances by id with their URLs; ``extra`` goes to the first of them."""
        self._options.update(options)
        lines = [f"{key} = {json.dumps(value)}" for key, value in self._options.items()]
        for name, url in listed.items():
            lines += ["[[instances]]", f'id = "{name}"', f'url = "{url}"', extra]
            extra = ""
        self.file.write_text("\n".join(lines) + "\n")

    def start(self, **environment: str) -> None:
        """Start it and wait until the table has its heartbeat."""
        self.spawn(**environment)
        wait_until(lambda: self.ready(), START_S, "the monitor's first tick")

    def spawn(self, **environment: str) -> None:
        """Start it."""
        own = {key: value for key, value in os.environ.items() if not key.startswith("LOADBOARD_")}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self.program, "run", "--config", self.file, "--table", self.table],
                env={**own, **environment},
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def ready(self) -> bool:
        """Whether this very process writes the table."""
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the monitor ended with {self._process.returncode}: {self.log()}")
        with contextlib.suppress(TableError):
            facts = self.snapshot()
            return facts.monitor_pid == self.pid and facts.state == "ready" and facts.degraded is None
        return False

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def ended(self) -> int:
        """Its exit code, once it has one."""
        assert self._process is not None
        return self._process.wait(START_S)

    def log(self) -> str:
        return self._log.read_text()

    def wait_for_log(self, text: str) -> None:
        wait_until(lambda: text in self.log(), START_S, f"{text!r} in the log")

    def snapshot(self) -> TableSnapshot:
        with TableReader.open(self.table) as reader:
            return reader.snapshot()

    def instance(self, name: str) -> InstanceFacts | None:
        return next((each for each in self.snapshot().instances if each.id == name), None)

    def wait_for(self, name: str, **facts: object) -> InstanceFacts:
        """The instance as soon as it has these facts."""
        last: list[InstanceFacts] = []

        def has_them() -> bool:
            found = self.instance(name)
            last[:] = [found] if found else []
            return found is not None and all(getattr(found, key) == value for key, value in facts.items())

        try:
            wait_until(has_them, START_S, f"{name} with {facts}")
        except AssertionError as error:
            raise AssertionError(f"{error}; it is {last}\n{self.log()}") from None
        return last[0]

    def close(self) -> None:
        """Kill it."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


#: Makes monitors of one table; see the fixture ``monitor``.
Start = Callable[..., Monitor]


class Silence(Log):
    """A log that leaves the test's own logging alone."""

    def __init__(self) -> None:
        self.level = ""

    def set_level(self, level: str) -> None:
        self.level = level
