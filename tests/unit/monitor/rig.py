"""The monitor's core on a fake table, with the clock in the test's hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from monitor.board import Board
from monitor.config import InstanceConfig, MonitorConfig
from monitor.discovery import Discovered
from monitor.discovery.static import StaticSource
from monitor.membership import Changes
from monitor.polling.failure import FailureKind
from monitor.sample import Reading
from score_table.records import Detail
from tests.unit.monitor.fake_table import FakeTable

#: CLOCK_BOOTTIME is ahead of CLOCK_MONOTONIC by what the host slept.
BOOT_AHEAD_NS = 7_000_000_000_000


def config(*ids: str, **options: Any) -> MonitorConfig:
    """A configuration with instances of these ids."""
    instances = tuple(InstanceConfig(id=name, url=f"http://{name}.test:8000") for name in ids)
    return MonitorConfig(instances=instances, **options)


def with_instance(base: MonitorConfig, index: int, **changes: Any) -> MonitorConfig:
    """``base`` with one instance changed."""
    instances = list(base.instances)
    instances[index] = InstanceConfig(**{**instances[index].model_dump(exclude_unset=True), **changes})
    return base.model_copy(update={"instances": tuple(instances)})


def with_each(base: MonitorConfig, **values: Sequence[Any]) -> MonitorConfig:
    """``base`` with these keys of its instances, one value per instance."""
    for key, each in values.items():
        for index, value in enumerate(each):
            base = with_instance(base, index, **{key: value})
    return base


def listed(configured: MonitorConfig) -> Sequence[Discovered]:
    """The instances of a configuration as the monitor sees them."""
    return StaticSource(configured.instances).current()


class Rig:
    """Instances by id. Time starts at 1000 s and moves only by :meth:`tick` and :meth:`after`."""

    def __init__(
        self, configured: MonitorConfig, table: FakeTable | None = None, start_s: float = 1000.0
    ) -> None:
        self.table = table or FakeTable()
        self.now_ns = round(start_s * 1e9)
        self.board = Board(self.table, configured)
        self.fleet = self.board.fleet
        self.keys: dict[str, int] = {}
        self.follow(self.board.start(listed(configured), self.now_ns))
        self.tick(0.0)

    def follow(self, changes: Changes) -> Changes:
        self.keys.update({instance.id: key for key, instance in changes.started})
        return changes

    def apply(self, configured: MonitorConfig) -> Changes:
        self.board.configure(configured)
        return self.follow(self.board.follow(listed(configured), self.now_ns))

    def after(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)

    def tick(self, seconds: float = 0.02) -> list[int]:
        """A tick, ``seconds`` after now."""
        self.after(seconds)
        return self.board.ticker.tick(self.now_ns, self.now_ns + BOOT_AHEAD_NS)

    def sample(self, name: str, **reading: Any) -> None:
        """A poll of the instance answers now; ``load=5`` is short for five running and none waiting."""
        if "load" in reading:
            reading |= {"running": float(reading.pop("load")), "waiting": 0.0}
        boot_ns = reading.pop("boot_ns", self.now_ns + BOOT_AHEAD_NS)
        self.fleet.sampled(self.keys[name], Reading(**reading), "vllm", boot_ns, self.now_ns)

    def fail(self, name: str, kind: FailureKind = FailureKind.REFUSED, reason: str = "refused") -> None:
        self.fleet.failed(self.keys[name], kind, reason, self.now_ns)

    def slot(self, name: str) -> int:
        return next(slot for slot, book in self.fleet.books.items() if book.admission.instance_id == name)

    def live(self, name: str) -> float:
        return self.table.live(self.slot(name))

    def others(self, name: str) -> float:
        known = self.fleet.up[: self.table.n]
        return float(self.fleet.others.now(slice(0, len(known)), known, self.now_ns)[self.slot(name)])

    def detail(self, name: str) -> Detail:
        return self.table.details[self.slot(name)]
