"""Workers of real gunicorn and uvicorn that are recycled, reloaded and killed under load."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stress.hosts import CHUNK, CHUNKS
from tests.stress.keeper import Keeper
from tests.waiting import wait_until

pytest.importorskip("gunicorn")

_ROOT = Path(__file__).parents[2]
_GUNICORN = ("gunicorn", "--no-control-socket", "--log-level", "error", "--graceful-timeout", "5")
_CLIENTS = 4


class Server:
    """A server with its workers, listening on a socket that the test made."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, dispatches: Path) -> None:
        self.process = process
        self.port = port
        self._dispatches = dispatches

    @property
    def dispatched(self) -> int:
        """What the workers say they dispatched, all of them together."""
        return self._dispatches.stat().st_size

    def workers(self) -> list[int]:
        """Its child processes."""
        pid = self.process.pid
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def ask(self, path: str = "/") -> bool:
        """One request, its answer read to the end; false where the connection breaks."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return answer.status == 204 or (answer.status == 200 and body == CHUNK * CHUNKS)

    def leave_early(self) -> None:
        """A client that goes as soon as it has sent its request."""
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 20) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")

    @contextlib.contextmanager
    def load(self) -> Iterator[None]:
        """Several clients that ask all the time, and now and then do not wait for the answer."""
        over = threading.Event()
        failures: list[BaseException] = []

        def client(number: int) -> None:
            try:
                while not over.is_set():
                    number += 1
                    if number % 10 == 0:
                        self.leave_early()
                    wait_until(self.ask, timeout=30, what="an answer")
            except BaseException as error:
                failures.append(error)

        clients = [threading.Thread(target=client, args=(number,)) for number in range(_CLIENTS)]
        for thread in clients:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in clients:
                thread.join()
        assert not failures, failures[0]


@contextlib.contextmanager
def serving(table: str, directory: Path, *argv: str, warm: bool = False) -> Iterator[Server]:
    """``argv`` with ``{fd}`` as the descriptor to listen on; killed with all its workers at the end."""
    dispatches = directory / "dispatches"
    dispatches.touch()
    log = directory / "server.log"
    with socket.socket() as listener, log.open("wb") as output:
        listener.bind(("127.0.0.1", 0))
        listener.listen(64)
        fd = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", *(argument.format(fd=fd) for argument in argv)],
            stdout=output,
            stderr=output,
            cwd=_ROOT,
            pass_fds=[fd],
            env={**os.environ, "LOADBOARD_TABLE": table, "DISPATCHES": str(dispatches), "WARM": "1" * warm},
            start_new_session=True,
        )
        server = Server(process, listener.getsockname()[1], dispatches)
        try:
            wait_until(lambda: process.poll() is not None or server.ask("/health"), 60, "the server")
            yield server
        except BaseException:
            print(log.read_text())
            raise
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def keeper(table_name: str) -> Iterator[Keeper]:
    with Keeper(table_name) as running:
        yield running


def _only_living_workers_have_lanes(server: Server, keeper: Keeper) -> bool:
    return set(keeper.now().lanes) <= {server.process.pid, *server.workers()}


SERVERS = {
    "sync": (*_GUNICORN, "-w", "2", "-b", "fd://{fd}", "--max-requests", "5"),
    "gthread": (*_GUNICORN, "-w", "2", "--threads", "3", "-b", "fd://{fd}", "--max-requests", "5"),
    "uvicorn worker": (
        *(*_GUNICORN, "-w", "2", "-b", "fd://{fd}", "--max-requests", "5"),
        *("-k", "uvicorn.workers.UvicornWorker"),
    ),
    "uvicorn": (
        *("uvicorn", "--workers", "2", "--fd", "{fd}", "--limit-max-requests", "5"),
        *("--log-level", "error", "--timeout-graceful-shutdown", "5"),
    ),
}


@pytest.mark.parametrize("kind", SERVERS)
def test_recycled_workers_leave_no_count_and_no_lane(keeper: Keeper, tmp_path: Path, kind: str) -> None:
    application = "tests.stress.server_app:" + ("asgi" if "uvicorn" in kind else "wsgi")
    with serving(keeper.table, tmp_path, *SERVERS[kind], application) as server:
        with server.load():
            wait_until(lambda: len(keeper.pids) >= 5, 60, "three workers in the place of others")
        keeper.settle(lanes=None, what=kind)
        wait_until(lambda: _only_living_workers_have_lanes(server, keeper), 1.0, "the lanes of dead workers")
        server.process.terminate()
        server.process.wait(20)
        sent = server.dispatched
        keeper.settle(dispatched=sent, ended=sent, count_errors=0, what=kind)


def test_thirty_recycled_workers_of_a_master_that_has_requests_open_leak_no_lane(
    keeper: Keeper, tmp_path: Path
) -> None:
    argv = (*_GUNICORN, "--preload", "-w", "2", "-b", "fd://{fd}", "--max-requests", "5")
    with serving(keeper.table, tmp_path, *argv, "tests.stress.server_app:wsgi", warm=True) as server:
        with server.load():
            wait_until(lambda: len(keeper.pids) >= 31, 60, "the master and thirty workers")
        keeper.settle(open=1, lanes=None, what="the master's request")
        wait_until(lambda: _only_living_workers_have_lanes(server, keeper), 1.0, "the lanes of dead workers")
        server.process.terminate()
        server.process.wait(20)
        sent = server.dispatched
        keeper.settle(dispatched=sent, ended=sent - 1, count_errors=0)


def test_a_reload_and_killed_workers_leave_no_count_and_no_lane(keeper: Keeper, tmp_path: Path) -> None:
    argv = (*_GUNICORN, "-w", "2", "--threads", "3", "-b", "fd://{fd}")
    with serving(keeper.table, tmp_path, *argv, "tests.stress.server_app:wsgi") as server:
        with server.load():
            wait_until(lambda: len(keeper.now().lanes) == 2, 20, "both workers")
            first = set(keeper.now().lanes)
            os.kill(server.process.pid, signal.SIGHUP)
            wait_until(lambda: len(set(keeper.now().lanes) - first) == 2, 20, "workers after the reload")
            for killed in range(1, 4):
                os.kill(keeper.now().lanes[-1], signal.SIGKILL)
                wait_until(lambda: len(keeper.pids) >= 4 + killed, 20, "a worker in its place")  # noqa: B023
        keeper.settle(lanes=None)
        wait_until(lambda: _only_living_workers_have_lanes(server, keeper), 1.0, "the lanes of dead workers")
        server.process.terminate()
        server.process.wait(20)
        settled = keeper.settle(count_errors=0)
        # A killed worker's open requests have no end; what it did between counting and saying so is not known.
        most_at_once = 3 * 3
        assert abs(settled.dispatched - server.dispatched) <= most_at_once
        assert settled.dispatched - most_at_once <= settled.ended <= settled.dispatched
