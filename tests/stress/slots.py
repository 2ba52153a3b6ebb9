"""Slot churn: instances come, go, move and return under open requests, and no count ever stands in another's slot.

Once in one process that is monitor and worker, where every slot has to be right after every step, and once with
workers that dispatch all the time. A worker that has answered works with the new slot map.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from proxy_adapter import Dispatch, build_instance_strategy
from tests.stress.churn import SLOTS, Churn, Incarnation
from tests.stress.command_line import StormError
from tests.unit.proxy_adapter.instances import Plain

_STRATEGIES = ("least_load", "power_of_two", "round_robin")


def churn_alone(table: str, reuses: int, seed: int) -> str:
    """One process that is monitor and worker: after each change every slot says exactly what is open there."""
    rng = random.Random(seed)
    churn = Churn(table, rng)
    strategies = [build_instance_strategy(name, table=table) for name in _STRATEGIES]
    opened: list[tuple[Dispatch[Plain], int | None, int]] = []
    truth: NDArray[np.int64] = np.zeros((2, SLOTS), dtype=np.int64)
    dispatched = 0

    def compare() -> None:
        naturals = churn.writer.naturals()
        said = np.array([naturals.outstanding, naturals.kv_tokens])
        if not (said == truth).all() or naturals.cells.min() < 0:
            raise StormError(f"after {churn.reuses} reuses want\n{truth}\nthe table says\n{said}")

    def dispatch(slots: dict[str, int], objects: list[Plain]) -> None:
        nonlocal dispatched
        tokens = rng.randrange(1000)
        guard = rng.choice(strategies).dispatch(objects, prompt_tokens=tokens)
        slot = slots.get(guard.instance.instance_id)
        opened.append((guard, slot, tokens))
        if slot is not None:
            dispatched += 1
            truth[:, slot] += (1, tokens)

    def release(share: float) -> None:
        rng.shuffle(opened)
        for _ in range(int(len(opened) * share)):
            guard, slot, tokens = opened.pop()
            if rng.random() < 0.3:
                guard.first_token()
            guard.release()
            if slot is not None:
                truth[:, slot] -= (1, tokens)

    while churn.reuses_after_open < reuses:
        newcomers: list[Incarnation] = []
        for removing in (True, False):
            if removing:
                newcomers = churn.remove()
            else:
                churn.add(newcomers)
            slots = churn.slots()
            objects = [m.as_object() for m in churn.members if m.id in slots]
            compare()
            if rng.random() < 0.1:
                objects += [ghost.as_object() for ghost in churn.ghosts]
            for _ in range(rng.randrange(40)):
                dispatch(slots, objects)
            compare()
            release(rng.choice((0.2, 0.4, 0.6)))
            compare()
    release(1.0)
    compare()
    churn.check_end()
    for strategy in strategies:
        strategy.close()
    churn.writer.close()
    return f"{churn.reuses} reuses, {churn.reuses_after_open} of them of slots left with requests open, {dispatched} dispatches"


def churn_with_workers(table: str, reuses: int, seed: int, workers: int = 2) -> str:
    """Worker processes that dispatch all the time, also to instances that have just gone."""
    rng = random.Random(seed)
    churn = Churn(table, rng)
    links, pids = [], []
    for index in range(workers):
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _work(table, theirs, random.Random(seed * 1000 + index))
        theirs.close()
        pids.append(pid)
        links.append(ours.makefile("rw"))
        ours.close()

    def tell(hold: bool) -> list[Counter[str]]:
        """Give everyone the new list, and wait until it is used; what each has open, by host."""
        slots = churn.slots()
        message = {
            "members": [(m.id, m.host) for m in churn.members if m.id in slots],
            "ghosts": [(ghost.id, ghost.host) for ghost in churn.ghosts],
            "hold": hold,
        }
        for link in links:
            link.write(json.dumps(message) + "\n")
            link.flush()
        return [Counter(json.loads(link.readline())) for link in links]

    def compare() -> None:
        held = tell(hold=True)
        opened = sum(held, Counter())
        # What a worker sent to an instance while it was away counts there when housekeeping has seen its return.
        deadline = time.monotonic() + 2.0
        while (wrong := first_wrong(opened)) is not None:
            if time.monotonic() > deadline:
                raise StormError(wrong)
            time.sleep(0.01)
        if churn.writer.naturals().cells.min() < 0:
            raise StormError("a cell is negative")

    def first_wrong(opened: Counter[str]) -> str | None:
        naturals, live = churn.writer.naturals(), set(churn.slots().values())
        for slot in range(SLOTS):
            said, holder = int(naturals.outstanding[slot]), churn.holders.get(slot)
            most = opened[holder.host] if holder is not None else 0
            # Whom a worker chose just when it went may be counted or not; nobody else is in doubt.
            if not (said == most if slot in live else 0 <= said <= most):
                return f"after {churn.reuses} reuses slot {slot} of {holder} says {said}, open are {most}"
        return None

    try:
        rounds = 0
        while churn.reuses_after_open < reuses:
            newcomers = churn.remove()
            tell(hold=False)
            churn.add(newcomers)
            tell(hold=False)
            rounds += 1
            if rounds % 5 == 0:
                compare()
        compare()
        for link in links:
            link.write('{"end": true}\n')
            link.flush()
            if link.readline() != "ended\n":
                raise StormError("a worker failed")
        churn.check_end()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        for link in links:
            link.close()
        churn.writer.close()
    return f"{churn.reuses} reuses, {churn.reuses_after_open} of them of slots left with requests open, {workers} workers"


def _work(table: str, link: socket.socket, rng: random.Random) -> None:
    try:
        strategies = [build_instance_strategy(name, table=table) for name in _STRATEGIES]
        members: list[Plain] = []
        ghosts: list[Plain] = []
        opened: list[Dispatch[Plain]] = []
        lines, hold = link.makefile("rw"), True
        while True:
            readable = True
            if not hold:
                link.setblocking(False)
                try:
                    readable = bool(link.recv(1, socket.MSG_PEEK))
                except BlockingIOError:
                    readable = False
                link.setblocking(True)
            if readable:
                message = json.loads(lines.readline())
                if "end" in message:
                    for guard in opened:
                        guard.release()
                    lines.write("ended\n")
                    lines.flush()
                    signal.pause()
                members = [Plain(name, host, 8000) for name, host in message["members"]]
                ghosts = [Plain(name, host, 8000) for name, host in message["ghosts"]]
                hold = message["hold"]
                lines.write(json.dumps(Counter(guard.instance.host for guard in opened)) + "\n")
                lines.flush()
                continue
            if len(opened) > 40 or (opened and rng.random() < 0.5):
                opened.pop(rng.randrange(len(opened))).release()
            else:
                choices = [*members, *ghosts] if rng.random() < 0.05 else members
                opened.append(rng.choice(strategies).dispatch(choices, prompt_tokens=rng.randrange(1000)))
    finally:
        os._exit(1)


def main() -> int:
    """The storm on the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reuses", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--table", default=f"/loadboard-slots-{os.getpid()}")
    args = parser.parse_args()
    started = time.monotonic()
    try:
        alone = churn_alone(args.table, args.reuses, args.seed)
        together = churn_with_workers(f"{args.table}-w", args.reuses // 10, args.seed)
    except StormError as error:
        print(f"slots, seed {args.seed}: {error}")
        return 1
    finally:
        for left in Path("/dev/shm").glob(f"{args.table[1:]}*"):
            left.unlink()
    print(
        f"slots, seed {args.seed}: {alone}; {together}; {time.monotonic() - started:.0f} s; no count in a wrong slot"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
