"""The experiments: what each starts, sends and measures. One run is one gateway in one repetition."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from bench.peers import outcome
from bench.peers.arrivals import GATEWAY, HIDDEN, Planned, mixed, slot_request, steady, with_burst
from bench.peers.client import Door, Record, UnevenError, ask_in_turn, send_all
from bench.peers.mixes import DEMO, LONG, capacity
from bench.peers.outcome import Outcome
from bench.peers.stage import (
    LEAST_LOAD,
    NGINX,
    NGINX_ZONE,
    PER_PROCESS,
    ROUND_ROBIN,
    WORKERS,
    Stage,
    StageError,
)

#: Names of the experiments.
PLAIN, HIDDEN_LOAD, BURST, ADDED = "plain", "hidden", "burst", "added"
ORDER, ORDER_LONG = "order", "order_long"
EXPERIMENTS = (PLAIN, HIDDEN_LOAD, BURST, ADDED, ORDER, ORDER_LONG)
#: Those that compare strategies, with the load of each.
ORDERS = {ORDER: DEMO, ORDER_LONG: LONG}
#: The gateway of the experiment that compares several within one run.
ALL = "all"
DIRECT = "direct"

ENGINES, SLOTS, MEAN_SERVICE_S = 4, 4, 0.2
RATE, HIDDEN_RATE = 55.0, 15.0  #: requests per second; all of them, and those of them past the gateway
BURST_REQUESTS, SETTLE_S = 160, 12.0

#: Of the capacity of the model's engines, in the experiments that compare strategies.
UTILISATION = 0.85
# Tokens per event, after the first one: what a long stream costs the processors is not what is compared.
_STREAM_INTERVAL = 1024

# To each worker; streams are open for seconds.
_CONNECTIONS, _CONNECTIONS_OF_STREAMS = 16, 80
# Rounds before those that count: the first request of a worker takes longer.
_FIRST_ROUNDS = 40
_ADDED_GAP_S = 0.005
_START_S = 9.0  # with its stop, for the estimate
_DRAIN_S = 3.0


class Times(NamedTuple):
    """How long things take, in seconds; ``rounds`` of the experiment that sends one request at a time."""

    warm: float
    measured: float
    burst_warm: float
    burst_window: float
    rounds: int
    order_warm: float
    order_measured: float


FULL = Times(60.0, 120.0, 30.0, 40.0, 1000, 20.0, 60.0)
QUICK = Times(4.0, 8.0, 12.0, 6.0, 100, 4.0, 10.0)


class Run(NamedTuple):
    """One run of the plan."""

    experiment: str
    gateway: str
    repetition: int  #: from 0


def gateways(experiment: str, *, beside: bool, without_nginx: bool) -> tuple[str, ...]:
    """Those that an experiment compares. ``beside`` adds those that no goal asks for."""
    if experiment == ADDED:
        return (ALL,)
    if experiment in ORDERS:
        return (LEAST_LOAD, ROUND_ROBIN, PER_PROCESS)
    found = [LEAST_LOAD]
    if not without_nginx and (beside or experiment != BURST):
        found.append(NGINX)
        if beside and experiment != BURST:
            found.append(NGINX_ZONE)
    return tuple(found)


def plan_of(
    experiments: Sequence[str], repetitions: int, *, beside: bool = False, without_nginx: bool = False
) -> list[Run]:
    """All runs in their order: interleaved, and each second repetition the other way round."""
    runs: list[Run] = []
    for repetition in range(repetitions):
        for experiment in experiments:
            names = gateways(experiment, beside=beside, without_nginx=without_nginx)
            turned = names if repetition % 2 == 0 else names[::-1]
            runs += [Run(experiment, name, repetition) for name in turned]
    return runs


def seconds_of(run: Run, times: Times) -> float:
    """About how long it takes."""
    if run.experiment == BURST:
        sending = times.burst_warm + 2 * times.burst_window + SETTLE_S
    elif run.experiment == ADDED:
        sending = times.rounds * 3 * (_ADDED_GAP_S + 0.003)
    elif run.experiment in ORDERS:
        sending = times.order_warm + times.order_measured + _DRAIN_S
    else:
        sending = times.warm + times.measured
    return _START_S + sending


def perform(run: Run, times: Times, seed: str, *, without_nginx: bool = False) -> Outcome:
    """Start everything, send, measure, end everything. Gateways of one repetition get the same requests."""
    seed = f"{seed} {run.experiment} {run.repetition}"
    try:
        if run.experiment == ADDED:
            return _added(times, seed, without_nginx)
        if run.experiment in ORDERS:
            return _order(run, times, seed)
        return _slots(run, times, seed)
    except (StageError, UnevenError, OSError) as error:
        return Outcome({}, [f"{type(error).__name__}: {error}"])


def _slots(run: Run, times: Times, seed: str) -> Outcome:
    with Stage() as stage:
        engines = stage.slot_engines(ENGINES, SLOTS)
        doors = {GATEWAY: Door(stage.gateway(run.gateway, engines, slots=SLOTS), WORKERS)}
        if run.experiment == BURST:
            plan, windows = with_burst(
                seed,
                RATE,
                MEAN_SERVICE_S,
                warm_s=times.burst_warm,
                window_s=times.burst_window,
                settle_s=SETTLE_S,
                burst=BURST_REQUESTS,
            )
            records = _send(stage, plan, doors, seed, _CONNECTIONS + BURST_REQUESTS // WORKERS)
            found = outcome.of_burst(plan, records, windows.before, windows.after)
        else:
            hidden_rate = HIDDEN_RATE if run.experiment == HIDDEN_LOAD else 0.0
            if hidden_rate:
                doors[HIDDEN] = Door(next(iter(engines.values())))
            end_s = times.warm + times.measured
            plan = steady(seed, end_s, RATE - hidden_rate, MEAN_SERVICE_S, hidden_rate=hidden_rate)
            records = _send(stage, plan, doors, seed, _CONNECTIONS)
            found = outcome.of_slots(plan, records, (times.warm, end_s))
        return _with_degraded(found, stage, run.gateway)


def _order(run: Run, times: Times, seed: str) -> Outcome:
    mix = ORDERS[run.experiment]
    fleet = ENGINES * capacity(mix)
    end_s = times.order_warm + times.order_measured
    plan = mixed(seed, end_s, UTILISATION * fleet, mix.draw)
    with Stage() as stage:
        engines = stage.model_engines(ENGINES, mix.engine, _STREAM_INTERVAL)
        doors = {GATEWAY: Door(stage.gateway(run.gateway, engines, slots=mix.engine.slots), WORKERS)}
        records = _send(stage, plan, doors, seed, _CONNECTIONS_OF_STREAMS)
        found = outcome.of_streams(plan, records, (times.order_warm, end_s))
        if "rate" in found.figures:
            found.figures["utilisation"] = found.figures["rate"] / fleet
        return _with_degraded(found, stage, run.gateway)


def _added(times: Times, seed: str, without_nginx: bool) -> Outcome:
    with Stage() as stage:
        engines = stage.slot_engines(1, SLOTS)
        doors = {DIRECT: Door(engines["engine-1"])}
        for name in (LEAST_LOAD,) if without_nginx else (LEAST_LOAD, NGINX):
            doors[name] = Door(stage.gateway(name, engines, slots=SLOTS), WORKERS)
        asked = ask_in_turn(
            slot_request(0.0, 0.0), doors, rounds=_FIRST_ROUNDS + times.rounds, gap_s=_ADDED_GAP_S, seed=seed
        )
        found = asyncio.run(asked)
        stage.check()
        counted = {name: records[_FIRST_ROUNDS:] for name, records in found.items()}
        return outcome.of_turns(counted, DIRECT)


def _send(
    stage: Stage, plan: Sequence[Planned], doors: dict[str, Door], seed: str, connections: int
) -> list[Record]:
    records = asyncio.run(send_all(plan, doors, connections=connections, seed=seed))
    stage.check()
    return records


def _with_degraded(found: Outcome, stage: Stage, gateway: str) -> Outcome:
    """With the picks that the demo proxy made without the monitor's word: they should be none."""
    return Outcome({**found.figures, "degraded": stage.degraded(gateway)}, found.problems)
