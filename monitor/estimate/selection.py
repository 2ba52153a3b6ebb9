"""Which slots an estimate is about: those of one pool, as an index into the arrays of the fleet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

#: A slice where the pool has all slots, which makes views of the arrays; else the slots, in ascending order.
Selection = slice | NDArray[np.intp]


def key_of(selection: Selection) -> bytes:
    """What tells one pool's selection from another's at the same time."""
    return b"" if isinstance(selection, slice) else selection.tobytes()
