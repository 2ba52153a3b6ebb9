"""Hunt for mixed records: a process that rewrites one detail record, or one identity block, at full speed.

All fields of each are derived from one number, and the reader knows every record and block that is ever
stored: it takes nothing else, to the byte, for whole. A read that says itself that it met a store is no mix, but
counted. The stores are what the monitor does (encoding included), and the same encoded before, which is faster.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from score_table.identity import Identity, Prices, copy_block, is_whole, read_identity
from score_table.layout import IDENTITY_SIZE
from score_table.location import Location
from score_table.records import SAMPLE_FIELDS, STATES, Detail, copy_record, read_detail, store_record
from score_table.segment import Segment
from score_table.writer import TableWriter
from tests.stress.hunt import Against, Tally, options, outcome

_VARIANTS = 512
_BATCH = 1000
_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _detail(number: int, rng: random.Random) -> Detail:
    text = "".join(rng.choices(_LETTERS, k=rng.randrange(1, 280)))
    numbers: dict[str, Any] = {name: rng.random() * 1000 for name in SAMPLE_FIELDS}
    counts = ("sample_boot_ns", "failure_boot_ns", "failures", "dispatched", "ended")
    return Detail(
        generation=number,
        state=rng.choice(STATES),
        reason=text,
        engine=f"e{number}",
        mode=text[:40],
        pool=text[-100:],
        estimated=bool(number & 1),
        **{name: rng.getrandbits(63) for name in counts},
        **numbers,
    )


def _identity(number: int, rng: random.Random) -> Identity:
    text = "".join(rng.choices(_LETTERS, k=rng.randrange(1, 150)))
    prices = Prices(rng.random() * 1000, rng.random(), rng.random())
    return Identity(f"i{number}-{text}", f"http://{text}:{number}", number, prices, {"n": f"{number}-{text}"})


class Records:
    """Slot 0 of a small table, and all that is ever stored there."""

    def __init__(self, name: str, seed: int) -> None:
        rng = random.Random(seed)
        self.writer = TableWriter.open(name, slots=16, lanes=1)
        self.segment = Segment.open(Location.parse(name), writable=True)
        self.details = [_detail(number, rng) for number in range(1, _VARIANTS)]
        self.identities = [_identity(number, rng) for number in range(1, _VARIANTS)]
        self.records = [detail.encoded() for detail in self.details]
        self.blocks = [identity.encoded() for identity in self.identities]
        self.whole = {*self.records, *self.blocks}
        self.writer.write_detail(0, self.details[0])
        self.writer.assign(0, self.identities[0])

    # Stores, each in a process of its own.

    def write_details(self, said: memoryview) -> None:
        for detail in itertools.cycle(self.details):
            self.writer.write_detail(0, detail)
            said[0] += 1

    def store_records(self, said: memoryview) -> None:
        for record in itertools.cycle(self.records):
            store_record(self.segment, 0, record)
            said[0] += 1

    def assign_slots(self, said: memoryview) -> None:
        for identity in itertools.cycle(self.identities):
            self.writer.assign(0, identity)
            said[0] += 1

    def store_blocks(self, said: memoryview) -> None:
        start = self.segment.geometry.identity_offset(0)
        for block in itertools.cycle(self.blocks):
            self.segment.data[start : start + IDENTITY_SIZE] = block
            said[0] += 1

    # Reads, ``None`` for one that met a store.

    def copy_record(self) -> bytes | None:
        return copy_record(self.segment, 0)

    def read_detail(self) -> bytes | None:
        detail = read_detail(self.segment, 0)
        return None if detail is None else detail.encoded()

    def copy_block(self) -> bytes | None:
        block = copy_block(self.segment, 0)
        return block if is_whole(block) else None

    def read_identity(self) -> bytes | None:
        identity = read_identity(self.segment, 0)
        return None if identity is None else identity.encoded()


class Hunt:
    """``records`` copies read whole, a quarter against each way to store, and a twentieth as many decoded."""

    def __init__(self, records: Records, target: int) -> None:
        self.found: list[Tally] = []
        self._records, self._target = records, target

    def run(self) -> None:
        """Everything, one after the other; ``found`` grows."""
        records = self._records
        of_records = (records.copy_record, records.read_detail)
        of_blocks = (records.copy_block, records.read_identity)
        for store, (copy, decode) in (
            (records.write_details, of_records),
            (records.store_records, of_records),
            (records.assign_slots, of_blocks),
            (records.store_blocks, of_blocks),
        ):
            with Against(store):
                self._read(f"{store.__name__} / {copy.__name__}", self._target // 4, copy)
                self._read(f"{store.__name__} / {decode.__name__}", self._target // 80, decode)

    def _read(self, what: str, target: int, read: Callable[[], bytes | None]) -> None:
        tally, before, whole = Tally(what), None, self._records.whole
        self.found.append(tally)
        while tally.goes_on(target):
            for _ in range(_BATCH):
                record = read()
                if record is None:
                    tally.refused += 1
                    continue
                tally.reads += 1
                tally.changes += record != before
                if record not in whole:
                    tally.wrong(1, record)
                before = record
        tally.say()


def main() -> int:
    """One hunt."""
    args = options(__doc__, records=1e8)
    hunt = Hunt(Records(args.table, args.seed), int(args.records))
    try:
        hunt.run()
    finally:
        for left in Path("/dev/shm").glob(f"{args.table[1:]}*"):
            left.unlink()
    return outcome(hunt.found, args.seed)


if __name__ == "__main__":
    sys.exit(main())
