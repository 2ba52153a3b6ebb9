"""A monitor of few lines for tests that count: it keeps a table's heartbeat, reclaims lanes and reads every count."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field, replace

import numpy as np

from score_table.identity import Identity
from score_table.pick.rules import marked
from score_table.reader import TableReader
from score_table.writer import TableWriter
from tests.tables import PRICES, instance_id
from tests.waiting import wait_until

_TICK_S = 0.01


@dataclass(frozen=True)
class Counts:
    """What the table says at one tick. Totals are those of all tables that the keeper had."""

    outstanding: tuple[int, ...] = ()
    held: int = 0
    prompt_tokens: int = 0
    kv_tokens: int = 0
    guessed: int = 0
    dispatched: int = 0
    ended: int = 0
    units: int = 0  #: sum of all lane cells
    lowest: int = 0  #: the smallest level of any slot; never below 0
    lanes: tuple[int, ...] = ()  #: pids of lanes in use
    count_errors: int = 0  #: the most that was ever seen in one lane
    ticks: int = 0

    @property
    def open(self) -> int:
        """All outstanding requests."""
        return sum(self.outstanding)

    @property
    def levels(self) -> tuple[int, int, int, int, int, int]:
        """Everything that is 0 where nothing is open."""
        return self.open, self.held, self.prompt_tokens, self.kv_tokens, self.guessed, self.units


@dataclass
class Keeper:
    """``with Keeper(table) as keeper:`` the table is there and alive. A thread of its own ticks."""

    table: str
    instances: int = 4
    slots: int = 16
    lanes: int = 16
    pids: set[int] = field(default_factory=set)  #: of all processes that ever had a lane
    _now: Counts = field(default_factory=Counts)
    _before: Counts = field(default_factory=Counts)  #: the totals of former tables
    _failure: BaseException | None = None

    def __enter__(self) -> Keeper:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._reader.close()
        self._writer.close()

    def now(self) -> Counts:
        """The counts as of the last tick."""
        if self._failure is not None:
            raise AssertionError("the keeper died") from self._failure
        return self._now

    def replace(self, *, slots: int, lanes: int) -> None:
        """Go on in another segment, which is larger."""
        self._end()
        self._tick()
        self._reader.close()
        self._writer.close()
        self._before = self._now
        self.slots, self.lanes = slots, lanes
        self._start()

    def settle(
        self, *, open: int = 0, lanes: int | None = 0, timeout: float = 2.0, what: str = "", **exact: int
    ) -> Counts:
        """Wait until ``open`` requests are outstanding and ``lanes`` lanes are in use, then compare ``exact``.

        With nothing open every level has to be 0.
        """

        def right() -> bool:
            now = self.now()
            return (
                now.open == open
                and (lanes is None or len(now.lanes) == lanes)
                and (open > 0 or not any(now.levels))
                and all(getattr(now, name) == value for name, value in exact.items())
            )

        wanted = {"open": open, "lanes": lanes, **exact}
        with contextlib.suppress(AssertionError):
            wait_until(right, timeout=timeout)
        assert right(), f"{what}: want {wanted}, the table says {self.now()}"
        assert self.now().lowest >= 0, self.now()
        return self.now()

    # -- the thread -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._writer = TableWriter.open(self.table, slots=self.slots, lanes=self.lanes)
        if not self._writer.adopted:
            for slot in range(self.instances):
                url = f"http://127.0.0.1:{9000 + slot}"
                self._writer.assign(slot, Identity(instance_id(slot), url, 1, PRICES))
        self._reader = TableReader.open(self.table)
        self._stop = threading.Event()
        self._tick()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._thread.start()

    def _end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.wait(_TICK_S):
                self._tick()
        except BaseException as error:
            self._failure = error

    def _tick(self) -> None:
        writer = self._writer
        writer.reclaim()
        now = time.monotonic_ns()
        read = writer.naturals()
        rows = marked(np.zeros(writer.n), np.zeros(writer.n, dtype=np.int8))
        writer.publish(rows, rows, now)
        lanes = self._reader.snapshot().lanes
        self.pids |= {lane.pid for lane in lanes}
        levels = (
            read.outstanding,
            read.held,
            read.prompt_tokens,
            read.kv_tokens,
            read.guessed,
            read.cells,
        )
        self._now = replace(
            self._now,
            outstanding=tuple(read.outstanding[: self.instances].tolist()),
            held=int(read.held.sum()),
            prompt_tokens=int(read.prompt_tokens.sum()),
            kv_tokens=int(read.kv_tokens.sum()),
            guessed=int(read.guessed.sum()),
            dispatched=self._before.dispatched + int(read.dispatched.sum()),
            ended=self._before.ended + int(read.ended.sum()),
            units=int(read.cells.sum()),
            lowest=min(int(level.min()) for level in levels),
            lanes=tuple(lane.pid for lane in lanes),
            count_errors=max([self._now.count_errors, *(lane.count_errors for lane in lanes)]),
            ticks=self._now.ticks + 1,
        )
