"""One open table and all that is known of its instances, without I/O, tasks or a clock of its own.

Whoever runs a board tells it the time, delivers polls to its ``fleet``, and starts and stops pollers as the
:class:`Changes` say: the daemon does so on an event loop, a simulation in virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from monitor.config import MonitorConfig
from monitor.discovery import Discovered
from monitor.fleet import Fleet
from monitor.membership import Changes, Membership, SlotTable
from monitor.pools import Pool, Pools, pools_of
from monitor.reclaim import LaneTable, reclaim
from monitor.tick import Table, Ticker

#: Time between two searches for lanes whose workers are gone.
RECLAIM_NS = 100_000_000


class BoardTable(Table, SlotTable, LaneTable, Protocol):
    """What a board needs of :class:`score_table.writer.TableWriter`."""


class Board:
    """Begin with :meth:`start`; then :meth:`tick` on a grid. One thread; only the monitor has one."""

    def __init__(self, table: BoardTable, config: MonitorConfig) -> None:
        self._table = table
        self._config = config
        #: The pollers' sink.
        self.fleet = Fleet(table.capacity, staleness_s=config.staleness, pools=Pools(table.capacity, config))
        self.ticker = Ticker(table, self.fleet)
        self._membership = Membership(table, self.fleet)
        self._next_reclaim = 0

    @property
    def waiting(self) -> Mapping[str, Discovered]:
        """Instances that no slot could be found for, by id."""
        return self._membership.waiting

    def start(self, instances: Sequence[Discovered], mono_ns: int) -> Changes:
        """Take over what the table holds of ``instances``."""
        return self._membership.adopt(instances, self._config, mono_ns)

    def configure(self, config: MonitorConfig, pools: list[Pool] | None = None) -> None:
        """Go by another configuration from now on. What can be wrong with it shows before anything has changed.

        ``pools`` are those of :func:`pools_of` where somebody has made them already.
        """
        self.fleet.pools.configure(pools_of(config) if pools is None else pools)
        self._config = config
        self.fleet.staleness_s = config.staleness

    def follow(self, instances: Sequence[Discovered], mono_ns: int) -> Changes:
        """These are the instances from now on."""
        return self._membership.apply(instances, self._config, mono_ns)

    def retry(self, mono_ns: int) -> Changes:
        """Admit instances that wait for a slot, as far as slots have become free."""
        return self._membership.retry(self._config, mono_ns)

    def tick(self, mono_ns: int, boot_ns: int) -> list[int]:
        """One tick at ``mono_ns`` (CLOCK_MONOTONIC) = ``boot_ns`` (CLOCK_BOOTTIME).

        Returns the keys of instances that a worker newly suspects, to be polled at once.
        """
        if mono_ns >= self._next_reclaim:
            self._next_reclaim = mono_ns + RECLAIM_NS
            reclaim(self._table, self.fleet, mono_ns, boot_ns)
        suspects = self.ticker.tick(mono_ns, boot_ns)
        books = self.fleet.books
        return [books[slot].key for slot in suspects if slot in books]
