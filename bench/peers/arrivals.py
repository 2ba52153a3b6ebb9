"""What is sent and when: open-loop schedules from a seed, the same for every gateway."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import NamedTuple

from loadboard.demo.load import Shape, body

#: Where a request goes: through the gateway, or straight to one engine behind its back.
GATEWAY, HIDDEN = "gateway", "hidden"

_PATH = "/v1/completions"


class Planned(NamedTuple):
    """One request of a schedule."""

    due_s: float  #: after the start of the schedule
    target: str  #: ``GATEWAY`` or ``HIDDEN``
    path: str
    body: bytes
    service_s: float  #: how long an engine serves it; 0 where the engine's model decides


def slot_request(due_s: float, service_s: float, target: str = GATEWAY) -> Planned:
    """A request that tells a slot engine how long it takes."""
    asked = {"model": "slots", "prompt": "go", "max_tokens": 16, "service_s": service_s}
    return Planned(due_s, target, _PATH, json.dumps(asked).encode(), service_s)


def steady(
    seed: str, seconds: float, rate: float, mean_service_s: float, *, hidden_rate: float = 0.0
) -> list[Planned]:
    """Poisson arrivals with exponential service times: ``rate`` per second through the gateway and besides
    ``hidden_rate`` straight to one engine. The hidden ones do not change the others."""
    plan: list[Planned] = []
    for target, per_second in ((GATEWAY, rate), (HIDDEN, hidden_rate)):
        services = random.Random(f"{seed} {target} services")
        plan += [
            slot_request(due_s, services.expovariate(1 / mean_service_s), target)
            for due_s in poisson(random.Random(f"{seed} {target} arrivals"), per_second, seconds)
        ]
    return sorted(plan, key=lambda request: request.due_s)


class Windows(NamedTuple):
    """The times of a schedule with a burst, in seconds after its start."""

    before: tuple[float, float]
    burst: float
    after: tuple[float, float]


def with_burst(
    seed: str,
    rate: float,
    mean_service_s: float,
    *,
    warm_s: float,
    window_s: float,
    settle_s: float,
    burst: int,
) -> tuple[list[Planned], Windows]:
    """Steady arrivals, ``burst`` requests at once, and then the last ``settle_s + window_s`` seconds before
    them once more, request by request.

    So the requests that arrive ``settle_s`` after the burst or later are the same, at the same distances, as
    those of the window before it, and came after the same ones: what they wait longer is what is left of the
    burst, not another draw. ``ValueError`` if the warm-up is shorter than ``settle_s``.
    """
    if warm_s < settle_s:
        raise ValueError(f"the warm-up of {warm_s:g} s must be as long as the {settle_s:g} s after the burst")
    at = warm_s + window_s
    before = steady(seed, at, rate, mean_service_s)
    shift = settle_s + window_s
    again = [
        request._replace(due_s=request.due_s + shift) for request in before if request.due_s >= at - shift
    ]
    rng = random.Random(f"{seed} burst")
    at_once = [slot_request(at, rng.expovariate(1 / mean_service_s)) for _ in range(burst)]
    return before + at_once + again, Windows((warm_s, at), at, (at + settle_s, at + shift))


def mixed(seed: str, seconds: float, rate: float, draw: Callable[[random.Random], Shape]) -> list[Planned]:
    """Poisson arrivals of completion requests as ``draw`` gives them, every answer streamed."""
    rng = random.Random(seed)
    plan: list[Planned] = []
    for due_s in poisson(rng, rate, seconds):
        path, content = body(draw(rng)._replace(stream=True))
        plan.append(Planned(due_s, GATEWAY, path, content, 0.0))
    return plan


def poisson(rng: random.Random, rate: float, seconds: float) -> list[float]:
    """Arrival times from 0 to ``seconds``; none where ``rate`` is 0."""
    times: list[float] = []
    now = rng.expovariate(rate) if rate > 0 else seconds
    while now < seconds:
        times.append(now)
        now += rng.expovariate(rate)
    return times
