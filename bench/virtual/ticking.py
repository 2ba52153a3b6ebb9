"""What ticking costs the monitor: a real board and table of the largest usual size."""

from __future__ import annotations

import os
import random
import time

from bench.virtual.clock import VirtualClock
from bench.virtual.ratios import Spread, mean
from monitor.board import Board
from monitor.config import InstanceConfig, MonitorConfig
from monitor.discovery.static import StaticSource
from monitor.sample import FINISHED, GENERATED_TOKENS, PROMPT_TOKENS, Reading
from score_table.lane import Lane
from score_table.removal import remove_table
from score_table.writer import TableWriter

SLOTS, LANES = 256, 32
TICK_S = 0.02
#: Blocks of a virtual second each, with a poll of every instance before each.
BLOCKS = 15
_PER_BLOCK = round(1.0 / TICK_S)
_OPEN = 8  #: requests of every lane


def share_of_a_core() -> Spread:
    """CPU time of a tick to the time between two ticks, over 750 ticks after 50 to warm up.

    The board's own, polls not included; all lanes are claimed and have requests open.
    """
    table, clock, rng = f"/loadboard-ticking-{os.getpid()}", VirtualClock(), random.Random(1)
    instances = tuple(InstanceConfig(id=f"m{at}", url=f"http://m{at}.test:8000") for at in range(SLOTS))
    config = MonitorConfig(instances=instances, slots=SLOTS, lanes=LANES)
    writer = TableWriter.open(table, slots=SLOTS, lanes=LANES)
    lanes = [Lane(table, clock=clock.mono_ns) for _ in range(LANES)]
    try:
        board = Board(writer, config)
        keys = [key for key, _ in board.start(StaticSource(instances).current(), clock.mono_ns()).started]
        _tick(board, clock)
        guards = []
        for lane in lanes:
            lane.attach()
            for _ in range(_OPEN):
                seat = lane.seat(f"m{rng.randrange(SLOTS)}", None, None)
                guards.append(lane.ledger.dispatch(None, seat, rng.randrange(1, 2000), True))
        blocks = []
        for block in range(BLOCKS + 1):
            for key in keys:
                board.fleet.sampled(key, _reading(rng, block), "simulated", clock.boot_ns(), clock.mono_ns())
            spent = [_tick(board, clock) for _ in range(_PER_BLOCK)]
            blocks.append(sum(spent) / (_PER_BLOCK * TICK_S))
        for guard in guards:
            guard.release()
        return mean(blocks[1:])
    finally:
        for lane in lanes:
            lane.close()
        writer.close()
        remove_table(table, force=True)


def _tick(board: Board, clock: VirtualClock) -> float:
    clock.seconds += TICK_S
    began = time.process_time()
    board.tick(clock.mono_ns(), clock.boot_ns())
    return time.process_time() - began


def _reading(rng: random.Random, block: int) -> Reading:
    return Reading(
        running=float(rng.randrange(40)),
        waiting=float(rng.randrange(3)),
        kv_usage=rng.random(),
        kv_capacity=400_000.0,
        counters={
            FINISHED: {b"": 20.0 * block},
            PROMPT_TOKENS: {b"": 4000.0 * block},
            GENERATED_TOKENS: {b"": 4000.0 * block},
        },
    )
