"""Real processes for the stress tests: monitors, and one server that plays the metrics of many engines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from score_table.errors import TableError
from score_table.reader import TableReader, TableSnapshot
from tests.waiting import wait_until

COMMAND = str(Path(sys.executable).with_name("loadboard"))

_PAGE = b"""\
vllm:num_requests_running{engine="0",model_name="m"} 0
vllm:num_requests_waiting{engine="0",model_name="m"} 0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0
vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 0
"""


class _Metrics(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(_PAGE)))
        self.end_headers()
        self.wfile.write(_PAGE)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextlib.contextmanager
def idle_engines(count: int) -> Iterator[list[str]]:
    """``ID=URL`` of ``count`` engines, ids ``i0`` on, that always say they are idle; metrics only."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Metrics)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield [f"i{n}=http://127.0.0.1:{server.server_port}/e{n}" for n in range(count)]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Monitor:
    """A ``loadboard run`` process."""

    def __init__(self, table: str, instances: list[str], *options: str) -> None:
        self.table = table
        arguments = [argument for instance in instances for argument in ("--instance", instance)]
        self.process = subprocess.Popen(
            [COMMAND, "run", "--table", table, *arguments, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_all_sampled(self, count: int) -> None:
        """Until this very process has published a fresh sample of every instance."""

        def sampled() -> bool:
            now = look(self.table)
            return (
                now is not None
                and now.monitor_pid == self.process.pid
                and now.degraded is None
                and [instance.state for instance in now.instances] == ["up"] * count
            )

        wait_until(sampled, timeout=60, what=f"samples of {count} instances")

    def kill(self) -> None:
        """SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self._reap()

    def stop(self) -> int:
        """SIGTERM; returns the exit status."""
        if self.process.poll() is None:
            self.process.terminate()
        return self._reap()

    def _reap(self) -> int:
        self.process.communicate(timeout=30)
        return self.process.returncode


@contextlib.contextmanager
def monitor(table: str, instances: list[str], *options: str) -> Iterator[Monitor]:
    """A monitor that has sampled everything, stopped at the end."""
    running = Monitor(table, instances, *options)
    try:
        running.wait_until_all_sampled(len(instances))
        yield running
    finally:
        running.stop()


def look(table: str) -> TableSnapshot | None:
    """The table now; ``None`` while it cannot be read."""
    try:
        with TableReader.open(table) as reader:
            return reader.snapshot()
    except TableError:
        return None


def outstanding(table: str) -> list[int]:
    """Outstanding requests per instance, in the order of the slots."""
    now = look(table)
    assert now is not None, f"no table {table}"
    return [instance.outstanding for instance in now.instances]


def segments(table: str) -> set[str]:
    """What lies in /dev/shm under the table's name."""
    return {path.name for path in Path("/dev/shm").glob(table[1:] + "*")}


class Worker:
    """A forked worker process that runs ``work(report)`` and then waits to be killed or ended."""

    def __init__(self, work: Any) -> None:
        read_end, write_end = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            status = 1
            try:
                os.close(read_end)
                answer = json.dumps(work())
                os.write(write_end, answer.encode())
                os.close(write_end)
                signal.pause()
                status = 0
            finally:
                os._exit(status)
        os.close(write_end)
        self._read_end = read_end

    def report(self) -> Any:
        """What ``work`` returned."""
        with os.fdopen(self._read_end, "rb") as file:
            return json.loads(file.read())

    def kill(self) -> None:
        """SIGKILL, and wait for the process to be gone."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
