"""Lanes and ledgers: exact counts on every path, and the lane's life across forks, losses, growth and restarts.

Every test runs with the ledger in C and with the one in Python.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from score_table import claim as claim_module
from score_table.attachment import Attached
from score_table.identity import Identity, Prices
from score_table.lane import Lane
from score_table.layout import LANE_LOCKS, NATURAL_LEVELS, REGISTRY_LOCK, Mark, Natural, State
from score_table.ledger import Guard
from score_table.ledger.plain import PlainLedger
from score_table.location import Location
from score_table.locks import try_lock
from score_table.pick import CORES, PickCore
from score_table.records import Detail
from score_table.segment import Segment
from score_table.writer import TableWriter
from tests import tables
from tests.tables import PRICES, instance_id, make_table, publish
from tests.waiting import wait_until


class Clock:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = 10**12

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += int(seconds * 1e9)


def opened(lane: Lane, slot: int, tokens: Any = 100, *, visible: bool = True) -> Guard[None]:
    return tables.opened(lane, instance_id(slot), tokens, visible=visible)


def attached(lane: Lane) -> Attached:
    now = lane.attached
    assert now is not None
    return now


def cells(lane: Lane, slots: int = 3) -> list[int]:
    return attached(lane).claim.cells[:slots].tolist()


def natural(lane: Lane, kind: Natural, slot: int) -> int:
    return attached(lane).claim.naturals[kind][slot]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=[name for name in ("native", "numpy") if name in CORES])
def core(request: pytest.FixtureRequest) -> type[PickCore]:
    """The ledger in C comes with the native core, the one in Python with the others."""
    return CORES[request.param]


@pytest.fixture
def lane(table_name: str, clock: Clock, core: type[PickCore]) -> Lane:
    make_table(table_name, 3).close()
    lane = Lane(table_name, clock=clock, core=core)
    lane.attach()
    return lane


def test_a_charge_costs_its_linear_price_and_each_part_is_taken_back_once(lane: Lane) -> None:
    charge = opened(lane, 1, 1000)
    request, prefill, kv = 1024, round(3.072 * 1000), round(0.0512 * 1000)
    assert cells(lane) == [0, request + prefill + kv, 0]
    assert natural(lane, Natural.PROMPT_TOKENS, 1) == 1000
    charge.first_token()
    charge.first_token()
    assert cells(lane) == [0, request + kv, 0]
    assert natural(lane, Natural.PROMPT_TOKENS, 1) == 0
    assert natural(lane, Natural.KV_TOKENS, 1) == 1000
    charge.release()
    charge.release()
    charge.first_token()
    charge.fail()
    assert cells(lane) == [0, 0, 0]
    for kind, expected in ((Natural.OUTSTANDING, 0), (Natural.KV_TOKENS, 0), (Natural.DISPATCHED, 1)):
        assert natural(lane, kind, 1) == expected
    assert natural(lane, Natural.ENDED, 1) == 1
    assert attached(lane).claim.block[8] == 0, "no count error"


def test_without_a_visible_first_token_the_prefill_part_goes_after_the_time_of_a_prefill(
    lane: Lane, clock: Clock
) -> None:
    guard = opened(lane, 0, 7500, visible=False)
    full = cells(lane)[0]
    clock.advance(0.99)
    lane.housekeep()
    assert cells(lane)[0] == full
    clock.advance(0.02)
    lane.housekeep()
    assert cells(lane)[0] == full - round(3.072 * 7500)
    guard.release()
    assert cells(lane) == [0, 0, 0]


def test_a_failed_request_keeps_its_price_for_the_hold_time_and_is_held(lane: Lane, clock: Clock) -> None:
    charge = opened(lane, 2)
    full = cells(lane)[2]
    charge.fail(ConnectionRefusedError())
    assert natural(lane, Natural.SUSPECTS, 2) == 1
    clock.advance(9.9)
    lane.housekeep()
    assert cells(lane)[2] == full
    assert (natural(lane, Natural.HELD, 2), natural(lane, Natural.OUTSTANDING, 2)) == (1, 1)
    clock.advance(0.2)
    lane.housekeep()
    assert cells(lane)[2] == 0
    assert (natural(lane, Natural.HELD, 2), natural(lane, Natural.OUTSTANDING, 2)) == (0, 0)


@pytest.mark.parametrize("unknown", [None, "many", float("nan"), float("inf"), object()])
def test_an_unknown_prompt_counts_the_running_mean_where_the_seat_says_nothing(
    lane: Lane, unknown: Any
) -> None:
    first = opened(lane, 0, unknown)
    assert natural(lane, Natural.KV_TOKENS, 0) == 220
    first.release()
    for _ in range(400):
        opened(lane, 0, 1000).release()
    assert 900 < lane.ledger.mean_prompt_tokens <= 1000
    last = opened(lane, 0, unknown)
    assert natural(lane, Natural.KV_TOKENS, 0) == int(lane.ledger.mean_prompt_tokens)
    last.release()


def test_absurd_prompt_lengths_are_cut_and_cells_stop_before_they_overflow(lane: Lane) -> None:
    limit = attached(lane).claim.cell_limit
    guards = [opened(lane, 0, 10**12)]
    assert natural(lane, Natural.KV_TOKENS, 0) == 2**18
    guards += [opened(lane, 0, 10**30) for _ in range(200)]
    assert cells(lane)[0] == limit
    assert attached(lane).claim.block[9] > 0, "saturation is counted"
    for guard in guards:
        guard.release()
    assert cells(lane)[0] == 0
    guard = opened(lane, 0, -5)
    assert natural(lane, Natural.KV_TOKENS, 0) == 0
    guard.release()
    guard = opened(lane, 0, 99.7)
    assert natural(lane, Natural.KV_TOKENS, 0) == 99
    guard.release()


def test_no_dispatch_costs_more_than_1024_requests(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    with contextlib.closing(make_table(table_name, 1)) as writer:
        identity = writer.identity(0)
        assert identity is not None
        writer.assign(0, replace(identity, prices=Prices(1024.0, 1024.0, 1024.0)))
        lane = Lane(table_name, clock=clock, core=core)
        lane.attach()
        short, long = opened(lane, 0, 100), opened(lane, 0, 2**18)
        assert cells(lane)[0] == 1024 + 200 * 1024 + 2**20
        assert attached(lane).claim.block[9] == 0, "no saturation"
        long.first_token()
        assert cells(lane)[0] < 1024 + 200 * 1024 + 2**20
        long.release()
        short.release()
        assert cells(lane)[0] == 0


def tokens(lane: Lane, slot: int) -> tuple[int, int, int]:
    """Prompt tokens, KV tokens and guessed tokens."""
    kinds = (Natural.PROMPT_TOKENS, Natural.KV_TOKENS, Natural.GUESSED)
    prompt, kv, guessed = (natural(lane, kind, slot) for kind in kinds)
    return prompt, kv, guessed


def held(lane: Lane, slot: int) -> None:
    """A pick at ``slot`` that nobody will end."""
    lane.ledger.hold(lane.seat(instance_id(slot), None, None))


def test_the_tokens_of_requests_that_do_not_tell_are_told_apart_until_these_end(
    lane: Lane, clock: Clock
) -> None:
    told = opened(lane, 0, 220)
    visible, invisible = opened(lane, 0, None), opened(lane, 0, "many", visible=False)
    held(lane, 0)
    assert tokens(lane, 0) == (440, 880, 660)
    told.first_token()
    told.release()
    assert tokens(lane, 0) == (220, 660, 660)
    visible.release()
    assert tokens(lane, 0) == (0, 440, 440)
    invisible.fail()
    clock.advance(7.4)
    lane.housekeep()
    assert tokens(lane, 0) == (0, 440, 440), "a failed one is there for ten seconds, a pick for about as long"
    clock.advance(5.2)
    lane.housekeep()
    assert tokens(lane, 0) == (0, 0, 0)
    assert cells(lane) == [0, 0, 0]
    assert attached(lane).claim.block[8] == 0, "no count error"


def test_picks_that_come_together_end_spread_over_half_of_their_time(lane: Lane, clock: Clock) -> None:
    """Hold times follow the golden ratio, and 89 is a Fibonacci number: of so many in a row each lies within 1/89 of a
    place of its own on an even grid, so half of the range has 44.5 of them, give or take 2."""
    for _ in range(89):
        held(lane, 0)
    left = []
    for seconds in (7.49, 2.51, 2.51):
        clock.advance(seconds)
        lane.housekeep()
        left.append(lane.outstanding())
    assert (left[0], left[2]) == (89, 0)
    assert 42 <= left[1] <= 47


def test_a_request_that_does_not_tell_has_a_prefill_part_only_where_its_first_token_is_seen(
    lane: Lane, clock: Clock
) -> None:
    without = 1024 + round(0.0512 * 220)
    invisible = opened(lane, 0, None, visible=False)
    held(lane, 1)
    assert cells(lane) == [without, without, 0]
    invisible.first_token()
    assert cells(lane)[0] == without
    visible = opened(lane, 2, None)
    assert cells(lane)[2] == without + round(3.072 * 220)
    clock.advance(5)
    lane.housekeep()
    assert tokens(lane, 2)[0] == 220, "until the first token, whenever it comes"
    visible.first_token()
    assert cells(lane) == [without] * 3
    assert tokens(lane, 2) == (0, 220, 220)
    invisible.release()
    visible.release()


def test_a_request_that_does_not_tell_has_the_length_that_its_seat_says_and_the_mean_learns_nothing(
    lane: Lane,
) -> None:
    seat = lane.seat(instance_id(1), None, None)
    assert seat.prompt_tokens == 0.0
    seat.prompt_tokens = 1800.9
    guards = [opened(lane, 1, None), opened(lane, 1, None, visible=False), opened(lane, 1, 100)]
    held(lane, 1)
    assert tokens(lane, 1) == (1900, 5500, 5400)
    assert lane.ledger.mean_prompt_tokens == 220 - 120 / 64, "that of the one that told"
    for guard in guards:
        guard.release()


@pytest.mark.parametrize(
    ("said", "taken"), [(float("inf"), 2**18), (1e300, 2**18), (float("nan"), 220), (-5.0, 220), (0.5, 0)]
)
def test_an_absurd_length_at_a_seat_breaks_nothing(lane: Lane, said: float, taken: int) -> None:
    seat = lane.seat(instance_id(1), None, None)
    seat.prompt_tokens = said
    with opened(lane, 1, None):
        assert tokens(lane, 1) == (taken, taken, taken)
    assert cells(lane) == [0, 0, 0]


def test_a_seat_is_marked_where_a_request_did_not_tell(lane: Lane) -> None:
    seat = lane.seat(instance_id(0), None, None)
    opened(lane, 0, 100, visible=False).release()
    opened(lane, 0, 0).release()
    assert not seat.guessed
    for count in (lambda: opened(lane, 0, None).release(), lambda: held(lane, 0)):
        count()
        assert seat.guessed is True
        seat.guessed = False


def test_guessed_tokens_follow_a_replaced_table_and_requests_outside_of_one(
    table_name: str, lane: Lane
) -> None:
    guards = [opened(lane, 0, None), opened(lane, 0, 220), opened(lane, 2, None, visible=False)]
    for size, lanes in ((128, 8), (192, 1)):
        writer = TableWriter.open(table_name, slots=size, lanes=lanes)
        for slot, old in enumerate([2, 1, 0]):
            writer.assign(slot, Identity(instance_id(old), f"http://127.0.0.1:{9000 + old}", 1, PRICES))
        publish(writer)
        lane.housekeep()
        naturals = writer.naturals()
        assert naturals.guessed[:3].tolist() == [220, 0, 220]
        assert naturals.kv_tokens[:3].tolist() == [220, 0, 440]
        assert naturals.prompt_tokens[:3].tolist() == [0, 0, 440], "one that began without a prefill has none"
        writer.close()
    for guard in guards:
        guard.release()
    assert cells(lane) == [0, 0, 0]
    assert [tokens(lane, slot) for slot in range(3)] == [(0, 0, 0)] * 3


def test_rows_outside_of_the_table_tell_guessed_tokens_apart_too(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    writer = make_table(table_name, 2, lanes=1)
    first = Lane(table_name, clock=clock, core=core)
    first.attach()
    second = Lane(table_name, clock=clock, core=core)
    second.attach()
    assert attached(second).claim.private
    guards = [opened(second, 1, None), opened(second, 1, 50)]
    assert tokens(second, 1) == (270, 270, 220)
    first.close()
    clock.advance(2)
    second.housekeep()
    assert not attached(second).claim.private
    assert tokens(second, 1) == (270, 270, 220)
    assert writer.naturals().guessed[:2].tolist() == [0, 220]
    for guard in guards:
        guard.release()
    second.close()
    writer.close()


def test_the_audit_puts_guessed_tokens_right(lane: Lane, clock: Clock) -> None:
    guards = [opened(lane, 0, None), opened(lane, 0, 50)]
    claim = attached(lane).claim
    claim.naturals[Natural.GUESSED][0] = 7
    claim.naturals[Natural.GUESSED][2] = 9
    clock.advance(1.1)
    lane.housekeep()
    assert tokens(lane, 0) == (270, 270, 220)
    assert tokens(lane, 2) == (0, 0, 0)
    assert claim.block[8] == 1
    for guard in guards:
        guard.release()
    assert claim.block[8] == 1


def test_once_a_second_seats_learn_what_is_expected_of_requests_that_do_not_tell(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    writer = make_table(table_name, 3)
    for slot, role in enumerate(("decode", "decode", "prefill")):
        url = f"http://127.0.0.1:{9000 + slot}"
        writer.assign(slot, Identity(instance_id(slot), url, 1, PRICES, {"role": role}))
    publish(writer)
    lane = Lane(table_name, clock=clock, core=core)
    lane.attach()
    seats = [lane.seat(instance_id(slot), None, None) for slot in range(3)]
    assert [seat.hold_ns for seat in seats] == [10_000_000_000] * 3
    lane.housekeep()
    for slot, (inflight, rate) in enumerate(((30.0, 2.0), (2.0, 2.0), (6.0, 1.0))):
        writer.write_detail(
            slot, Detail(1, "up", inflight=inflight, qps_1m=rate, prompt_tokens=1000.0 + slot)
        )
    clock.advance(1.1)
    lane.housekeep()
    assert [seat.prompt_tokens for seat in seats] == [0.0] * 3, "nobody asked"
    opened(lane, 1, None).release()
    lane.housekeep()
    assert seats[1].guessed, "once a second"
    clock.advance(1.1)
    lane.housekeep()
    assert [seat.hold_ns for seat in seats] == [8_000_000_000, 8_000_000_000, 10_000_000_000]
    assert [seat.prompt_tokens for seat in seats] == [1000.0, 1001.0, 0.0]
    assert not seats[1].guessed
    late = lane.seat("another name", "127.0.0.1", 9002)
    assert (late.hold_ns, late.prompt_tokens) == (6_000_000_000, 1002.0), "none of its kind was asked for"
    lane.close()
    writer.close()


def test_an_add_that_comes_in_the_middle_of_another_is_not_lost(
    table_name: str, lane: Lane, clock: Clock
) -> None:
    """A signal handler or a finalizer that interrupts a change of its own thread only appends, where the ledger
    is in Python; in C there is no middle."""
    lane = Lane(table_name, clock=clock, core=CORES["plain"])
    lane.attach()
    ledger = lane.ledger
    assert isinstance(ledger, PlainLedger)
    guards: list[Guard[None]] = []

    def in_the_middle() -> None:
        guards.append(opened(lane, 0))
        del guards[1:]
        dropped = opened(lane, 1)
        del dropped
        assert cells(lane) == [0, 0, 0]

    ledger._do(in_the_middle)
    assert natural(lane, Natural.OUTSTANDING, 0) == 1
    assert natural(lane, Natural.OUTSTANDING, 1) == 0
    guards[0].release()
    assert cells(lane) == [0, 0, 0]
    lane.close()


def test_a_pick_is_counted_when_it_returns_also_while_housekeeping_and_other_threads_run(lane: Lane) -> None:
    """Else the next pick would choose without it. 4 threads; each looks at its own add at once."""
    stop = threading.Event()
    missed: list[int] = []

    def keep_house() -> None:
        while not stop.is_set():
            lane.housekeep()

    def work(slot: int) -> None:
        for _ in range(2000):
            before = natural(lane, Natural.DISPATCHED, slot)
            charge = opened(lane, slot)
            if natural(lane, Natural.DISPATCHED, slot) <= before:
                missed.append(slot)
            charge.release()

    workers = [threading.Thread(target=work, args=(slot,)) for slot in range(3)]
    keeper = threading.Thread(target=keep_house)
    for thread in (keeper, *workers):
        thread.start()
    for thread in workers:
        thread.join()
    stop.set()
    keeper.join()
    assert missed == []
    assert cells(lane) == [0, 0, 0]


def test_a_newer_slot_map_moves_new_requests_and_leaves_open_ones_where_they_count(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    writer = make_table(table_name, 1)
    lane = Lane(table_name, clock=clock, core=core)
    lane.attach()
    old = opened(lane, 0)
    writer.release_slot(0)
    writer.assign(2, Identity(instance_id(0), "http://127.0.0.1:9000", 2, PRICES))
    publish(writer, marks=[Mark.UNUSED, Mark.UNUSED, Mark.NONE])
    lane.current()
    new = opened(lane, 0)
    assert writer.naturals().outstanding[:3].tolist() == [1, 0, 1]
    old.release()
    assert writer.naturals().outstanding[:3].tolist() == [0, 0, 1]
    new.release()
    assert writer.naturals().outstanding[:3].tolist() == [0, 0, 0]
    lane.close()
    writer.close()


def test_a_signal_handler_that_dispatches_loses_nothing(lane: Lane) -> None:
    got: list[Guard[None]] = []
    before = signal.signal(signal.SIGALRM, lambda *_: got.append(opened(lane, 1)))
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        mine = 0
        while len(got) < 50:
            opened(lane, 1).release()
            mine += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    lane.housekeep()
    assert natural(lane, Natural.OUTSTANDING, 1) == len(got)
    assert natural(lane, Natural.DISPATCHED, 1) == len(got) + mine
    for charge in got:
        charge.release()
    assert cells(lane) == [0, 0, 0]


def test_threads_of_one_process_lose_no_count(lane: Lane) -> None:
    rounds = 2000
    kept: list[Guard[None]] = []

    def work() -> None:
        for _ in range(rounds):
            opened(lane, 0).release()
            kept.append(opened(lane, 1))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lane.housekeep()
    assert natural(lane, Natural.OUTSTANDING, 0) == 0
    assert natural(lane, Natural.OUTSTANDING, 1) == 4 * rounds
    assert natural(lane, Natural.DISPATCHED, 0) == 4 * rounds


def test_guards_in_reference_cycles_end_with_the_garbage(lane: Lane) -> None:
    class Host:
        def __init__(self) -> None:
            self.guard = opened(lane, 0)
            self.cycle = self

    for _ in range(20):
        Host()
    gc.collect()
    lane.housekeep()
    assert cells(lane) == [0, 0, 0]


def test_an_instance_that_holds_its_own_guards_leaks_none(lane: Lane) -> None:
    class Instance:
        guards: list[Guard[Any]]

    for _ in range(20):
        instance = Instance()
        seat = lane.seat(instance_id(0), None, None)
        instance.guards = [lane.ledger.dispatch(instance, seat, 1, True) for _ in range(3)]
    del instance
    gc.collect()
    lane.housekeep()
    assert cells(lane) == [0, 0, 0]


def test_a_forked_child_does_not_touch_the_parent_s_lane_and_claims_its_own(
    table_name: str, lane: Lane
) -> None:
    charge = opened(lane, 0)
    before = cells(lane)[0]
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            lane.after_fork()
            charge.release()
            lane.attach()
            mine = opened(lane, 0)
            report = f"{attached(lane).claim.lane} {natural(lane, Natural.OUTSTANDING, 0)}"
            mine.release()
            os.write(write_end, report.encode())
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status == 0
    assert os.read(read_end, 100) == b"1 1"
    assert cells(lane)[0] == before
    assert attached(lane).claim.is_mine()
    assert attached(lane).claim.holds_lock()
    writer = TableWriter.open(table_name, slots=64, lanes=8)
    assert [found.lane for found in writer.reclaim()] == [1], "only the child's lane is dead"
    charge.release()
    assert cells(lane) == [0, 0, 0]
    writer.close()
    os.close(read_end)
    os.close(write_end)


def test_a_closed_descriptor_is_noticed_and_every_open_request_moves(table_name: str, lane: Lane) -> None:
    """A daemoniser that closes all descriptors takes the lock away."""
    charges = [opened(lane, slot) for slot in (0, 0, 1)]
    before = cells(lane)
    os.close(attached(lane).claim._lock_fd)
    writer = TableWriter.open(table_name, slots=64, lanes=8)
    lost = writer.reclaim()
    assert [found.outstanding for found in lost] == [3]
    charges.pop().release()  # lands nowhere: that lane is not ours any more
    lane.housekeep()
    assert attached(lane).claim.holds_lock()
    assert cells(lane) == [before[0], 0, 0]
    assert writer.naturals().outstanding[:3].tolist() == [2, 0, 0]
    for charge in charges:
        charge.release()
    assert cells(lane) == [0, 0, 0]
    writer.close()


def test_open_requests_follow_a_replaced_table_by_instance_id(table_name: str, lane: Lane) -> None:
    charges = [opened(lane, slot) for slot in (0, 2, 2)]
    charges[1].first_token()
    writer = TableWriter.open(table_name, slots=128, lanes=8)
    for slot, old in enumerate([2, 1, 0]):
        writer.assign(slot, Identity(instance_id(old), f"http://127.0.0.1:{9000 + old}", 1, PRICES))
    publish(writer)
    old_claim = attached(lane).claim
    lane.housekeep()
    assert attached(lane).claim is not old_claim
    assert writer.naturals().outstanding[:3].tolist() == [2, 0, 1]
    assert writer.naturals().prompt_tokens[:3].tolist() == [100, 0, 100]
    assert old_claim.cells[:3].tolist() == [0, 0, 0]
    for charge in charges:
        charge.release()
    assert cells(lane) == [0, 0, 0]
    writer.close()


def test_requests_opened_before_there_is_a_table_are_counted_once_it_is_there(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    lane = Lane(table_name, clock=clock, core=core)
    lane.attach()
    assert lane.current() is None
    assert "there is no table" in str(lane.problem)
    seat = lane.seat(instance_id(1), None, None)
    charge = lane.ledger.dispatch(None, seat, 50, True)
    assert seat.units == 1024 + 154 + 3, "at nominal prices"
    writer = make_table(table_name, 2)
    clock.advance(1.1)
    lane.housekeep()
    assert lane.problem is None
    assert writer.naturals().outstanding[:2].tolist() == [0, 1]
    assert seat.units == 0
    charge.release()
    naturals = writer.naturals()
    assert naturals.outstanding[:2].tolist() == [0, 0]
    assert (naturals.dispatched[1], naturals.ended[1]) == (0, 1)
    lane.close()
    writer.close()


def test_an_instance_that_joins_later_gets_the_requests_it_already_has(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    writer = make_table(table_name, 1)
    lane = Lane(table_name, clock=clock, core=core)
    lane.attach()
    charge = lane.ledger.dispatch(None, lane.seat("late", None, None), 50, True)
    writer.assign(1, Identity("late", "http://late:1", 1, PRICES))
    publish(writer)
    lane.housekeep()
    assert writer.naturals().outstanding[:2].tolist() == [0, 1]
    charge.release()
    assert writer.naturals().outstanding[:2].tolist() == [0, 0]
    lane.close()
    writer.close()


def test_without_a_free_lane_a_process_counts_locally_asks_for_lanes_and_retries(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    writer = make_table(table_name, 2, lanes=1)
    first, second = Lane(table_name, clock=clock, core=core), Lane(table_name, clock=clock, core=core)
    first.attach()
    second.attach()
    assert attached(second).claim.private
    assert writer.lanes_wanted == 2
    third = Lane(table_name, clock=clock, core=core)
    third.attach()
    third.housekeep()
    assert writer.lanes_wanted == 3, "one more for each process without a lane, asked once"
    third.close()
    charge = opened(second, 1)
    assert cells(second, 2)[1] > 0
    assert writer.naturals().outstanding[:2].tolist() == [0, 0]
    first.close()
    clock.advance(1.1)
    second.housekeep()
    assert not attached(second).claim.private
    assert writer.naturals().outstanding[:2].tolist() == [0, 1]
    charge.release()
    assert cells(second, 2) == [0, 0]
    second.close()
    writer.close()


def test_a_lane_given_back_is_clean_and_free(table_name: str, lane: Lane) -> None:
    guard = opened(lane, 0)
    lane.close()
    guard.release()
    writer = TableWriter.open(table_name, slots=64, lanes=8)
    assert not Segment.open(Location.parse(table_name), writable=False).lane_block(0)[0]
    assert writer.naturals().outstanding[:3].tolist() == [0, 0, 0]
    writer.close()


def test_the_mode_follows_the_heartbeat(table_name: str, clock: Clock, core: type[PickCore]) -> None:
    writer = make_table(table_name, 1)
    lane = Lane(table_name, clock=clock, core=core)
    lane.attach()
    now = attached(lane)
    publish(writer, now_ns=clock.now)
    assert lane.mode(now).degraded == ""
    clock.advance(0.99)
    assert lane.mode(now).degraded == ""
    clock.advance(0.02)
    assert lane.mode(now) == ("outstanding", 0)
    clock.advance(10)
    assert lane.mode(now) == ("outstanding", 1)
    clock.advance(-100)
    assert lane.mode(now) == ("outstanding", 31), "a heartbeat far in the future is a clock mismatch"
    writer.set_state(State.INIT)
    assert lane.mode(now).degraded == "round_robin"
    lane.close()
    writer.close()


def test_a_killed_worker_s_lane_is_emptied_and_others_are_untouched(table_name: str, lane: Lane) -> None:
    mine = opened(lane, 0)
    child = os.fork()
    if child == 0:
        lane.after_fork()
        lane.attach()
        kept = [opened(lane, 1) for _ in range(50)]
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(len(kept))
    writer = TableWriter.open(table_name, slots=64, lanes=8)
    wait_until(lambda: writer.naturals().outstanding[1] == 50, what="the child's 50 requests")
    assert writer.reclaim() == []
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    wait_until(lambda: writer.reclaim(), what="the dead lane", timeout=1.0)
    assert writer.naturals().outstanding[:3].tolist() == [1, 0, 0]
    assert attached(lane).claim.is_mine()
    mine.release()
    writer.close()


def test_a_claimer_killed_halfway_leaves_nothing_behind(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    """Its token stands before it zeroes what a former owner left; so the monitor finds a dead owner."""
    writer = make_table(table_name, 2)
    child = os.fork()
    if child == 0:
        lane = Lane(table_name, clock=clock, core=core)
        lane.attach()
        kept = opened(lane, 1)
        claim_module._zero = lambda claim: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
        attached(lane).claim.abandon()
        other = Lane(table_name, clock=clock, core=core)
        other.attach()  # claims the same lane again, and dies in the middle
        os._exit(bool(kept))
    os.waitpid(child, 0)
    assert writer.naturals().outstanding[1] == 1
    assert [found.outstanding for found in writer.reclaim()] == [1]
    assert writer.naturals().outstanding[1] == 0
    writer.close()


def test_a_busy_registry_is_tried_again_and_costs_no_lane(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    make_table(table_name, 1).close()
    place = Location.parse(table_name)
    fd = place.open(writable=True)
    assert try_lock(fd, REGISTRY_LOCK)
    lane = Lane(table_name, clock=clock, core=core)
    lane.attach()
    assert attached(lane).claim.private
    os.close(fd)
    clock.advance(1.1)
    lane.housekeep()
    assert attached(lane).claim.lane == 0
    lane.close()


def test_an_exception_out_of_a_signal_handler_leaks_nothing(lane: Lane, clock: Clock) -> None:
    """Wherever it strikes: what was lost or half done is put right by the next audit."""

    class TimeoutByAlarm(Exception):
        pass

    def strike(*_: object) -> None:
        raise TimeoutByAlarm

    gc.collect()
    gc.disable()  # what an alarm interrupts here must be the lane, not the finalizers of other tests
    before = signal.signal(signal.SIGALRM, strike)
    struck = 0
    try:
        while struck < 100:
            guards: list[Guard[None]] = []
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0005)
                # Bounded: an exception that strikes inside of a finalizer is swallowed by the interpreter.
                for _ in range(2000):
                    guards.append(opened(lane, 0))
                    guards[-1].release()
            except TimeoutByAlarm:
                struck += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                for guard in guards:
                    guard.release()
    finally:
        signal.signal(signal.SIGALRM, before)
        gc.enable()
    clock.advance(1.1)
    lane.housekeep()
    assert lane.outstanding() == 0
    assert cells(lane) == [0, 0, 0]
    for kind in list(Natural)[:NATURAL_LEVELS]:
        assert natural(lane, kind, 0) == 0


def test_the_audit_puts_rows_right_that_do_not_say_what_is_open(lane: Lane, clock: Clock) -> None:
    first, second = opened(lane, 0, 1000), opened(lane, 1, 500)
    second.first_token()
    right = cells(lane)
    rows = attached(lane).claim
    rows.cells[0] += 7000
    rows.cells[2] = 5
    rows.naturals[Natural.OUTSTANDING][1] = 9
    clock.advance(1.1)
    lane.housekeep()
    assert cells(lane) == right
    assert natural(lane, Natural.OUTSTANDING, 1) == 1
    assert attached(lane).claim.block[8] == 1, "counted as an error"
    clock.advance(1.1)
    lane.housekeep()
    assert attached(lane).claim.block[8] == 1, "once"
    first.release()
    second.release()
    assert cells(lane) == [0, 0, 0]


def test_a_child_forked_while_another_thread_claims_does_not_keep_the_lock(
    table_name: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, core: type[PickCore]
) -> None:
    writer = make_table(table_name, 2)
    claiming, go_on = threading.Event(), threading.Event()
    zero = claim_module._zero

    def slowly(claim: claim_module.Claim) -> None:
        claiming.set()
        go_on.wait(10)
        zero(claim)

    monkeypatch.setattr(claim_module, "_zero", slowly)
    lane = Lane(table_name, clock=clock, core=core)
    thread = threading.Thread(target=lane.attach)
    thread.start()
    claiming.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads is the point
        child = os.fork()
    if child == 0:
        lane.after_fork()
        signal.pause()
        os._exit(0)
    try:
        go_on.set()
        thread.join()
        kept = opened(lane, 1)
        assert writer.naturals().outstanding[1] == 1
        # As when the parent is killed: its own descriptor goes, and the child's copy must not keep the lock.
        assert str(attached(lane).claim._lock_fd) in _lane_locks_of(os.getpid())
        wait_until(lambda: not _lane_locks_of(child), what="the child to close its copies")
        os.close(attached(lane).claim._lock_fd)
        assert [found.outstanding for found in writer.reclaim()] == [1]
        kept.release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        writer.close()


def _lane_locks_of(pid: int) -> list[str]:
    """Descriptors of ``pid`` whose description holds a lane's lock, by the kernel's own word."""
    holders = []
    for info in Path(f"/proc/{pid}/fdinfo").iterdir():
        with contextlib.suppress(FileNotFoundError, PermissionError):
            if any(
                "lock:" in line and line.split()[-1] >= str(LANE_LOCKS)
                for line in info.read_text().splitlines()
            ):
                holders.append(info.name)
    return holders


def test_requests_opened_before_the_table_under_another_id_are_found_by_their_address(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    lane = Lane(table_name, clock=clock, core=core)
    charge = lane.ledger.dispatch(None, lane.seat("another id", "127.0.0.1", 9001), 50, True)
    writer = make_table(table_name, 2)
    clock.advance(1.1)
    lane.housekeep()
    assert writer.naturals().outstanding[:2].tolist() == [0, 1]
    charge.release()
    assert writer.naturals().outstanding[:2].tolist() == [0, 0]
    lane.close()
    writer.close()


def test_totals_outlive_the_worker_that_counted_them(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    """Whoever has the lane next, and whether or not the monitor has looked in between."""
    writer = make_table(table_name, 1, lanes=1)
    for _ in range(3):
        lane = Lane(table_name, clock=clock, core=core)
        lane.attach()
        for _ in range(10):
            opened(lane, 0).release()
        lane.close()
    naturals = writer.naturals()
    assert (naturals.dispatched[0], naturals.ended[0], naturals.outstanding[0]) == (30, 30, 0)
    writer.close()


def test_what_a_process_brings_along_is_outstanding_but_was_not_dispatched_there(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    """When it gets a lane, or another table: to the monitor it is a jump, not traffic."""
    first = make_table(table_name, 3, lanes=1)
    other, lane = (Lane(table_name, clock=clock, core=core) for _ in range(2))
    other.attach()
    lane.attach()
    assert attached(lane).claim.private
    guards = [opened(lane, 0) for _ in range(5)]
    other.close()
    clock.advance(1.1)
    lane.housekeep()
    assert not attached(lane).claim.private
    guards.append(opened(lane, 0))
    naturals = first.naturals()
    assert (naturals.dispatched[0], naturals.ended[0], naturals.outstanding[0]) == (1, 0, 6)
    first.close()
    second = make_table(table_name, 3, slots=128)
    lane.housekeep()
    for guard in guards[:2]:
        guard.release()
    naturals = second.naturals()
    assert (naturals.dispatched[0], naturals.ended[0], naturals.outstanding[0]) == (0, 2, 4)
    lane.close()
    second.close()


def test_what_a_child_drops_before_it_can_forget_takes_nothing_back(lane: Lane) -> None:
    """Python clears what other threads held, in the child, before any hook runs."""
    held = threading.local()
    ready, end = threading.Barrier(4), threading.Event()

    def hold() -> None:
        held.guard = opened(lane, 0)
        ready.wait(10)
        end.wait(10)

    threads = [threading.Thread(target=hold) for _ in range(3)]
    for thread in threads:
        thread.start()
    ready.wait(10)
    before = cells(lane)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a fork with threads is the point
            child = os.fork()
        if child == 0:
            os._exit(0)
        os.waitpid(child, 0)
        assert cells(lane) == before
        assert natural(lane, Natural.OUTSTANDING, 0) == 3
    finally:
        end.set()
        for thread in threads:
            thread.join()


def test_a_guard_released_in_a_child_without_the_hook_takes_nothing_back(lane: Lane) -> None:
    guard = opened(lane, 0)
    child = os.fork()
    if child == 0:
        guard.release()
        lane.ledger.dispatch(None, lane.seat(instance_id(0), None, None), 1, True)
        os._exit(0)
    os.waitpid(child, 0)
    assert natural(lane, Natural.OUTSTANDING, 0) == 1
    guard.release()
    assert natural(lane, Natural.OUTSTANDING, 0) == 0
    assert attached(lane).claim.block[8] == 0, "no count error"


def test_requests_sent_to_an_instance_that_moved_are_not_counted_at_its_new_address(
    table_name: str, clock: Clock, core: type[PickCore]
) -> None:
    """Its id is there again, at another URL: what was sent before is at the old one, in a slot of its own or in
    none; also when the table is replaced."""
    writer = make_table(table_name, 1)
    lane = Lane(table_name, clock=clock, core=core)
    lane.attach()
    seat = lane.seat(instance_id(0), "127.0.0.1", 9000)
    in_its_slot = lane.ledger.dispatch(None, seat, 100, True)
    writer.release_slot(0)
    publish(writer, marks=[Mark.UNUSED])
    lane.current()
    gone_already = lane.ledger.dispatch(None, seat, 100, True)
    writer.assign(1, Identity(instance_id(0), "http://127.0.0.1:9999", 1, PRICES))
    publish(writer, marks=[Mark.UNUSED, Mark.NONE])
    lane.housekeep()
    assert writer.naturals().outstanding[:2].tolist() == [1, 0]
    new = opened(lane, 0)
    assert writer.naturals().outstanding[:2].tolist() == [1, 1]
    writer.close()
    writer = TableWriter.open(table_name, slots=128, lanes=8)
    writer.assign(0, Identity(instance_id(0), "http://127.0.0.1:9999", 1, PRICES))
    publish(writer)
    lane.housekeep()
    assert writer.naturals().outstanding[0] == 1
    for guard in (in_its_slot, gone_already, new):
        guard.release()
    assert (writer.naturals().outstanding[0], seat.units, lane.outstanding()) == (0, 0, 0)
    lane.close()
    writer.close()


def test_a_lane_claimed_anew_under_the_number_of_its_closed_lock_keeps_it(
    table_name: str, clock: Clock, lane: Lane
) -> None:
    guards = [opened(lane, 0) for _ in range(5)]
    number = attached(lane).claim._lock_fd
    os.close(number)
    lane.housekeep()
    assert attached(lane).claim._lock_fd == number, "the lowest free one"
    writer = TableWriter.open(table_name, slots=64, lanes=8)
    for _ in range(3):
        clock.advance(1.1)
        lane.housekeep()
        writer.reclaim()
        assert writer.naturals().outstanding[0] == 5
    for guard in guards:
        guard.release()
    writer.close()


def test_a_fork_while_the_lane_is_given_back_leaves_no_lock_in_the_child(table_name: str) -> None:
    """The host's hooks run when the strategy has already left the list of those in use."""
    writer = make_table(table_name, 1, lanes=1)
    lane = Lane(table_name)
    lane.attach()
    child = os.fork()
    if child == 0:
        signal.pause()
        os._exit(0)
    try:
        wait_until(lambda: not _lane_locks_of(child), what="the child to close its copies")
        lane.close()
        again = Lane(table_name)
        again.attach()
        assert attached(again).claim.lane == 0
        again.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        writer.close()
