"""What is simulated: the load, the machines, the hosts and what goes wrong, as plain data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

#: KV cache of a machine in tokens.
KV_CAPACITY = {"ample": 400_000, "mid": 80_000, "tight": 36_000}


@dataclass(frozen=True)
class Workload:
    """Lengths in tokens. Log-normal ones have the mean ``mean`` before they are cut at ``most``."""

    prompt_mean: float = 220.0
    prompt_sigma: float = 1.2
    prompt_most: int = 4096
    answer_mean: float = 200.0
    answer_sigma: float = 0.9
    answer_most: int = 2048
    long_share: float = 0.0  #: share of prompts that are uniform in 6000..16000 instead


WORKLOADS = {
    "chat": Workload(),
    "long": Workload(long_share=0.1),
    "heavy": Workload(answer_mean=400.0, answer_sigma=1.2, answer_most=4096),
    # Two that the score's start values (prompts of 220 tokens, answers of 200) do not fit.
    "documents": Workload(prompt_mean=3000.0, prompt_sigma=0.8, prompt_most=16_000),
    "labels": Workload(answer_mean=20.0, answer_sigma=0.6, answer_most=200),
}

#: Requests per second that saturate one machine of speed 1, by workload and KV cache. Those of the study's mixes
#: are the study's; the others are what :func:`bench.virtual.capacity.measured` gives.
CAPACITY = {
    ("chat", "ample"): 17.5,
    ("chat", "tight"): 17.4,
    ("long", "ample"): 7.36,
    ("long", "mid"): 6.75,
    ("long", "tight"): 4.81,
    ("heavy", "ample"): 9.23,
    ("heavy", "tight"): 7.09,
    ("documents", "ample"): 4.18,
    ("labels", "ample"): 65.4,
}


class Mix(NamedTuple):
    """A workload on machines at a load."""

    workload: str
    kv: str
    load: float

    def __str__(self) -> str:
        return f"{self.workload}/{self.kv}/{self.load:.0%}"


#: The ten mixes over which a geometric mean is taken.
TEN = (
    Mix("chat", "ample", 0.85),
    Mix("chat", "ample", 0.95),
    Mix("long", "tight", 0.70),
    Mix("long", "tight", 0.85),
    Mix("long", "mid", 0.85),
    Mix("long", "mid", 0.95),
    Mix("long", "ample", 0.85),
    Mix("heavy", "tight", 0.70),
    Mix("heavy", "tight", 0.85),
    Mix("heavy", "ample", 0.85),
)


@dataclass(frozen=True)
class Scenario:
    """One situation, the same for every policy. Times in seconds of virtual time."""

    workload: str = "chat"
    kv: str = "ample"
    load: float = 0.85  #: of what all machines together can do, traffic past the proxies included
    instances: int = 8
    speeds: tuple[float, ...] = ()  #: of the machines, repeated as needed; empty: all 1
    bursty: bool = False  #: times between arrivals are Gamma with a coefficient of variation of 3
    hosts: int = 1
    workers: int = 8  #: proxy processes of each host
    poll: float = 1.0
    together: bool = False  #: every host polls every machine at the same moments
    duration: float = 400.0
    warmup: float = 100.0
    bypass: float = (
        0.0  #: share of all requests that goes past the proxies, to the first quarter of the machines
    )
    unknown: int = 0  #: machines whose polls never give a sample
    frozen: int = 0  #: machines whose metrics stand still from half of the warm-up on
    churn: float = 0.0  #: every so many seconds a machine leaves and a new one comes; 0: never
    fails_fast: int = 0  #: machines that answer every request with an error after 5 ms, from ``warmup`` on
    dead_monitor: bool = False  #: every monitor is killed at half of the warm-up
    worker_killed: bool = False  #: at ``warmup`` one worker dies with its requests, at least 60 of them
    untold: bool = False  #: nobody says how many requests fit a machine's batch, or tokens its KV cache
    measured_from: float = 0.0  #: seconds after ``warmup`` from which arrivals count

    @property
    def mix(self) -> Mix:
        """Workload, machines and load."""
        return Mix(self.workload, self.kv, self.load)

    @property
    def name(self) -> str:
        """All that differs from the usual, in words; a key."""
        usual = Scenario()
        differs = [
            f"{field.name}={_text(value)}"
            for field in dataclasses.fields(self)
            if field.name not in ("workload", "kv", "load")
            and (value := getattr(self, field.name)) != getattr(usual, field.name)
        ]
        return " ".join([str(self.mix), *differs])

    def machine_speeds(self) -> list[float]:
        """One per machine."""
        return [self.speeds[at % len(self.speeds)] if self.speeds else 1.0 for at in range(self.instances)]

    def rate(self) -> float:
        """Requests per second."""
        return self.load * CAPACITY[self.workload, self.kv] * sum(self.machine_speeds())


def of_mix(mix: Mix, **other: object) -> Scenario:
    """That mix in an otherwise usual situation, or with ``other`` fields."""
    return dataclasses.replace(Scenario(*mix), **other)  # type: ignore[arg-type]


def _text(value: object) -> str:
    return ",".join(f"{each:g}" for each in value) if isinstance(value, tuple) else str(value)
