"""A snapshot says what a pick made now goes by."""

from __future__ import annotations

import numpy as np

from score_table.layout import UNITS
from score_table.pick.rules import Mark, marked
from score_table.reader import InstanceFacts, TableReader
from tests.tables import make_table

TICK_NS = 1_000_000_000_000


def test_the_mark_is_that_of_the_row_in_force(table_name: str) -> None:
    """A veto stands in ``base`` alone: once the monitor is silent, picks go by ``rest`` and no longer heed it."""
    writer = make_table(table_name, 2)
    avoided = np.array([Mark.AVOIDED, Mark.NONE], dtype=np.int8)
    nobody = np.zeros(2, dtype=np.int8)
    writer.publish(marked(np.array([2.0, 1.0]) * UNITS, avoided), marked(np.zeros(2), nobody), TICK_NS)

    def first(now_ns: int) -> InstanceFacts:
        with TableReader.open(table_name) as reader:
            return reader.snapshot(now_ns=now_ns).instances[0]

    assert first(TICK_NS).mark == "avoided"
    assert first(TICK_NS).score is None
    silent = first(TICK_NS + 5_000_000_000)
    assert silent.mark == ""
    assert silent.score == 0.0
    writer.close()
