"""Programs that fork, exec, daemonise and close descriptors while they have requests open."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

from proxy_adapter import Dispatch, build_instance_strategy
from score_table.reader import TableReader
from tests.stress.hosts import INSTANCES, Fork, main, open_in, until, until_read, wait_for
from tests.unit.proxy_adapter.instances import Plain, plain

Guards = list[Dispatch[Plain]]

#: Guards that are open until their process has ended; where one is dropped earlier, its request ends.
_kept: Guards = []


class _Host:
    """A strategy on ``table`` and how many requests it sent."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.strategy = build_instance_strategy("least_load", table=table)
        self.instances = plain(INSTANCES)
        self.dispatched = 0

    def dispatch(self, count: int = 1) -> Guards:
        self.dispatched += count
        return [self.strategy.dispatch(self.instances, prompt_tokens=100 * n) for n in range(count)]


def _make_void(guards: Guards) -> None:
    """All that a child can do with guards of its parent."""
    for guard in guards:
        guard.first_token()
        guard.release()
        guard.fail()


def fork_with_open_guards(table: str) -> dict[str, Any]:
    """Children of a parent with open requests, in every way a child can end."""
    host = _Host(table)
    mine = host.dispatch(5)

    def work() -> None:
        _make_void(mine)
        own = host.dispatch(10)
        for guard in own[2:]:
            guard.release()
        _kept.extend(own[:2])
        until_read(table)

    for end in Fork.ENDS:
        child = Fork(work, end)
        child.wait_until_done()
        until(lambda: open_in(table) == 7, "5 of the parent and 2 of the child")
        child.let_go()
        until(lambda: open_in(table) == 5, f"the parent's 5 alone after a child ended by {end}", timeout=2.0)
    for guard in mine:
        guard.release()
    assert open_in(table) == 0
    until_read(table)
    dispatched = 5 + 10 * len(Fork.ENDS)
    return {"dispatched": dispatched, "ended": dispatched - 2 * len(Fork.ENDS)}


def fork_inside_blocks(table: str) -> dict[str, Any]:
    """Parent and child leave the same ``with`` blocks, the child also by an exception."""
    host = _Host(table)
    strategy, instances = host.strategy, host.instances
    for error in (None, ConnectionResetError()):
        child = -1
        try:
            with strategy.dispatch(instances), strategy.dispatch(instances) as inner:
                child = os.fork()
                if child:
                    assert wait_for(child) == 0
                    until(lambda: open_in(table) == 2, "the parent's two requests", timeout=2.0)
                else:
                    with strategy.dispatch(instances):
                        inner.fail()
                    until_read(table)
                    if error is not None:
                        raise error
        except ConnectionResetError:
            assert child == 0
        if child == 0:
            os._exit(0)
        assert open_in(table) == 0
    until_read(table)
    return {"dispatched": 6, "ended": 6}


def fork_of_a_fork(table: str) -> dict[str, Any]:
    """A chain of forks, each with requests open across the next."""
    host = _Host(table)
    depth = 5

    def level(number: int, inherited: Guards) -> None:
        own = host.dispatch(3)
        _make_void(inherited)
        if number < depth:
            child = Fork(lambda: level(number + 1, [*inherited, *own]), Fork.ENDS[number % 4])
            child.wait_until_done()
            child.let_go()
        until(lambda: open_in(table) == 3 * (number + 1), f"the requests down to level {number}", timeout=5.0)
        own[0].release()
        own[1].release()
        until_read(table)
        if number:
            _kept.append(own[2])
        else:
            own[2].release()

    level(0, [])
    assert open_in(table) == 0
    until_read(table)
    return {"dispatched": 3 * (depth + 1), "ended": 2 * (depth + 1) + 1}


