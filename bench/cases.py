"""The cases: every statement that is measured, and the tables and processes it needs."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

from bench.comparators import ListScan, RemoteScheduler, remote_scheduler
from bench.harness import Case
from bench.names import (
    COMPANY,
    COPY,
    CPU_OF_BOTH,
    CPU_OF_CLIENT,
    DISPATCH,
    EMPTY,
    INDEX,
    LANES,
    NUMPY,
    PASS,
    PICK,
    PICK_HALF,
    PICK_TENTH,
    PICKER_DISPATCH,
    PICKER_SELECT,
    PLAIN,
    RPC,
    RPC_BOTH,
    SCAN,
    SELECT,
    SELECT_AND_HOLD,
    SELECT_HALF,
    SELECT_NEW,
    SELECT_TENTH,
    SIZES,
    USUAL_LANES,
    USUAL_SIZE,
    WALL,
    WITH_DISPATCH,
    WRITER,
    Name,
    by_clock,
    elsewhere,
    stopped,
    usual,
)
from bench.neighbours import Neighbours
from bench.tables import Table, busy_table
from proxy_adapter import LeastLoadStrategy
from proxy_adapter.slots import SlotMap
from score_table.ledger import Picker
from score_table.pick import CORES

#: Subsets, and the lists made of them, that take turns.
_SUBSETS = 100
#: Places at which picks begin, taking turns.
_CURSORS = 997
#: Calls that leave something behind, before it is taken back: a hold each, or an entry for the prefill's end.
_UNSETTLED = 1000

_ROLES = {WRITER: ("writer",), COMPANY: ("reader", "reader", "counter")}
#: What is measured with cold caches as well, for which sizes; the native pick is for all.
_COLD, _COLD_SIZES = (DISPATCH, SELECT, SCAN, NUMPY, INDEX), (USUAL_SIZE, 1024)


class Grid:
    """Everything that is measured, on tables and beside processes that live until it is closed.

    ``sizes`` of :data:`bench.names.SIZES`; ``cores`` are those left for other processes.
    """

    def __init__(self, sizes: Sequence[int], cores: Sequence[int]) -> None:
        self._cores = cores
        self._now = time.monotonic_ns()
        self.neighbours: list[Neighbours] = []
        with ExitStack() as stack:
            self.cases: dict[Name, Case] = {Name(PASS): Case("pass"), **_empty_call()}
            for size in sizes:
                for lanes in LANES:
                    table = stack.enter_context(busy_table(size, lanes, now_ns=self._now))
                    self._add(size, lanes, _everywhere(table))
                    if lanes == USUAL_LANES:
                        self._add(size, lanes, {**_forms(table), **_comparators(table)})
            scheduler = stack.enter_context(remote_scheduler(USUAL_SIZE, cores))
            self._add(USUAL_SIZE, USUAL_LANES, _remote(scheduler))
            self._add_neighbours(stack)
            self._stack = stack.pop_all()

    def __enter__(self) -> Grid:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cold(self) -> dict[Name, Case]:
        """Those that are measured with cold caches as well."""
        wanted = {
            Name(EMPTY),
            *(usual(PICK, size) for size in SIZES),
            *(usual(case, size) for case in _COLD for size in _COLD_SIZES),
        }
        return {name: case for name, case in self.cases.items() if name in wanted}

    def rates(self) -> dict[str, float]:
        """Steps per second that the neighbours kept, by role."""
        return {role: rate for neighbours in self.neighbours for role, rate in neighbours.rates().items()}

    def _add(self, size: int, lanes: int, cases: Mapping[str, Case], beside: str = "") -> None:
        self.cases.update({Name(case, size, lanes, beside): each for case, each in cases.items()})

    def _add_neighbours(self, stack: ExitStack) -> None:
        """Pick and dispatch on a table whose neighbours are stopped, at work, or at work on another table."""
        tables = {}
        for beside, roles in _ROLES.items():
            table = busy_table(USUAL_SIZE, USUAL_LANES, now_ns=self._now, free_lanes=roles.count("counter"))
            tables[beside] = stack.enter_context(table)
            self.neighbours.append(stack.enter_context(Neighbours(tables[beside].name, roles, self._cores)))
        writer, company = self.neighbours
        for beside, own, other, foreign in (
            (WRITER, writer, COMPANY, company),
            (COMPANY, company, WRITER, writer),
        ):
            everywhere = _everywhere(tables[beside])
            cases = {case: everywhere[case] for case in (PICK, DISPATCH) if case in everywhere}
            self._add(USUAL_SIZE, USUAL_LANES, cases, stopped(beside))
            at_work = {case: replace(each, around=own.working) for case, each in cases.items()}
            self._add(USUAL_SIZE, USUAL_LANES, at_work, beside)
            control = {case: replace(each, around=foreign.working) for case, each in cases.items()}
            self._add(USUAL_SIZE, USUAL_LANES, control, elsewhere(other))


def _empty_call() -> dict[Name, Case]:
    if "native" not in CORES:
        return {}
    from score_table import _native

    return {Name(EMPTY): Case("nothing()", {"nothing": _native.nothing})}


def _everywhere(table: Table) -> dict[str, Case]:
    """For every number of instances and lanes."""
    return {**_pick(table, "native", PICK), **_counting(table)}


def _pick(table: Table, core: str, case: str) -> dict[str, Case]:
    """All slots, from a cursor that moves; nothing where the core was not built."""
    if core not in CORES:
        return {}
    rng = random.Random(1)
    cursors = [rng.randrange(len(table.instances)) for _ in range(_CURSORS)]
    return {case: Case("choose(None, x, -1, None)", {"choose": CORES[core](table.segment).choose}, cursors)}


def _using(
    table: Table,
    statement: str,
    items: Sequence[object] = (0,),
    *,
    picker: Picker | None = None,
    settle_counts: bool = False,
) -> Case:
    """A statement that changes the lane, and settles what it leaves behind."""
    return Case(
        statement,
        {"strategy": LeastLoadStrategy(lane=table.lane), "picker": picker, "instances": table.instances},
        items,
        settle=table.settle,
        at_most=_UNSETTLED,
        settle_counts=settle_counts,
    )


def _counting(table: Table) -> dict[str, Case]:
    """What a proxy calls."""
    return {
        DISPATCH: _using(table, "strategy.dispatch(instances, prompt_tokens=100).release()"),
        SELECT: _using(table, "strategy.select(instances)"),
    }


def _forms(table: Table) -> dict[str, Case]:
    """Other ways to ask: with a block, new lists, filtered lists, picks of some of the instances."""
    rng = random.Random(2)
    everything = range(len(table.instances))
    cases = {
        WITH_DISPATCH: _using(table, "with strategy.dispatch(instances, prompt_tokens=100): pass"),
        SELECT_AND_HOLD: _using(table, "strategy.select(instances)", settle_counts=True),
        SELECT_NEW: _using(table, "strategy.select(x[:])", [table.instances]),
        COPY: Case("x[:]", items=[table.instances]),
    }
    picker = table.lane.ledger.picker(SlotMap(table.lane).seat)
    if picker is not None:
        cases[PICKER_DISPATCH] = _using(
            table, "picker.dispatch(instances, None, 100).release()", picker=picker
        )
        cases[PICKER_SELECT] = _using(table, "picker.select(instances)", picker=picker)
    for select, pick, part in ((SELECT_HALF, PICK_HALF, 2), (SELECT_TENTH, PICK_TENTH, 10)):
        size = max(1, len(everything) // part)
        subsets = [sorted(rng.sample(everything, size)) for _ in range(_SUBSETS)]
        lists = [[table.instances[slot] for slot in subset] for subset in subsets]
        cases[select] = _using(table, "strategy.select(x[:])", lists)
        if "native" in CORES:
            core = CORES["native"](table.segment)
            prepared = [core.prepare(subset) for subset in subsets]
            cases[pick] = Case("choose(x, 0, -1, None)", {"choose": core.choose}, prepared)
    return cases


def _comparators(table: Table) -> dict[str, Case]:
    """The twins, and what proxies do without a table."""
    instances = table.instances
    rng = random.Random(3)
    indices = [rng.randrange(len(instances)) for _ in range(_CURSORS)]
    return {
        **_pick(table, "numpy", NUMPY),
        **_pick(table, "plain", PLAIN),
        SCAN: Case("scan.select(instances)", {"scan": ListScan(), "instances": instances}),
        INDEX: Case("lst[x]", {"lst": instances}, indices),
    }


def _remote(remote: RemoteScheduler) -> dict[str, Case]:
    """One round trip for a pick, a second one for its release. What it leaves behind is a number per instance."""
    clocks = {
        WALL: time.perf_counter_ns,
        CPU_OF_BOTH: remote.cpu_ns,
        CPU_OF_CLIENT: time.thread_time_ns,
    }
    names = {"scheduler": remote.proxy}
    statements = {RPC: "scheduler.acquire()", RPC_BOTH: "scheduler.release(scheduler.acquire())"}
    return {
        by_clock(case, name): Case(statement, names, clock=clock)
        for case, statement in statements.items()
        for name, clock in clocks.items()
    }
