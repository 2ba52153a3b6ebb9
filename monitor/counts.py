"""One read of the lanes, as the monitor uses it."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Counts(Protocol):
    """The lanes' natural units, summed over lanes: int64 arrays over all slots. The totals only grow."""

    @property
    def outstanding(self) -> NDArray[np.int64]:
        """Requests dispatched and not ended, held ones included."""

    @property
    def prompt_tokens(self) -> NDArray[np.int64]:
        """Prompt tokens whose first token has not come back."""

    @property
    def kv_tokens(self) -> NDArray[np.int64]:
        """Prompt tokens of all outstanding requests."""

    @property
    def guessed(self) -> NDArray[np.int64]:
        """Of ``kv_tokens``, those of requests that did not tell the length of their prompt.

        Read after ``kv_tokens``: for the moment of one step it may be ahead of them.
        """

    @property
    def held(self) -> NDArray[np.int64]:
        """Failed requests that are still counted."""

    @property
    def dispatched(self) -> NDArray[np.int64]:
        """Total of dispatches."""

    @property
    def ended(self) -> NDArray[np.int64]:
        """Total of requests that ended."""

    @property
    def cells(self) -> NDArray[np.int64]:
        """Units in the lane cells, read just before the natural units."""

    @property
    def suspects(self) -> NDArray[np.int64]:
        """Total of refused connections that workers met."""
