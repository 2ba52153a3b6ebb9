"""Which instance sits in which slot: admission, change, removal, and what an earlier monitor left.

A slot's life: never used -> held by one incarnation of an instance -> unused -> (column 0 and a grace time
over) held by another one, with a higher generation. An incarnation ends when its instance is no longer there
or has another URL; nothing is ever inherited by another instance. One that comes back under the same id and
URL gets its slot back at once, with whatever is counted there: those requests run in that very engine.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from monitor.book import Admission
from monitor.config import InstanceConfig, MonitorConfig
from monitor.config.address import address_of
from monitor.discovery import Discovered
from monitor.fleet import Fleet
from score_table.identity import Identity, Prices
from score_table.layout import UNITS, Mark
from score_table.pick.rules import band_of, fade_of
from score_table.records import Detail

log = logging.getLogger("loadboard.monitor")

#: How long a slot stays unused before another instance may have it: workers with an old slot map are long
#: gone by then.
GRACE_NS = 5_000_000_000


class SlotTable(Protocol):
    """The part of :class:`score_table.writer.TableWriter` that membership needs."""

    @property
    def capacity(self) -> int:
        """Slots of the table."""

    @property
    def n(self) -> int:
        """Slots in use so far."""

    def identity(self, slot: int) -> Identity | None:
        """Who holds the slot; ``None`` where it is unused."""

    def last_holder(self, slot: int) -> Identity | None:
        """Who holds, or last held, the slot; ``None`` if nobody ever did."""

    def detail(self, slot: int) -> Detail | None:
        """The slot's detail record."""

    def heartbeat_ns(self) -> int:
        """When the last tick was, of whichever monitor."""

    def assign(self, slot: int, identity: Identity) -> None:
        """Write the identity block."""

    def release_slot(self, slot: int) -> None:
        """Mark the slot unused."""

    def slot_reusable(self, slot: int) -> bool:
        """Whether no lane counts anything there."""

    def rest_row(self) -> NDArray[np.int32]:
        """A copy of ``rest``."""


@dataclass
class Changes:
    """What the pollers have to follow: keys of instances to poll from now on, and keys to stop."""

    started: list[tuple[int, InstanceConfig]] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)


