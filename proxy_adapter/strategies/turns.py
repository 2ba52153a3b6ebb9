"""Where rotations go on: one cursor for each kind of list.

Instances that tie are taken in turn. With one cursor for all lists, pools that are asked alternately would push each
other on, and always meet the same of their members.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from score_table.ledger import Picker
from score_table.ledger.rules import TURNS, turn_of

_LISTS_KEPT = 1024


class Turns:
    """Cursors by kind of list, of random starts, so that workers do not move in step.

    Those over slots are kept by ``picker`` where there is one, which uses them as well.
    """

    def __init__(self, rng: random.Random, picker: Picker | None) -> None:
        start = rng.randrange(2**16)
        self._picker = picker
        self._by_slots = [start] * TURNS
        self._start = start
        self._by_lists: dict[tuple[Any, ...], int] = {}
        if picker is not None:
            for turn in range(TURNS):
                picker.set_cursor(turn, start)

    def of_slots(self, lowest: int, highest: int) -> int:
        """The cursor of lists whose slots lie between these."""
        turn = turn_of(lowest, highest)
        return self._by_slots[turn] if self._picker is None else self._picker.cursor(turn)

    def set_of_slots(self, lowest: int, highest: int, cursor: int) -> None:
        """Go on from ``cursor`` with such lists."""
        turn = turn_of(lowest, highest)
        if self._picker is None:
            self._by_slots[turn] = cursor
        else:
            self._picker.set_cursor(turn, cursor)

    def of_list(self, instances: Sequence[Any]) -> int:
        """The position to begin at in that list."""
        return self._by_lists.get(_kind_of(instances), self._start) % len(instances)

    def set_of_list(self, instances: Sequence[Any], position: int) -> None:
        """Go on from ``position`` with that list."""
        if len(self._by_lists) >= _LISTS_KEPT:
            self._by_lists.clear()
        self._by_lists[_kind_of(instances)] = position


def _kind_of(instances: Sequence[Any]) -> tuple[Any, ...]:
    try:
        return len(instances), str(instances[0].instance_id), str(instances[-1].instance_id)
    except Exception:  # objects that cannot tell an id rotate by the length of their list
        return (len(instances),)
