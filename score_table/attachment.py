"""A worker process's hold on a table: found, claimed, followed when replaced, claimed anew when lost."""

from __future__ import annotations

import logging
from typing import NamedTuple

from score_table.claim import Claim, ask_for_lanes
from score_table.errors import TableAbsent, TableError, TableNotReady
from score_table.identity import Directory, read_directory
from score_table.layout import MARK_BAND, Mark
from score_table.location import Location
from score_table.pick import PickCore
from score_table.segment import Segment

logger = logging.getLogger("loadboard.score_table")

_RETRY_NS = 1_000_000_000
_UNUSED_FROM = Mark.UNUSED.cell - MARK_BAND // 2


class Attached(NamedTuple):
    """What one pick works on; replaced as a whole, so that a pick never mixes two tables."""

    segment: Segment
    core: PickCore
    directory: Directory
    claim: Claim

    def is_up_to_date(self) -> bool:
        """Whether the slot map is as new as the table."""
        return self.segment.read("membership") == self.directory.membership

    def with_new_directory(self) -> Attached:
        """The same with the slot map read again."""
        return self._replace(directory=read_directory(self.segment, _UNUSED_FROM))


class Attachment:
    """``now`` is the present ``Attached`` or ``None``; ``problem`` says why there is none.

    The methods that change ``now`` must not run at the same time; they answer whether the rows to count in
    became others, so that every open charge has to be counted again.
    """

    def __init__(self, location: Location, core: type[PickCore]) -> None:
        self.location = location
        self.now: Attached | None = None
        self.problem: TableError | None = None
        self._core = core
        self._retry_at = 0

    def attach(self, clock_ns: int) -> bool:
        """Attach to the table that has the name now, if there is one that can be used."""
        former = self.now
        try:
            segment = Segment.open(self.location, writable=True)
            claim = self._claim(segment, clock_ns)
        except TableError as error:
            self._say(error)
            return False
        except (OSError, ValueError) as error:
            self._say(TableError(self.location.text, f"table {self.location.text} cannot be used: {error}"))
            return False
        if self.problem is not None:
            logger.info("table %s is there now", self.location.text)
        self.problem = None
        self.now = Attached(segment, self._core(segment), read_directory(segment, _UNUSED_FROM), claim)
        if former is not None:
            former.claim.release()
        return True

    def look_after(self, clock_ns: int) -> bool:
        """One round: is the table still the one of that name, is the lane still ours, is there one now?"""
        now = self.now
        if now is None:
            return self._is_due(clock_ns) and self.attach(clock_ns)
        if not now.segment.is_current():
            # Retired, replaced or gone: go on picking from the old one until a new one is there.
            return self.attach(clock_ns)
        if not (now.claim.is_mine() and now.claim.holds_lock()):
            logger.warning(
                "lane %d of table %s is not this process's any more (its descriptor was closed, or it was "
                "reclaimed); claiming anew",
                now.claim.lane,
                self.location.text,
            )
            return self._claim_anew(now, clock_ns)
        if now.claim.private and self._is_due(clock_ns):
            return self._claim_anew(now, clock_ns)
        return False

    def forget(self) -> None:
        """In a forked child: drop everything without touching the parent's lane or lock."""
        if self.now is not None:
            self.now.claim.abandon()
            self.now = None
        self._retry_at = 0

    def release(self) -> None:
        """Give the lane back."""
        if self.now is not None:
            self.now.claim.release()
            self.now = None

    def _is_due(self, clock_ns: int) -> bool:
        if clock_ns < self._retry_at:
            return False
        self._retry_at = clock_ns + _RETRY_NS
        return True

    def _claim(self, segment: Segment, clock_ns: int) -> Claim:
        claim = Claim.of_table(segment, clock_ns)
        if claim is not None:
            return claim
        if segment.lanes_hi >= segment.geometry.lanes:
            ask_for_lanes(segment)
            logger.warning(
                "table %s has no free lane (all %d in use): this process counts locally and other workers do "
                "not see its requests; raise `lanes` of the monitor",
                self.location.text,
                segment.geometry.lanes,
            )
        return Claim.outside(segment.geometry)

    def _claim_anew(self, now: Attached, clock_ns: int) -> bool:
        try:
            claim = Claim.of_table(now.segment, clock_ns)
        except (TableError, OSError):
            claim = None
        if claim is None:
            if now.claim.private:
                return False
            claim = Claim.outside(now.segment.geometry)
        now.claim.abandon()
        self.now = now._replace(claim=claim)
        return True

    def _say(self, error: TableError) -> None:
        """Log a problem when it is a new one, not each second."""
        if str(self.problem) != str(error):
            expected = isinstance(error, (TableAbsent, TableNotReady))
            level = logging.INFO if expected else logging.WARNING
            logger.log(level, "%s. Until then instances are chosen without a table", error)
        self.problem = error