class Membership:
    """The slots of one table. Only the monitor's event loop calls it."""

    def __init__(self, table: SlotTable, fleet: Fleet) -> None:
        self._table = table
        self._fleet = fleet
        self._keys = itertools.count(1)
        self._held: dict[str, _Held] = {}
        self._unused_since: dict[int, int] = {}
        self._generation: dict[int, int] = {}
        self._last_holder: dict[int, Identity] = {}
        #: Instances that no slot could be found for.
        self.waiting: dict[str, Discovered] = {}

    def adopt(self, instances: Sequence[Discovered], config: MonitorConfig, mono_ns: int) -> Changes:
        """Once, at the start: keep what the table already holds of ``instances``, release the rest.

        An adopted slot keeps its generation and goes on from the ``rest`` that the last monitor wrote.
        """
        changes = Changes()
        wanted = self._weighed(instances)
        rest = self._table.rest_row()
        # As the picks have believed it until now: less, the longer nobody has kept it.
        fade = fade_of(mono_ns - self._table.heartbeat_ns())
        for slot in range(self._table.n):
            identity = self._table.identity(slot)
            if identity is None:
                last = self._table.last_holder(slot)
                if last is not None:
                    self._generation[slot] = last.generation
                    self._last_holder[slot] = last
                self._unused_since[slot] = mono_ns
                continue
            self._generation[slot] = identity.generation
            self._last_holder[slot] = identity
            instance = wanted.get(identity.id)
            if instance is None or instance.url != identity.url or identity.id in self._held:
                self._table.release_slot(slot)
                self._unused_since[slot] = mono_ns
                log.info("%s: left over in slot %d of the table, no longer there", identity.id, slot)
                continue
            identity = self._told_anew(slot, identity, instance)
            key = self._admit(slot, instance, identity, config, mono_ns, cold=True)
            mark = band_of(int(rest[slot]))
            unmarked = int(rest[slot]) - (Mark(mark).cell if mark else 0)
            detail = self._table.detail(slot)
            share = float(self._fleet.pools.share[slot])
            if detail is not None and detail.generation == identity.generation:
                self._fleet.totals.begin(slot, detail.dispatched, detail.ended)
                share = min(max(detail.share, 0.0), 1.0)  # by which the last monitor has divided
            self._fleet.others.restore(slot, (unmarked >> fade) / UNITS * share, mono_ns)
            changes.started.append((key, instance.config))
        self._follow(instances, config, changes, mono_ns, cold=True)
        return changes

    def apply(self, instances: Sequence[Discovered], config: MonitorConfig, mono_ns: int) -> Changes:
        """Follow new instances or a new configuration: release what is gone, change what changed, admit what is new."""
        changes = Changes()
        wanted = self._weighed(instances)
        for instance_id, held in list(self._held.items()):
            instance = wanted.get(instance_id)
            if instance is not None and instance.url == held.identity.url:
                self._change(held, instance, config, changes)
                continue
            del self._held[instance_id]
            self._fleet.drop(held.slot)
            self._table.release_slot(held.slot)
            self._unused_since[held.slot] = mono_ns
            changes.stopped.append(held.key)
            log.info("%s: removed, its requests still running are counted to their end", instance_id)
        self._follow(instances, config, changes, mono_ns, cold=False)
        return changes

    def retry(self, config: MonitorConfig, mono_ns: int) -> Changes:
        """Admit instances that are waiting, as far as slots have become free."""
        changes = Changes()
        if self.waiting:
            self._follow(list(self.waiting.values()), config, changes, mono_ns, cold=False)
        return changes

    def _follow(
        self,
        instances: Sequence[Discovered],
        config: MonitorConfig,
        changes: Changes,
        mono_ns: int,
        *,
        cold: bool,
    ) -> None:
        waited, self.waiting = self.waiting, {}
        for instance in instances:
            if instance.id in self._held:
                continue
            own = self._own_slot(instance)
            slot = self._free_slot(mono_ns) if own is None else own
            if slot is None:
                self.waiting[instance.id] = instance
                if instance.id not in waited:
                    log.error(
                        "%s: not admitted, it gets no traffic by load: all %d slots of the table are taken or "
                        "still count requests of removed instances; raise `slots` and restart the monitor, or "
                        "remove instances",
                        instance.id,
                        self._table.capacity,
                    )
                continue
            generation = self._generation.get(slot, 0) + 1
            identity = Identity(
                instance.id, instance.url, generation, self._prices(instance), dict(instance.tags)
            )
            self._table.assign(slot, identity)
            self._unused_since.pop(slot, None)
            key = self._admit(slot, instance, identity, config, mono_ns, cold=cold)
            changes.started.append((key, instance.config))
            log.info("%s: admitted to slot %d, %s", instance.id, slot, instance.url)

    def _weighed(self, instances: Sequence[Discovered]) -> dict[str, Discovered]:
        """``instances`` by id, once it is known what the weights of all are relative to."""
        self._fleet.pools.weigh((instance.tags, instance.config.weight) for instance in instances)
        return {instance.id: instance for instance in instances}

    def _prices(self, instance: Discovered) -> Prices:
        pool = self._fleet.pools.of(instance.tags)
        return pool.prices(instance.config.kv_capacity, instance.config.weight)

    def _told_anew(self, slot: int, identity: Identity, instance: Discovered) -> Identity:
        """The identity of an instance that stays, with the tags and prices that it has now; the table has it too.

        What is open keeps counting what it was priced with. That makes the instance look busier where it was more
        than the new price, until it ends, and never idler: a tick takes off no more than is in the cells.
        """
        told = replace(identity, tags=dict(instance.tags), prices=self._prices(instance))
        if told != identity:
            self._table.assign(slot, told)
            self._last_holder[slot] = told
        return told

    def _own_slot(self, instance: Discovered) -> int | None:
        """The unused slot that ``instance`` itself was the last to hold."""
        return next(
            (
                slot
                for slot in self._unused_since
                if (last := self._last_holder.get(slot)) is not None
                and (last.id, last.url) == (instance.id, instance.url)
            ),
            None,
        )

    def _free_slot(self, mono_ns: int) -> int | None:
        reusable = (slot for slot in sorted(self._unused_since) if self._is_free(slot, mono_ns))
        fresh = self._table.n if self._table.n < self._table.capacity else None
        return next(reusable, fresh)

    def _is_free(self, slot: int, mono_ns: int) -> bool:
        """Whether nothing of the last holder can be in the unused ``slot`` any more, nor come there."""
        return mono_ns - self._unused_since[slot] >= GRACE_NS and self._table.slot_reusable(slot)

    def _admit(
        self,
        slot: int,
        instance: Discovered,
        identity: Identity,
        config: MonitorConfig,
        mono_ns: int,
        *,
        cold: bool,
    ) -> int:
        key = next(self._keys)
        self._generation[slot] = identity.generation
        self._last_holder[slot] = identity
        self._held[instance.id] = _Held(slot, key, _polling(instance.config, config), identity)
        self._fleet.admit(slot, key, _admission(instance, identity, config, cold), mono_ns)
        return key

    def _change(self, held: _Held, instance: Discovered, config: MonitorConfig, changes: Changes) -> None:
        """The same incarnation with other settings; only other ways to poll it need another poller."""
        held.identity = self._told_anew(held.slot, held.identity, instance)
        polling, before = _polling(instance.config, config), self._fleet.books[held.slot].admission
        if polling != held.polling:
            changes.stopped.append(held.key)
            held.key, held.polling = next(self._keys), polling
            self._fleet.readmit(held.slot, held.key, _admission(instance, held.identity, config, cold=False))
            changes.started.append((held.key, instance.config))
            return
        admission = _admission(instance, held.identity, config, before.cold)
        if admission != before:
            self._fleet.readmit(held.slot, held.key, admission)


@dataclass
class _Held:
    """One admitted instance. ``polling`` is everything that its poller was made from."""

    slot: int
    key: int
    polling: tuple[object, ...]
    identity: Identity


def _polling(instance: InstanceConfig, config: MonitorConfig) -> tuple[object, ...]:
    return (
        instance.model_copy(update={"tags": {}, "weight": 1.0, "draining": False}),
        config.interval_of(instance),
        config.timeout_of(instance),
        config.jitter,
        config.concurrency,
        config.max_body_bytes,
    )


def _admission(instance: Discovered, identity: Identity, config: MonitorConfig, cold: bool) -> Admission:
    return Admission(
        instance_id=instance.id,
        generation=identity.generation,
        prices=identity.prices,
        tags=dict(instance.tags),
        interval_s=config.interval_of(instance.config),
        kv_capacity=instance.config.kv_capacity,
        slots=instance.config.slots,
        weight=instance.config.weight,
        draining=instance.config.draining,
        polls_itself=address_of(instance.config.metrics_base) == address_of(instance.url),
        cold=cold,
    )
