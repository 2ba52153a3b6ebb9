"""What a proxy does with an installed loadboard, with exact counts: ``python -I smoke.py IMPLEMENTATION TABLE``.

Run outside of the source tree, with nothing but the package and what it depends on.
"""

from __future__ import annotations

import sys
import sysconfig
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import score_table
from proxy_adapter import build_instance_strategy
from score_table.identity import Identity, Prices
from score_table.writer import TableWriter

INSTANCES = 4
EACH = 100


@dataclass(frozen=True)
class Instance:
    instance_id: str
    host: str
    port: int


def counts(writer: TableWriter) -> dict[str, list[int]]:
    """Per slot: requests outstanding, held, and the totals ever dispatched and ended."""
    naturals = writer.naturals()
    kinds = ("outstanding", "held", "dispatched", "ended")
    return {kind: getattr(naturals, kind)[:INSTANCES].tolist() for kind in kinds}


def expect(writer: TableWriter, **wanted: int) -> None:
    found = counts(writer)
    for kind, each in wanted.items():
        assert found[kind] == [each] * INSTANCES, f"{kind} is {found[kind]}, not {each} each"


def main() -> None:
    implementation, table = sys.argv[1:]
    home = Path(score_table.__file__).resolve().parent
    assert home.parent == Path(sysconfig.get_path("platlib")).resolve(), f"score_table came from {home}"
    assert score_table.implementation == implementation, f"{score_table.implementation}, not {implementation}"

    writer = TableWriter.open(table, slots=64, lanes=8)
    try:
        for slot in range(INSTANCES):
            prices = Prices(1024.0, 3.072, 0.0512)
            writer.assign(slot, Identity(f"i{slot}", f"http://127.0.0.1:{9000 + slot}", 1, prices))
        level = np.zeros(INSTANCES, dtype=np.int32)
        writer.publish(level, level, time.monotonic_ns())

        strategy = build_instance_strategy("least_load", table=table)
        instances = [Instance(f"i{slot}", "127.0.0.1", 9000 + slot) for slot in range(INSTANCES)]
        guards = [strategy.dispatch(instances, prompt_tokens=100) for _ in range(EACH * INSTANCES)]
        expect(writer, outstanding=EACH, held=0, dispatched=EACH, ended=0)
        for guard in guards:
            guard.first_token()
            guard.release()
            guard.release()
        expect(writer, outstanding=0, held=0, dispatched=EACH, ended=EACH)
        for _ in range(EACH * INSTANCES):
            with strategy.dispatch(instances):
                pass
        found = counts(writer)
        assert sum(found["dispatched"]) == sum(found["ended"]) == 2 * EACH * INSTANCES, found
        assert found["outstanding"] == [0] * INSTANCES, found
        strategy.close()
    finally:
        writer.close()
    print(f"{implementation} on {sys.version.split()[0]}: exact")


if __name__ == "__main__":
    main()