def fork_beside_dispatching_threads(table: str, forks: str = "25") -> dict[str, Any]:
    """Forks at any moment of the dispatches of two other threads."""
    host = _Host(table)
    host.dispatch()[0].release()
    done, stop = [1, 0, 0], threading.Event()

    def work(index: int) -> None:
        while not stop.is_set():
            with host.strategy.dispatch(host.instances, prompt_tokens=10) as guard:
                guard.first_token()
            done[index] += 1

    threads = [threading.Thread(target=work, args=(index,)) for index in (1, 2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(int(forks)):
            child = os.fork()
            if child == 0:
                for guard in host.dispatch(10):
                    guard.release()
                until_read(table)
                os._exit(0)
            assert wait_for(child) == 0
            done[0] += 10
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    until_read(table)
    return {"dispatched": sum(done), "ended": sum(done)}


def _in_a_process(table: str) -> int:
    """The work of a process of ``multiprocessing``: 20 requests, two of them left open."""
    host = _Host(table)
    guards = host.dispatch(20)
    for guard in guards[2:]:
        guard.release()
    _kept.extend(guards)
    until_read(table)
    return len(guards)


_inherited: list[_Host] = []


def _in_a_forked_process(table: str) -> int:
    """As :func:`_in_a_process`, with the strategy of the parent."""
    host = _inherited[0]
    for guard in host.dispatch(20):
        guard.release()
    until_read(table)
    return 20


def multiprocessing_with(table: str, method: str) -> dict[str, Any]:
    """Processes and a recycling pool of ``multiprocessing`` started by ``method``."""
    host = _Host(table)
    _inherited.append(host)
    mine = host.dispatch(3)
    context: Any = multiprocessing.get_context(method)
    work: Callable[[str], int] = _in_a_forked_process if method == "fork" else _in_a_process
    processes = [context.Process(target=work, args=(table,)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    until(lambda: open_in(table) == 3, "the parent's requests alone", timeout=2.0)
    with context.Pool(2, maxtasksperchild=1) as pool:
        sent = sum(pool.map(work, [table] * 4, chunksize=1))
        pool.close()
        pool.join()
    until(lambda: open_in(table) == 3, "the parent's requests alone", timeout=2.0)
    for guard in mine:
        guard.release()
    until_read(table)
    dispatched = 3 + 2 * 20 + sent
    return {"dispatched": dispatched, "ended": dispatched - (0 if method == "fork" else 6 * 2)}


def exec_with_open_requests(table: str) -> dict[str, Any]:
    """Becomes another program that knows nothing of the table and waits."""
    _kept.extend(_Host(table).dispatch(5))
    print("open", flush=True)
    sys.stdin.readline()
    os.execv(
        sys.executable, [sys.executable, "-c", "import sys; print('other', flush=True); sys.stdin.read()"]
    )


def child_program_that_outlives_it(table: str) -> dict[str, Any]:
    """Starts another program that inherits every descriptor it may, and waits to be killed."""
    _kept.extend(_Host(table).dispatch(5))
    other = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], close_fds=False)
    print(other.pid, flush=True)
    other.wait()
    return {}


def daemonise_after_use(table: str) -> dict[str, Any]:
    """Forks twice, closes every descriptor and goes on; the first process ends with its requests open."""
    host = _Host(table)
    inherited = host.dispatch(3)
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.closerange(3, 65536)
    return _go_on(host, inherited, before=0)


def close_all_descriptors_in_use(table: str) -> dict[str, Any]:
    """Closes every descriptor under its own feet, then opens others that get the same numbers."""
    host = _Host(table)
    own = host.dispatch(3)
    os.closerange(3, 65536)
    return _go_on(host, own, before=3)


def fork_after_closing_all_descriptors(table: str) -> dict[str, Any]:
    """Closes every descriptor, opens others under the same numbers, and forks before anybody has noticed."""
    host = _Host(table)
    own = host.dispatch(3)
    os.closerange(3, 65536)
    strangers = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
    child = os.fork()
    if child == 0:
        os._exit(sum(not os.path.exists(f"/proc/self/fd/{fd}") for fd in strangers))
    lost = wait_for(child)
    until(lambda: open_in(table) == 3, "a lane claimed anew")
    for guard in own:
        guard.release()
    return {"open": open_in(table), "strangers_lost": lost}


def _go_on(host: _Host, guards: Guards, before: int) -> dict[str, Any]:
    """A hundred requests more, a table that grows meanwhile, and descriptors of its own that must stay."""
    strangers = [os.open("/dev/null", os.O_RDONLY) for _ in range(40)]
    if not before:
        _make_void(guards)
    for guard in host.dispatch(100):
        guard.release()
    kept = host.dispatch(4)
    until(lambda: open_in(host.table) == before + 4, "a lane claimed anew with every open request")
    print("grow", flush=True)
    sys.stdin.readline()  # the table is another one now
    with TableReader.open(host.table) as reader:
        until(lambda: reader.snapshot().lane_capacity == 20, "the larger table")
    until(lambda: open_in(host.table) == before + 4, "every request moved to the larger table")
    for guard in host.dispatch(50):
        guard.release()
    for guard in kept if not before else [*kept, *guards]:
        guard.release()
    until_read(host.table)
    host.strategy.close()
    lost = [fd for fd in strangers if not os.path.exists(f"/proc/self/fd/{fd}")]
    return {"open": open_in(host.table), "strangers_lost": len(lost), "pid": os.getpid()}


if __name__ == "__main__":
    main(
        {
            program.__name__: program
            for program in (
                fork_with_open_guards,
                fork_inside_blocks,
                fork_of_a_fork,
                fork_beside_dispatching_threads,
                multiprocessing_with,
                exec_with_open_requests,
                child_program_that_outlives_it,
                daemonise_after_use,
                close_all_descriptors_in_use,
                fork_after_closing_all_descriptors,
            )
        }
    )
