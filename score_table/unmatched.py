"""What one process has outstanding at instances that have no slot, at nominal prices."""

from __future__ import annotations

from collections.abc import Iterator

from score_table.charge import Charge
from score_table.counting import NOMINAL, price


class Unmatched:
    """Units per instance id. The methods that change it run one at a time, as changes of a lane do."""

    def __init__(self) -> None:
        self._charges: dict[Charge, int] = {}
        self._units: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._charges)

    def __iter__(self) -> Iterator[Charge]:
        return iter(tuple(self._charges))

    def units(self, key: str) -> int:
        """Units outstanding under that id; 1024 are one request."""
        return self._units.get(key, 0)

    def add(self, charge: Charge) -> None:
        """Count ``charge``, or count it anew where its phase has changed."""
        self.remove(charge)
        units = self._charges[charge] = price(charge, NOMINAL)
        self._units[charge.key] = self._units.get(charge.key, 0) + units

    def remove(self, charge: Charge) -> None:
        """Take ``charge`` back; harmless if it is not here."""
        units = self._charges.pop(charge, None)
        if units is not None:
            left = self._units[charge.key] - units
            if left:
                self._units[charge.key] = left
            else:
                del self._units[charge.key]
