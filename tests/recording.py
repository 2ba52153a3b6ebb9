"""A recorded run: the table's bytes before every pick, and what was picked, to be explained afterwards."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proxy_adapter.strategies.base import CountingStrategy
from score_table.explanation import Explanation
from score_table.lane import Lane
from score_table.layout import UNITS
from score_table.location import Location
from score_table.reader import TableReader
from tests.unit.proxy_adapter.instances import Plain


@dataclass(frozen=True)
class Picked:
    """One pick: what there was before it, and the id that was chosen."""

    table: bytes
    ids: tuple[str, ...]
    cursor: int | None
    now_ns: int
    open_units: dict[str, int]
    private: list[int] | None
    chosen: str
    said: Explanation  #: by the strategy itself, before


class Recorder:
    """Picks through :meth:`before` and :meth:`after`; the instances are in the table by their own ids, or not at all."""

    def __init__(self, location: str) -> None:
        self._path = Location.parse(location).path
        self.picks: list[Picked] = []

    def pick(self, lane: Lane, strategy: CountingStrategy, instances: Sequence[Plain], dispatch: Any) -> Any:
        """Record what there is, then ``dispatch(instances)``, which answers the instance and anything else."""
        said = strategy.why(instances)
        table = zlib.compress(self._path.read_bytes(), 1)
        now = lane.now_ns()
        attached = lane.attached
        assert attached is not None
        claim = attached.claim
        private = claim.cells.tolist() if claim.private else None
        seats = [lane.seat(each.instance_id, each.host, each.port) for each in instances]
        open_units = {seat.key: max(seat.units, seat.open * UNITS) for seat in seats}
        instance, answer = dispatch(instances)
        ids = tuple(each.instance_id for each in instances)
        self.picks.append(
            Picked(table, ids, said.cursor, now, open_units, private, instance.instance_id, said)
        )
        return answer


def replayed(pick: Picked, file: Path) -> Explanation:
    """What the public reader says of the bytes, from a file."""
    file.write_bytes(zlib.decompress(pick.table))
    file.chmod(0o600)
    with TableReader.open(str(file)) as reader:
        return reader.explain(
            pick.ids,
            cursor=pick.cursor,
            now_ns=pick.now_ns,
            boot_ns=0,
            open_units=pick.open_units,
            private=pick.private,
        )
