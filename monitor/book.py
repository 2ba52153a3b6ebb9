"""One instance as the monitor keeps it: what it was admitted with, and what is known of it but is no array."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from monitor.estimate.frozen import Frozen
from monitor.estimate.rates import Rates
from monitor.polling.failure import FailureKind
from monitor.polling.health import Health, Repeats
from monitor.sample import Sample
from score_table.identity import Prices
from score_table.layout import Mark


@dataclass(frozen=True)
class Admission:
    """What a fleet has to know of an instance."""

    instance_id: str
    generation: int
    prices: Prices
    tags: Mapping[str, str] = field(default_factory=dict)
    interval_s: float = 1.0
    kv_capacity: float | None = None  #: tokens, where the engine does not tell it
    slots: float | None = None  #: requests that fit the batch, where the engine does not tell them
    weight: float = 1.0  #: its share of the traffic, relative to the others of its pool, > 0
    draining: bool = False  #: gets no new requests while others can take them
    polls_itself: bool = True  #: polls go to the address that serves, so a refused poll is a dead instance
    cold: bool = True  #: the fleet starts with it, so its first sample is taken as it is


@dataclass
class Book:
    """Of one instance, what is no array."""

    admission: Admission
    key: int
    admitted_ns: int
    health: Health = Health.NEW
    reason: str = "not polled yet"
    sample: Sample | None = None
    failure: str = ""
    failure_boot_ns: int = 0
    failures: int = 0
    ways_to_fail: set[FailureKind] = field(default_factory=set)  #: met since the last sample
    repeats: Repeats = field(default_factory=Repeats)
    rates: Rates = field(default_factory=Rates)
    frozen: Frozen = field(default_factory=Frozen)

    @property
    def mark(self) -> Mark:
        """Why it is not to be chosen for as long as that is so; overload and the like are judged on each tick."""
        if self.health is Health.UNREACHABLE:
            return Mark.UNREACHABLE
        return Mark.DRAINING if self.admission.draining else Mark.NONE
