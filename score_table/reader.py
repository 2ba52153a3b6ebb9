"""Everyone's door to the table: a snapshot in plain values, for viewers, exporters and people."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from score_table.decisions import counted, decisions
from score_table.explain import explain
from score_table.explanation import Candidate, Explanation
from score_table.identity import Identity, read_identity
from score_table.layout import LANE_BLOCK, LAYOUT_MAJOR, LAYOUT_MINOR, MARK_FLOOR, UNITS, Mark, Natural
from score_table.location import Location
from score_table.mode import mode_of
from score_table.pick.plain import PlainCore
from score_table.pick.rules import band_of
from score_table.records import SAMPLE_FIELDS, Detail, read_detail
from score_table.segment import Segment

_DEGRADED_COUNTERS = ("outstanding", "marked", "round_robin", "unmatched")


@dataclass(frozen=True)
class LaneFacts:
    """One lane in use. ``degraded_picks`` counts picks by the reason for which they were degraded."""

    lane: int
    pid: int
    outstanding: int
    picks: int
    degraded_picks: Mapping[str, int]
    count_errors: int
    saturations: int


@dataclass(frozen=True)
class InstanceFacts:
    """One slot in use. ``None`` is unknown. ``score`` is what a pick compares now, in requests."""

    id: str
    url: str
    tags: Mapping[str, str]
    slot: int
    generation: int
    state: str
    mark: str  #: "" or why it is not to be chosen: avoided, draining, unreachable
    reason: str
    engine: str
    mode: str  #: score mode of its pool
    pool: str  #: tags of its pool in the monitor, "" in the rest
    share: float  #: its weight over the largest in its pool, by which the score is divided
    outstanding: int
    held: int
    dispatched: int
    decisions: Mapping[str, int]  #: requests sent there, by what that was decided
    ended: int
    score: float | None
    age_s: float | None
    inflight: float | None
    running: float | None
    waiting: float | None
    qps_1m: float | None
    kv_usage: float | None
    queued_tokens: float | None
    throughput: float | None
    own: float
    others: float
    others_queued: float | None  #: what the score took in beside, see :class:`.Explained`
    others_waiting: float | None
    scored_qps: float | None
    estimated: bool


@dataclass(frozen=True)
class TableSnapshot:
    """The whole table at one moment (not one transaction: cells move while it is read)."""

    table: str
    layout: str
    state: str
    degraded: str | None  #: how a pick made now would be degraded: outstanding, round_robin, or ``None``
    heartbeat_age_s: float | None
    monitor_pid: int
    ticks: int
    n: int
    capacity: int
    lanes_in_use: int
    lane_capacity: int
    lanes_wanted: int
    lanes: tuple[LaneFacts, ...]
    instances: tuple[InstanceFacts, ...]


class TableReader:
    """Opened read-only; never creates, changes or removes anything. Follows a table that is replaced."""

    def __init__(self, location: Location, segment: Segment) -> None:
        self._location = location
        self._segment = segment

    @classmethod
    def open(cls, location: str) -> TableReader:
        """``TableAbsent``, ``TableNotReady``, ``TableIncompatible``, ``TableTruncated``, ``TablePermission``,
        ``TableUntrusted``; ``ValueError`` if ``location`` names no table."""
        place = Location.parse(location)
        return cls(place, Segment.open(place, writable=False))

    def close(self) -> None:
        """Unmap."""
        self._segment.close()

    def __enter__(self) -> TableReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def identities(self) -> list[Identity]:
        """The instances in the table, in the order of their slots."""
        self._follow()
        return [identity for _, identity in self._holders()]

    def snapshot(self, now_ns: int | None = None, boot_ns: int | None = None) -> TableSnapshot:
        """Read everything. The clocks (CLOCK_MONOTONIC and CLOCK_BOOTTIME ns) can be given for tests."""
        self._follow()
        now = time.monotonic_ns() if now_ns is None else now_ns
        boot = time.clock_gettime_ns(time.CLOCK_BOOTTIME) if boot_ns is None else boot_ns
        segment = self._segment
        heartbeat = segment.read("heartbeat")
        silence = now - heartbeat
        mode = mode_of(segment, now)
        degraded = ("round_robin" if segment.n == 0 else mode.degraded) or None
        lanes = self._lanes()
        return TableSnapshot(
            table=self._location.text,
            layout=f"{LAYOUT_MAJOR}.{LAYOUT_MINOR}",
            state=segment.state.name.lower(),
            degraded=degraded,
            heartbeat_age_s=silence / 1e9 if heartbeat else None,
            monitor_pid=segment.read("monitor_pid"),
            ticks=segment.read("tick"),
            n=segment.n,
            capacity=segment.geometry.slots,
            lanes_in_use=len(lanes),
            lane_capacity=segment.geometry.lanes,
            lanes_wanted=segment.read("lanes_wanted"),
            lanes=tuple(lanes),
            instances=tuple(self._instances(mode.fade, boot)),
        )

    def explain(
        self,
        ids: Sequence[str] | None = None,
        *,
        cursor: int | None = None,
        now_ns: int | None = None,
        boot_ns: int | None = None,
        open_units: Mapping[str, int] | None = None,
        private: Sequence[int] | None = None,
    ) -> Explanation:
        """Why a pick of ``least_load`` among the instances of ``ids`` (default: all) falls as it does.

        ``cursor``, ``private`` and the clocks as for :func:`score_table.explain.explain`. ``open_units``, by id: what
        the asking worker has open (1024 are one request) at those that are not in the table; default 0.
        """
        self._follow()
        candidates = None
        if ids is not None:
            slots = {identity.id: slot for slot, identity in self._holders()}
            candidates = [Candidate(name, slots.get(name), (open_units or {}).get(name, 0)) for name in ids]
        return explain(
            self._segment,
            candidates,
            now_ns=time.monotonic_ns() if now_ns is None else now_ns,
            boot_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME) if boot_ns is None else boot_ns,
            cursor=cursor,
            private=private,
        )

    def heartbeat_ns(self) -> int:
        """CLOCK_MONOTONIC ns of the monitor's last tick; 0 before the first."""
        self._follow()
        return self._segment.read("heartbeat")

    @property
    def max_heartbeat_age_s(self) -> float:
        """The monitor's silence, in seconds, after which picks are made without it."""
        return self._segment.max_heartbeat_age_ns / 1e9

    def _follow(self) -> None:
        if not self._segment.is_current():
            newer = Segment.open(self._location, writable=False)
            self._segment.close()
            self._segment = newer

    def _holders(self) -> list[tuple[int, Identity]]:
        base = self._segment.row(0)
        found = []
        for slot in range(self._segment.n):
            if band_of(base[slot]) != Mark.UNUSED:
                identity = read_identity(self._segment, slot)
                if identity is not None:
                    found.append((slot, identity))
        return found

    def _lanes(self) -> list[LaneFacts]:
        segment, found = self._segment, []
        for lane in range(segment.lanes_hi):
            block = segment.lane_block(lane)
            word = {name: block[field.offset // 8] for name, field in LANE_BLOCK.items()}
            if word["token"]:
                found.append(
                    LaneFacts(
                        lane,
                        word["pid"],
                        sum(segment.natural(lane, Natural.OUTSTANDING)),
                        word["picks"],
                        {name: word[f"picks_{name}"] for name in _DEGRADED_COUNTERS},
                        word["count_errors"],
                        word["saturations"],
                    )
                )
        return found

    def _instances(self, fade: int, boot: int) -> list[InstanceFacts]:
        segment, core = self._segment, PlainCore(self._segment)
        head = segment.row(0 if fade < 0 else 1)
        found = []
        for slot, identity in self._holders():
            detail = read_detail(segment, slot)
            if detail is None or detail.generation != identity.generation:
                detail = Detail(generation=identity.generation)
            live = core.live([slot], fade, None)[0]
            counts = counted(segment, slot)
            sample: dict[str, Any] = {
                name: getattr(detail, name) for name in SAMPLE_FIELDS if name not in ("kv_capacity", "slots")
            }
            mark = band_of(head[slot])
            found.append(
                InstanceFacts(
                    id=identity.id,
                    url=identity.url,
                    tags=identity.tags,
                    slot=slot,
                    generation=identity.generation,
                    state=detail.state,
                    mark=Mark(mark).name.lower() if 0 < mark < Mark.UNUSED else "",
                    reason=detail.reason,
                    engine=detail.engine,
                    mode=detail.mode,
                    pool=detail.pool,
                    share=detail.share,
                    outstanding=counts[Natural.OUTSTANDING],
                    held=counts[Natural.HELD],
                    dispatched=detail.dispatched,
                    decisions=decisions(counts, identity.before),
                    ended=detail.ended,
                    score=live / UNITS if live < MARK_FLOOR else None,
                    age_s=(boot - detail.sample_boot_ns) / 1e9 if detail.sample_boot_ns else None,
                    own=detail.own,
                    others=detail.others,
                    others_queued=detail.others_queued,
                    others_waiting=detail.others_waiting,
                    scored_qps=detail.scored_qps,
                    estimated=detail.estimated,
                    **sample,
                )
            )
        return found
