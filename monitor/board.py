"""One open table and all that is known of its instances, without I/O, tasks or a clock of its own.

Whoever runs a board tells it the time, delivers polls to its ``fleet``, and starts and stops pollers as the
:class:`Changes` say: the daemon does so on an event loop, a simulation in virtual time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from monitor.config import MonitorConfig
from monitor.discovery import Discovered
from monitor.estimate.means import Means
from monitor.fleet import Fleet
from monitor.membership import Changes, Membership, SlotTable
from monitor.reclaim import LaneTable, reclaim
from monitor.scores import score_mode
from monitor.tick import Rules, Table, Ticker

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
        self.fleet = Fleet(table.capacity, staleness_s=config.staleness, means=_means(config))
        mode = score_mode(config)
        self.ticker = Ticker(table, self.fleet, mode, _rules(config))
        self._membership = Membership(table, self.fleet, mode)
        self._next_reclaim = 0

    @property
    def waiting(self) -> Mapping[str, Discovered]:
        """Instances that no slot could be found for, by id."""
        return self._membership.waiting

    def start(self, instances: Sequence[Discovered], mono_ns: int) -> Changes:
        """Take over what the table holds of ``instances``."""
        return self._membership.adopt(instances, self._config, mono_ns)

    def configure(self, config: MonitorConfig) -> None:
        """Go by another configuration from now on. What can be wrong with it shows before anything has changed."""
        mode, rules, means = score_mode(config), _rules(config), _means(config)
        before, self._config = self._config, config
        self.fleet.staleness_s = config.staleness
        if _start_values(before) != _start_values(config):
            self.fleet.means = means
        self.ticker.configure(mode, rules)
        self._membership.configure(mode)

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


def _rules(config: MonitorConfig) -> Rules:
    return Rules(
        nominal_kv_capacity=config.token_aware.nominal_kv_capacity,
        speed_dead_band=config.token_aware.speed_dead_band,
        avoid_unknown=config.unknown == "avoid",
    )


def _start_values(config: MonitorConfig) -> tuple[float, float]:
    return (config.token_aware.prompt_tokens, config.token_aware.generated_tokens)


def _means(config: MonitorConfig) -> Means:
    return Means(*_start_values(config))
