"""The situations that goals and tables are about, each a scenario of some effort."""

from __future__ import annotations

from dataclasses import replace

from bench.virtual.plan import Effort
from bench.virtual.scenarios import Mix, Scenario
from bench.virtual.settings import OTHER_MODES, USUAL

CHAT = Mix("chat", "ample", 0.85)
BUSY_CHAT = Mix("chat", "ample", 0.95)

#: Workers and poll interval in seconds of one host: the corners of 1..16 x 0.05..10, all intervals at 16, the middle.
CELLS = (
    *((16, poll) for poll in (0.05, 0.2, 1.0, 5.0, 10.0)),
    *((1, poll) for poll in (0.05, 1.0, 10.0)),
    (8, 1.0),
    (4, 0.2),
    (2, 5.0),
)
BUSY_CELLS = ((16, 0.05), (8, 1.0), (1, 10.0), (16, 10.0))

#: Mixes of the table of weights: one of each kind where tokens matter, and one where they hardly do.
WEIGHED = (
    CHAT,
    Mix("long", "tight", 0.85),
    Mix("long", "mid", 0.95),
    Mix("long", "ample", 0.85),
    Mix("heavy", "tight", 0.85),
)
#: The long-context mixes of which nearly all requests have to be good.
LONG = (
    Mix("long", "ample", 0.85),
    Mix("long", "ample", 0.95),
    Mix("long", "mid", 0.85),
    Mix("long", "mid", 0.95),
    Mix("long", "tight", 0.70),
    Mix("long", "tight", 0.85),
    Mix("long", "tight", 0.95),
)
#: Ways to use the product that must not be far worse than round robin whatever happens.
HARDENED = (*OTHER_MODES, "count", "power_of_two", "select", "blind", "tick_50ms")
#: Of these the ones whose figures come near the limit for it, which one seed alone may miss or meet by chance.
CLOSE = ("select",)
#: Overload limits: of requests that wait, of the KV cache.
LIMITS = ("limit_waiting", "limit_kv")
#: Fast, half as fast and faster by half.
UNEQUAL = (1.0, 0.5, 1.0, 1.5)


def one_host(effort: Effort, mix: Mix, cells: tuple[tuple[int, float], ...]) -> list[Scenario]:
    """That mix in every cell."""
    return [effort.scenario(mix, workers=workers, poll=poll) for workers, poll in cells]


def four_hosts(effort: Effort, mix: Mix) -> list[Scenario]:
    """Four hosts with two workers each, polls at phases of their own and at the same moments."""
    intervals = (1.0, 5.0) if mix.load <= CHAT.load else (1.0,)
    return [
        effort.scenario(mix, hosts=4, workers=2),
        *(effort.scenario(mix, hosts=4, workers=2, together=True, poll=poll) for poll in intervals),
    ]


def sixteen_hosts(effort: Effort) -> list[Scenario]:
    """Sixteen hosts with one worker each, in both ways."""
    return [
        effort.scenario(CHAT, hosts=16, workers=1, together=together, duration=effort.short)
        for together in (False, True)
    ]


def past_the_proxies(effort: Effort) -> list[Scenario]:
    """A fifth of the traffic, which only polls see."""
    return [effort.scenario(CHAT, bypass=0.2, poll=poll) for poll in (0.2, 1.0)]


def unknown(effort: Effort, machines: int) -> Scenario:
    """So many of ten machines never tell their load."""
    return effort.scenario(CHAT, instances=10, unknown=machines)


def after_a_kill(effort: Effort, killed: bool) -> Scenario:
    """From 30 s after a worker was killed on, or in the same time without."""
    return effort.scenario(CHAT, worker_killed=killed, measured_from=30.0)


def faults(effort: Effort) -> dict[str, Scenario]:
    """What goes wrong, one at a time, by what it is."""
    return {
        "2 of 8 frozen": effort.scenario(CHAT, frozen=2),
        "dead monitor": effort.scenario(CHAT, dead_monitor=True),
        "1 of 8 fails fast": effort.scenario(CHAT, fails_fast=1),
        "2 of 10 unknown": unknown(effort, 2),
        "20 % past the proxies": effort.scenario(CHAT, bypass=0.2),
        "churn": effort.scenario(CHAT, churn=20.0),
        "bursts": effort.scenario(CHAT, bursty=True),
        "unequal machines": effort.scenario(CHAT, speeds=UNEQUAL),
        "4 hosts, polls together": effort.scenario(CHAT, hosts=4, workers=2, together=True),
        "polls of 10 s": effort.scenario(CHAT, poll=10.0),
    }


def shortened(effort: Effort) -> Effort:
    """For settings and faults tried crosswise: many runs, see :func:`crosswise_seeds`."""
    return replace(effort, duration=effort.short)


def crosswise_seeds(effort: Effort, setting: str) -> tuple[int, ...]:
    """With which seeds that setting is tried under faults."""
    return effort.steady_seeds() if setting in CLOSE else (1,)


def corners(effort: Effort) -> dict[str, tuple[Scenario, tuple[str, ...]]]:
    """What is tried with some settings only, by what it is: limits and weights, and what those go by kept back."""
    tight = Mix("long", "tight", 0.85)
    return {
        "nothing": (effort.scenario(CHAT), LIMITS),
        "little KV cache": (effort.scenario(tight), LIMITS),
        "2 of 8 frozen": (effort.scenario(CHAT, frozen=2), LIMITS),
        "20 % past the proxies": (effort.scenario(CHAT, bypass=0.2), LIMITS),
        "sizes untold": (effort.scenario(CHAT, untold=True), (USUAL, *OTHER_MODES, "blind", *LIMITS)),
        "sizes untold, polls of 10 s": (
            effort.scenario(CHAT, untold=True, poll=10.0),
            (USUAL, "expected_wait", "blind", *LIMITS),
        ),
        "sizes untold, little KV cache": (effort.scenario(tight, untold=True), (USUAL, *LIMITS)),
        "sizes untold, little KV cache, polls of 10 s": (
            effort.scenario(tight, untold=True, poll=10.0),
            (USUAL, *LIMITS),
        ),
        "unequal machines": (effort.scenario(CHAT, speeds=UNEQUAL), ("weighed", *LIMITS)),
        "unequal machines, sizes untold, polls of 10 s": (
            effort.scenario(CHAT, speeds=UNEQUAL, untold=True, poll=10.0),
            (USUAL, "weighed", "limit_waiting"),
        ),
    }


def peaceful(effort: Effort) -> Scenario:
    """Nothing goes wrong."""
    return effort.scenario(CHAT)
