"""What a pick costs: the implementations here against scanning a list of objects for the least load."""

from __future__ import annotations

import argparse
import functools
import json
import secrets
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.harness import Figure, measure
from proxy_adapter import LeastLoadStrategy
from score_table.lane import Lane
from score_table.pick import CORES
from score_table.removal import remove_table
from tests.tables import make_table, publish

SIZES = (4, 16, 64, 256)
LANES = 8
EMPTY = "empty C call"


@dataclass(eq=False)
class Load:
    """As instance objects of proxies carry it."""

    inflight: int = 0
    qps_1m: float = 0.0


@dataclass(eq=False)
class Instance:
    """As proxies have them."""

    instance_id: str
    host: str
    port: int
    load: Load


class ListScan:
    """The comparator: what a proxy does that keeps loads in its instance objects."""

    def __init__(self) -> None:
        self._turn = 0

    def select(self, instances: list[Instance]) -> Instance:
        """The least (inflight, qps_1m); ties rotate."""
        best: list[Instance] = []
        best_key = (float("inf"), float("inf"))
        for instance in instances:
            load = getattr(instance, "load", None)
            inflight = getattr(load, "inflight", None)
            qps = getattr(load, "qps_1m", None)
            key = (float("inf") if inflight is None else inflight, float("inf") if qps is None else qps)
            if key < best_key:
                best, best_key = [instance], key
            elif key == best_key:
                best.append(instance)
        self._turn += 1
        return best[self._turn % len(best)]


def run(size: int) -> dict[str, Figure]:
    """All cases for ``size`` instances."""
    name = f"/loadboard-bench-{secrets.token_hex(4)}"
    writer = make_table(name, size, slots=max(16, size), lanes=LANES)
    # An hour ahead would be a clock mismatch; the lanes' clock stands instead, so that no tick is needed.
    now = 10**12
    publish(writer, now_ns=now)
    others = [Lane(name, clock=lambda: now) for _ in range(LANES - 1)]
    lane = Lane(name, clock=lambda: now)
    try:
        for each in (*others, lane):
            each.attach()
        attached = lane.current()
        assert attached is not None
        instances = [Instance(f"i{slot}", "127.0.0.1", 9000 + slot, Load()) for slot in range(size)]
        strategy = LeastLoadStrategy(lane=lane)
        scan = ListScan()
        cases: dict[str, Callable[[], object]] = {
            "list scan": lambda: scan.select(instances),
            "dispatch + release": lambda: strategy.dispatch(instances, prompt_tokens=100).release(),
        }
        half = range(0, size, 2)
        for core_name, core_class in CORES.items():
            core = core_class(attached.segment)
            some = core.prepare(half)
            cases[f"pick ({core_name})"] = functools.partial(core.choose, None, 0, -1, None)
            cases[f"pick of half ({core_name})"] = functools.partial(core.choose, some, 0, -1, None)
        if "native" in CORES:
            from score_table import _native

            cases[EMPTY] = _native.nothing
        return measure(cases)
    finally:
        for each in (*others, lane):
            each.close()
        writer.close()
        remove_table(name, force=True)


def main() -> int:
    """Print the table, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to FILE")
    args = parser.parse_args()
    results = {size: run(size) for size in SIZES}
    print(
        f"CPU time per call, {LANES} lanes; ratios to the list scan and to an empty C call of the same run\n"
    )
    print(f"{'instances':>9}  {'case':<24} {'/ scan':>8} {'/ empty':>8}  {'us':>8}  {'p10..p90 us':>16}")
    for size, figures in results.items():
        scan = figures["list scan"].median
        empty = figures[EMPTY].median if EMPTY in figures else float("nan")
        for name, figure in figures.items():
            spread = f"{figure.low / 1e3:.2f}..{figure.high / 1e3:.2f}"
            ratios = f"{figure.median / scan:>8.3f} {figure.median / empty:>8.1f}"
            print(f"{size:>9}  {name:<24} {ratios}  {figure.median / 1e3:>8.3f}  {spread:>16}")
    if args.json:
        plain = {
            size: {name: asdict(figure) for name, figure in figures.items()}
            for size, figures in results.items()
        }
        args.json.write_text(json.dumps(plain, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
