"""A worker process's hold on a table: found, claimed, followed when replaced, claimed anew when lost."""

from __future__ import annotations

import logging
from typing import NamedTuple

from score_table.claim import Claim, ask_for_a_lane
from score_table.errors import TableAbsent, TableError, TableNotReady
from score_table.identity import Directory, read_directory
from score_table.location import Location
from score_table.pick import PickCore
from score_table.segment import Segment

logger = logging.getLogger("loadboard.score_table")

_RETRY_NS = 1_000_000_000
#: Proxies may start before their monitor; for this long that is nothing to warn of.
_PATIENCE_NS = 10_000_000_000


class Attached(NamedTuple):
    """What one pick works on; replaced as a whole, so that a pick never mixes two tables."""

    segment: Segment
    core: PickCore
    directory: Directory
    claim: Claim
    version: int = 0  #: of the ledger, whose seats are settled by ``directory``

    def is_up_to_date(self) -> bool:
        """Whether the slot map is as new as the table."""
        return self.directory.is_up_to_date()

    def with_new_directory(self) -> Attached:
        """The same with the slot map read again."""
        return self._replace(directory=read_directory(self.segment))


class Proposal(NamedTuple):
    """What to attach to from now on. ``lost``: the present lane is not ours any more, so it is left untouched."""

    attached: Attached
    lost: bool


class Attachment:
    """``now`` is the present ``Attached`` or ``None``; ``problem`` says why there is none.

    Everything slow (opening, mapping, claiming) happens in the ``propose`` methods, which change nothing of
    ``now``; :meth:`accept` changes it and is quick. Only one thread at a time may propose.
    """

    def __init__(self, location: Location, core: type[PickCore]) -> None:
        self.location = location
        self.now: Attached | None = None
        self.problem: TableError | None = None
        self._core = core
        self._retry_at = 0
        self._asked: int | None = None
        self._since: int | None = (
            None  #: when a problem that may pass was met; ``None`` once it was warned of
        )

    def propose(self, clock_ns: int) -> Proposal | None:
        """One round: is the table still the one of that name, is the lane still ours, is there one now?"""
        now = self.now
        if now is None:
            return self.propose_table(clock_ns) if self._is_due(clock_ns) else None
        if not now.segment.has_name():
            # Replaced or gone: go on picking from the old one until a new one is there.
            return self.propose_table(clock_ns)
        if not (now.claim.is_mine() and now.claim.holds_lock()):
            logger.warning(
                "lane %d of table %s is not this process's any more (its descriptor was closed, or it was "
                "reclaimed); claiming anew",
                now.claim.lane,
                self.location.text,
            )
            return Proposal(now._replace(claim=self._claim(now.segment, clock_ns)), lost=True)
        if now.claim.private and self._is_due(clock_ns):
            claim = self._free_lane(now.segment, clock_ns)
            return None if claim is None else Proposal(now._replace(claim=claim), lost=False)
        return None

    def propose_table(self, clock_ns: int) -> Proposal | None:
        """The table that has the name now, if there is one that can be used."""
        try:
            segment = Segment.open(self.location, writable=True)
            claim = self._claim(segment, clock_ns)
            attached = Attached(segment, self._core(segment), read_directory(segment), claim)
        except TableError as error:
            self._say(error, clock_ns)
            return None
        except (OSError, ValueError) as error:
            problem = TableError(self.location.text, f"table {self.location.text} cannot be used: {error}")
            self._say(problem, clock_ns)
            return None
        if self.problem is not None:
            logger.info("table %s is there now", self.location.text)
        self.problem = None
        return Proposal(attached, lost=False)

    def accept(self, proposal: Proposal) -> Claim | None:
        """Attach; returns the former claim, to be given back (``release``) or left alone (``abandon``)."""
        former, self.now = self.now, proposal.attached
        return None if former is None else former.claim

    def forget(self) -> None:
        """In a forked child: drop everything without touching the parent's lane or lock."""
        if self.now is not None:
            self.now.claim.abandon()
            self.now = None
        self._retry_at = 0
        self._asked = None

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
        return self._free_lane(segment, clock_ns) or Claim.outside(segment.geometry)

    def _free_lane(self, segment: Segment, clock_ns: int) -> Claim | None:
        try:
            claim = Claim.of_table(segment, clock_ns)
            if claim is None and segment.lanes_hi >= segment.geometry.lanes and self._asked != segment.epoch:
                ask_for_a_lane(segment)
        except (TableError, OSError) as error:
            logger.warning("no lane of table %s can be claimed: %s", self.location.text, error)
            return None
        if claim is None and segment.lanes_hi >= segment.geometry.lanes and self._asked != segment.epoch:
            self._asked = segment.epoch
            logger.warning(
                "table %s has no free lane (all %d in use): this process counts locally and other workers do "
                "not see its requests; raise `lanes` of the monitor",
                self.location.text,
                segment.geometry.lanes,
            )
        return claim

    def _say(self, error: TableError, clock_ns: int) -> None:
        """Log a problem when it is a new one, not each second; one that a start brings about once it lasts."""
        expected = isinstance(error, (TableAbsent, TableNotReady))
        if str(self.problem) != str(error):
            self._since = clock_ns
            level = logging.INFO if expected else logging.WARNING
            logger.log(level, "%s. Until then instances are chosen without a table", error)
        elif expected and self._since is not None and clock_ns - self._since >= _PATIENCE_NS:
            self._since = None
            logger.warning("%s, still; instances are chosen without a table", error)
        self.problem = error
