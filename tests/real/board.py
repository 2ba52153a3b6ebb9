"""The commands under test: the monitor, the proxy, and ``loadboard dump`` as the window on the table."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.real.engines import Engine
from tests.real.processes import Session, free_port
from tests.waiting import wait_until

LOADBOARD = str(Path(sys.executable).with_name("loadboard"))
POLL_INTERVAL_S = 0.5
# What a developer's shell says of tables and strategies is none of the test's business.
_ENVIRON = {
    key: value for key, value in os.environ.items() if not key.startswith(("LOADBOARD_", "PROXY_INSTANCE_"))
}
_COMMAND_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Row:
    """What the table says of one instance."""

    state: str
    outstanding: int
    held: int
    dispatched: int
    inflight: int | None  # as sampled from the engine; None: not known


@dataclass(frozen=True)
class View:
    """One dump of the table."""

    degraded: str | None
    lanes: int  # proxy workers that count in it
    picks: int  # of those workers so far
    degraded_picks: dict[str, int]
    count_errors: int
    rows: dict[str, Row]

    @property
    def outstanding(self) -> int:
        return sum(row.outstanding for row in self.rows.values())

    @property
    def sampled(self) -> int | None:
        """Sum of the sampled requests inside the engines; None while one of them is not known."""
        inflight = [row.inflight for row in self.rows.values()]
        return None if None in inflight else sum(number for number in inflight if number is not None)


def parse_dump(text: str) -> View:
    """Read the output of ``loadboard dump --json``."""
    table = json.loads(text)
    lanes = table["lanes"]
    degraded: Counter[str] = Counter()
    for lane in lanes:
        degraded.update(lane["degraded_picks"])
    return View(
        degraded=table["degraded"],
        lanes=table["lanes_in_use"],
        picks=sum(lane["picks"] for lane in lanes),
        degraded_picks={reason: count for reason, count in degraded.items() if count},
        count_errors=sum(lane["count_errors"] for lane in lanes),
        rows={row["id"]: _row(row) for row in table["instances"]},
    )


def _row(row: dict[str, Any]) -> Row:
    inflight = row["inflight"]
    return Row(
        state=row["state"],
        outstanding=row["outstanding"],
        held=row["held"],
        dispatched=row["dispatched"],
        inflight=None if inflight is None else int(inflight),
    )


class Board:
    """A monitor and a proxy of two workers on a table of their own."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = tuple(engines)
        self.table = f"/loadboard-real-{secrets.token_hex(4)}"
        self.url = f"http://127.0.0.1:{free_port()}"
        self.monitor: Session | None = None
        self.proxy: Session | None = None

    def start(self) -> None:
        """Start both and wait until every instance is up in the table and the proxy hands requests on."""
        instances = [f"--instance={engine.instance_id}={engine.url}" for engine in self.engines]
        self.monitor = Session(
            "monitor",
            [LOADBOARD, "run", "--table", self.table, "--interval", str(POLL_INTERVAL_S), *instances],
            _ENVIRON,
        )
        self._wait(self.monitor, self._all_up, "every instance to be up in the table")
        port = self.url.rpartition(":")[2]
        self.proxy = Session(
            "proxy",
            [
                *(LOADBOARD, "proxy", "--table", self.table, "--workers", "2", "--strategy", "least_load"),
                *("--host", "127.0.0.1", "--port", port, "--graceful-timeout", "5"),
            ],
            _ENVIRON,
        )
        self._wait(self.proxy, self._proxy_answers, "an answer through the proxy")

    def close(self) -> None:
        """Stop what runs and remove the table, whatever state they are in."""
        for session in (self.proxy, self.monitor):
            if session is not None:
                session.stop()
        for left in self.files():
            left.unlink(missing_ok=True)

    def files(self) -> list[Path]:
        """Everything in shared memory that bears the table's name."""
        return sorted(Path("/dev/shm").glob(f"*{self.table[1:]}*"))

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``loadboard ARGUMENTS`` to its end."""
        return subprocess.run(
            [LOADBOARD, *arguments],
            env=_ENVIRON,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )

    def dump(self) -> View:
        done = self.command("dump", "--json", "--table", self.table)
        assert done.returncode == 0, f"loadboard dump: status {done.returncode}: {done.stderr}"
        return parse_dump(done.stdout)

    async def dump_soon(self) -> View:
        """:meth:`dump` while the event loop goes on serving the clients."""
        return await asyncio.to_thread(self.dump)

    def _all_up(self) -> bool:
        done = self.command("dump", "--json", "--table", self.table)
        if done.returncode != 0:
            return False
        rows = parse_dump(done.stdout).rows
        return all(e.instance_id in rows and rows[e.instance_id].state == "up" for e in self.engines)

    def _proxy_answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/v1/models", timeout=5.0).status_code == 200
        except httpx.TransportError:
            return False

    @staticmethod
    def _wait(session: Session, condition: Callable[[], object], what: str) -> None:
        def reached() -> bool:
            status = session.exit_status()
            assert status is None, f"{session.name} ended with status {status}:\n{session.tail()}"
            return bool(condition())

        try:
            wait_until(reached, _START_TIMEOUT_S, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{session.tail()}") from None
