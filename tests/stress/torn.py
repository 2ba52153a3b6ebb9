"""Torn-read hunt: a process that stores words at full speed, and readers that look for halves of two values.

Every value ever stored is a multiple of 0x01010101 (0x0101010101010101 for 64 bits) by a factor so small that
no mixture of the bytes of two such values, and no sum with such a mixture in it, is such a multiple itself. The
stores are those of the product (a tick's rows, a lane's single words and zeroed rows, header words), and so are
the reads. The storing process is also stopped at random moments, to look at what a killed one leaves.

The seed chooses the values; what meets what is up to the machine.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from score_table.layout import TIE_WINDOW, Natural
from score_table.location import Location
from score_table.pick import CORES
from score_table.segment import Segment
from score_table.writer import TableWriter
from tests.stress.hunt import Against, Tally, options, outcome

#: Slots in use: so many that a copy takes them by wide vectors with a tail, and by string moves.
WIDTHS = (61, 4099)
LANES = 4
_CELL, _WORD = 0x01010101, 0x0101010101010101
#: Factors of ``base`` and ``rest``, and of a lane cell; a whole column stays within +-127.
_HEAD, _LANE = 60, 15
_BATCH = 4000
#: ``choose`` answers the trap unless some other cell is torn downwards, by whichever byte.
_LOW, _HIGH = 0x00FFFFFF, 0x01000000
_TRAP = _LOW - TIE_WINDOW - 1
#: Slower readers read this many times less.
_SHARES = {"native": 4, "numpy": 20, "plain": 200}
_HEADER_WORDS = ("heartbeat", "membership", "tick")

Look = Callable[[], NDArray[Any]]


class Table:
    """A table of ``width`` slots in use, all lanes said to be claimed, and its writer."""

    def __init__(self, name: str, width: int, seed: int) -> None:
        self.width = width
        self.rng = np.random.default_rng(seed)
        self.writer = TableWriter.open(name, slots=-(-width // 16) * 16, lanes=LANES)
        self.segment = Segment.open(Location.parse(name), writable=True)
        self.segment.store("n", width)
        self.segment.store("lanes_hi", LANES)
        # Of an odd width most of these begin at no multiple of 16, where a long copy is the least careful.
        self.heads = self._cells((64, width), -_HEAD, _HEAD)
        self.writer.publish(self.heads[0], self.heads[1], _WORD)

    def _cells(self, shape: tuple[int, ...], low: int, high: int) -> NDArray[np.int32]:
        return (self.rng.integers(low, high + 1, shape) * _CELL).astype(np.int32)

    # Stores, each in a process of its own.

    def store_rows(self, said: memoryview) -> None:
        """Ticks."""
        heads = itertools.cycle(self.heads)
        for factor in itertools.cycle(range(1, 128)):
            self.writer.publish(next(heads), next(heads), factor * _WORD)
            said[0] += 2 * self.width

    def store_trap_rows(self, said: memoryview) -> None:
        """Ticks between whose values a torn one shows in the choice; the last slot is the trap."""
        rows = [np.full(self.width, value, dtype=np.int32) for value in (_LOW, _HIGH)]
        for row in rows:
            row[-1] = _TRAP
        for row in itertools.cycle(rows):
            self.writer.publish(row, row, _WORD)
            said[0] += 2 * self.width

    def store_cells(self, said: memoryview) -> None:
        """What the owners of lanes do: single cells, and now and then a whole row zeroed."""
        rows = [self.segment.row(2 + lane) for lane in range(LANES)]
        self._store_lanes(rows, self._cells((1021,), 0, _LANE).tolist(), said)

    def store_naturals(self, said: memoryview) -> None:
        """The same with natural units."""
        rows = [self.segment.natural(lane, Natural.KV_TOKENS) for lane in range(LANES)]
        self._store_lanes(rows, [int(factor) * _WORD for factor in self.rng.integers(0, 128, 1021)], said)

    def _store_lanes(self, rows: list[memoryview], values: list[int], said: memoryview) -> None:
        for number, value in enumerate(itertools.cycle(values)):
            rows[number % LANES][number * 7 % self.width] = value
            if number % 1000 == 999:
                row = rows[number // 1000 % LANES]
                row.cast("B")[:] = bytes(row.nbytes)
                said[0] += 1000

    def store_header(self, said: memoryview) -> None:
        """Header words one after the other."""
        values = [int(factor) * _WORD for factor in self.rng.integers(1, 128, 1021)]
        for value in itertools.cycle(values):
            for name in _HEADER_WORDS:
                self.segment.store(name, value)
            said[0] += len(_HEADER_WORDS)


def _check(tally: Tally, looks: NDArray[Any], summed: int) -> None:
    """Count what ``looks`` (one after the other on the first axis) shows, torn elements above all."""
    step = _WORD if looks.dtype.itemsize == 8 else _CELL
    factors = looks // step
    torn = looks[(factors * step != looks) | (np.abs(factors) > 127)]
    tally.reads += looks.size * summed
    tally.wrong(torn.size, [hex(value & 0xFFFFFFFFFFFFFFFF) for value in torn[:2].tolist()])
    differs = (looks[1:] != looks[:-1]).any(axis=tuple(range(1, looks.ndim)))
    tally.changes += int(np.count_nonzero(differs))


class Hunt:
    """All hunts for torn words at tables of one width."""

    def __init__(self, table: Table, words: int, stops: int, seed: int) -> None:
        self.table, self.words, self.stops = table, words, stops
        self.found: list[Tally] = []
        self._rng = random.Random(seed)

    def run(self) -> None:
        """Everything, one after the other; ``found`` grows."""
        self._rows()
        self._choices()
        self._lanes()
        self._naturals()
        if self.table.width == WIDTHS[0]:
            self._header()

    def _rows(self) -> None:
        table, width = self.table, self.table.width
        rows = table.writer._rows[:2, :width]
        with Against(table.store_rows) as storing:
            self._look("tick rows, numpy copy", rows.copy)
            self._look(
                "tick rows, memoryview", lambda: _array(table.segment.row(0)[:width].tolist()), share=10
            )
            self._lives("tick rows", (-1, 0))
            self._look_at_stopped("tick rows", storing, rows.copy)

    def _choices(self) -> None:
        table = self.table
        with Against(table.store_trap_rows):
            for name, kind in CORES.items():
                target = self.words if name == "native" else self.words // _SHARES[name]
                self._choose(self._tally(f"tick rows, {name} choose"), target, kind(table.segment))
        table.writer.publish(table.heads[0], table.heads[1], _WORD)

    def _lanes(self) -> None:
        cells = self.table.writer._rows[2:, : self.table.width]
        with Against(self.table.store_cells) as storing:
            self._look("lane cells, numpy copy", cells.copy)
            self._lives("lane cells", (-1,), summed=LANES)
            self._look_at_stopped("lane cells", storing, cells.copy)

    def _naturals(self) -> None:
        width = self.table.width
        words = self.table.writer._naturals[:, :, :width]
        row = self.table.segment.natural(0, Natural.KV_TOKENS)[:width]
        with Against(self.table.store_naturals) as storing:
            self._look("natural units, numpy copy", words.copy)
            self._look("natural units, memoryview", lambda: np.array(row.tolist(), dtype=np.int64), share=10)
            self._look_at_stopped("natural units", storing, words.copy)

    def _header(self) -> None:
        read = self.table.segment.read
        with Against(self.table.store_header):
            for name in _HEADER_WORDS:
                self._look(
                    f"header word {name}, Segment.read",
                    lambda name=name: np.fromiter(  # type: ignore[misc]
                        map(read, itertools.repeat(name, _BATCH)), dtype=np.int64, count=_BATCH
                    ),
                    share=10,
                )

    def _lives(self, what: str, fades: tuple[int, ...], summed: int = 1) -> None:
        slots = list(range(self.table.width))
        for name, kind in CORES.items():
            core, fade = kind(self.table.segment), itertools.cycle(fades)
            self._look(
                f"{what}, {name} live",
                lambda core=core, fade=fade: _array(core.live(slots, next(fade), None)),  # type: ignore[misc]
                share=_SHARES[name],
                summed=summed,
            )

    def _tally(self, what: str) -> Tally:
        self.found.append(Tally(f"{self.table.width} slots: {what}"))
        return self.found[-1]

    def _look(self, what: str, look: Look, *, share: int = 1, summed: int = 1) -> None:
        """Look until enough words are read; each element of a look is the sum of ``summed`` words."""
        tally = self._tally(what)
        at_once = max(2, _BATCH // look().size)
        while tally.goes_on(self.words // share):
            _check(tally, np.stack([look() for _ in range(at_once)]), summed)
        tally.say()

    def _look_at_stopped(self, what: str, storing: Against, look: Look) -> None:
        tally, before = self._tally(f"{what}, writer stopped"), look()
        for _ in itertools.islice(storing.stopped(self._rng), self.stops):
            seen = look()
            tally.changes += not np.array_equal(seen, before)
            _check(tally, seen[np.newaxis], 1)
            before = seen
        tally.say()

    def _choose(self, tally: Tally, target: int, core: Any) -> None:
        width, first = self.table.width, self.table.segment.row(0)[:1]
        before = first[0]
        while tally.goes_on(target):
            for _ in range(100):
                answer = core.choose(None, 0, -1, None)
                tally.wrong(answer != width - 1, answer)
                tally.changes += before != (before := first[0])
            tally.reads += 100 * width
        tally.say()


def _array(values: list[int]) -> NDArray[np.int32]:
    return np.array(values, dtype=np.int32)


def main() -> int:
    """One hunt."""
    args = options(__doc__, words=1e9, stops=0)
    stops = int(args.stops or args.words // 50_000)
    found: list[Tally] = []
    try:
        for width in WIDTHS:
            table = Table(f"{args.table}-{width}", width, args.seed)
            hunt = Hunt(table, int(args.words), stops, args.seed)
            hunt.run()
            found += hunt.found
    finally:
        for left in Path("/dev/shm").glob(f"{args.table[1:]}-*"):
            left.unlink()
    return outcome(found, args.seed)


if __name__ == "__main__":
    sys.exit(main())
