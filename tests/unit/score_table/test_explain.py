"""What is said of a pick: the parts add up, what is estimated is named, and a copy of a table says the same."""

from __future__ import annotations

import random
import shutil
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from score_table import layout
from score_table.explain import explain
from score_table.explanation import ESTIMATES, Candidate, Explanation
from score_table.lane import Lane
from score_table.layout import TIE_WINDOW, UNITS, Natural, Reason, State
from score_table.location import Location
from score_table.mode import mode_of
from score_table.pick import CORES, NO_SLOT
from score_table.pick.rules import Mark
from score_table.reader import TableReader
from score_table.records import Detail
from score_table.segment import Segment
from score_table.writer import TableWriter
from tests.tables import PRICES, make_table, opened, publish
from tests.unit.score_table.pick_rig import LANES, SLOTS, fill, new_segment

NOW = 10**12


class Fixture:
    """A table of 4 instances in a file, and a lane."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.writer: TableWriter = make_table(str(file), 4, slots=16, lanes=2)
        self.lane = Lane(str(file), clock=lambda: NOW)
        publish(self.writer, [3, 1, 2, 4], now_ns=NOW)
        self.lane.attach()

    def explain(self, *args: Any, now_ns: int = NOW, **options: Any) -> Explanation:
        with TableReader.open(str(self.file)) as reader:
            return reader.explain(*args, now_ns=now_ns, boot_ns=NOW + 5 * 10**9, **options)


@pytest.fixture
def on(tmp_path: Path) -> Iterator[Fixture]:
    fixture = Fixture(tmp_path / "table")
    yield fixture
    fixture.lane.close()
    fixture.writer.close()


def test_the_score_is_the_monitor_s_part_plus_what_is_open_now(on: Fixture) -> None:
    guards = [opened(on.lane, "i1", 1000) for _ in range(2)]
    guards[0].first_token()
    one = on.explain().instances[1]
    assert one.base == 1.0
    price = 2 * PRICES.request + 1000 * PRICES.prompt_token + 2 * 1000 * PRICES.kv_token
    assert one.lanes * UNITS == pytest.approx(price, abs=3)
    assert one.score == one.base + one.lanes
    assert (one.outstanding, one.prompt_tokens, one.kv_tokens, one.held) == (2, 1000, 2000, 0)
    assert one.guessed == 0
    untold = opened(on.lane, "i1", None)
    one = on.explain().instances[1]
    assert one.kv_tokens == 2000 + one.guessed > 2000
    untold.release()


def test_what_changed_since_the_exact_score_is_told_while_the_monitor_lives(on: Fixture) -> None:
    on.writer.write_detail(1, Detail(1, "up", score=1.0, kv_demand=0.25, prompt_tokens=900.0))
    guard = opened(on.lane, "i1", 0)
    one = on.explain().instances[1]
    assert (one.tick_score, one.since_tick, one.kv_demand) == (1.0, 1.0, 0.25)
    assert one.mean_prompt_tokens == 900.0
    assert on.explain(now_ns=NOW + 2 * 10**9).instances[1].since_tick is None
    guard.release()


@pytest.mark.parametrize(
    ("detail", "estimated"),
    [
        (None, "no_record"),
        (Detail(generation=1, state="new", estimated=True), "never_polled"),
        (Detail(generation=1, state="stale", estimated=True, inflight=1.0), "stale"),
        (Detail(generation=1, state="unreachable", estimated=True), "unreachable"),
        (Detail(generation=1, state="up", estimated=True, inflight=5.0), "frozen"),
        (Detail(generation=1, state="up", estimated=True), "no_load"),
        (Detail(generation=1, state="up", inflight=5.0), ""),
        (Detail(generation=9, state="up", inflight=5.0), "no_record"),
    ],
)
def test_what_is_estimated_says_why(on: Fixture, detail: Detail | None, estimated: str) -> None:
    if detail is not None:
        on.writer.write_detail(0, detail)
    one = on.explain().instances[0]
    assert one.estimated == estimated
    assert not estimated or ESTIMATES[estimated]


def test_the_age_of_the_sample_and_the_monitor_s_words_are_passed_on(on: Fixture) -> None:
    on.writer.write_detail(
        2, Detail(generation=1, state="stale", reason="no sample for 5 s", sample_boot_ns=NOW)
    )
    one = on.explain().instances[2]
    assert (one.age_s, one.reason, one.state) == (5.0, "no sample for 5 s", "stale")


def test_all_within_the_tie_window_are_told_and_the_cursor_takes_one(on: Fixture) -> None:
    publish(on.writer, [2, 1 + TIE_WINDOW / UNITS, 1, 1 + (TIE_WINDOW + 1) / UNITS], now_ns=NOW)
    why = on.explain()
    assert (why.decided_by, why.tied, why.picked, why.least) == ("score", (1, 2), None, 1.0)
    assert [on.explain(cursor=cursor).picked for cursor in range(6)] == [1, 1, 2, 1, 1, 1]
    assert on.explain(["i3", "i2"], cursor=0).tied == (1,)
    assert [each.picked for each in on.explain(cursor=2).instances] == [False, False, True, False]


def test_a_silent_monitor_is_explained_with_what_is_left_of_rest(on: Fixture) -> None:
    publish(on.writer, [9, 9, 9, 9], rest=[4, 8, 4, 4], now_ns=NOW)
    why = on.explain(["i1"], now_ns=NOW + 21 * 10**9)
    assert (why.degraded, why.decided_by, why.rest_share) == ("outstanding", "outstanding", 0.25)
    assert why.instances[0].base == 2.0
    assert why.because == "the last heartbeat is 21.0 s old, more than 1 s: the monitor is silent"
    assert on.explain(now_ns=NOW - 5 * 10**9).because.startswith("the last heartbeat is 5.0 s in the future")
    on.writer.set_state(State.STOPPED)
    assert on.explain().because == "the table's state is stopped: its monitor has ended"


def test_without_scores_or_slots_in_use_only_the_turn_decides(on: Fixture) -> None:
    assert on.explain([]).decided_by == "round_robin"
    marks = [Mark.UNUSED] * 4
    publish(on.writer, marks=marks, now_ns=NOW)
    segment = Segment.open(Location.parse(str(on.file)), writable=False)
    why = explain(segment, [Candidate("i0", 0)], now_ns=NOW, boot_ns=0)
    assert (why.decided_by, why.rule, why.instances[0].mark) == ("round_robin", "objects", "unused")
    assert why.because == "no candidate holds a slot in use"
    on.writer.set_state(State.INIT)
    assert on.explain(["i0"]).because == "no monitor has published scores in this table yet"


def test_one_without_a_slot_scores_its_worker_s_own_times_the_lanes_on_the_median(on: Fixture) -> None:
    other = Lane(str(on.file), clock=lambda: NOW)
    other.attach()
    why = on.explain(["i0", "elsewhere"], open_units={"elsewhere": 3 * UNITS}, cursor=1)
    elsewhere = why.instances[1]
    assert (why.decided_by, why.picked) == ("unmatched", 0)
    assert (elsewhere.base, elsewhere.lanes, elsewhere.score) == (2.5, 6.0, 8.5), (
        "the median of 1 to 4; two lanes"
    )
    assert on.explain(["i0", "elsewhere"]).tied == (1,)
    other.close()


def test_counts_outside_of_the_table_are_part_of_the_cells(on: Fixture) -> None:
    why = on.explain(private=[0, 5 * UNITS, *[0] * 14])
    assert why.instances[1].lanes == 5.0
    assert why.tied == (2,)


def test_a_copy_of_the_table_is_explained_as_the_table_was(on: Fixture, tmp_path: Path) -> None:
    guard = opened(on.lane, "i1", 2000)
    before = on.explain(cursor=3)
    shutil.copy(on.file, tmp_path / "copy")
    guard.release()
    publish(on.writer, [0, 9, 9, 9], now_ns=NOW + 1)
    with TableReader.open(str(tmp_path / "copy")) as reader:
        assert reader.heartbeat_ns() == NOW
        again = reader.explain(cursor=3, now_ns=NOW, boot_ns=NOW + 5 * 10**9)
    assert again.instances == before.instances
    assert again.picked == before.picked


def test_a_record_that_was_being_written_is_asked_for_again(on: Fixture) -> None:
    on.writer.write_detail(0, Detail(generation=1, state="up", score=7.0))
    segment = Segment.open(Location.parse(str(on.file)), writable=True)
    word = segment.geometry.detail_offset(0) // 8
    copied = segment.copied

    def torn() -> Segment:
        segment.unsigned64[word] += 1
        try:
            return copied()
        finally:
            segment.unsigned64[word] -= 1

    segment.copied = torn  # type: ignore[method-assign]
    assert explain(segment, None, now_ns=NOW, boot_ns=0).instances[0].tick_score == 7.0


def test_a_copy_of_a_segment_does_not_move_and_cannot_be_written(on: Fixture) -> None:
    segment = Segment.open(Location.parse(str(on.file)), writable=True)
    moment = segment.copied()
    publish(on.writer, [7, 7, 7, 7], now_ns=NOW + 1)
    assert segment.row(0)[0] == 7 * UNITS
    assert moment.row(0)[0] == 3 * UNITS
    with pytest.raises(TypeError):
        moment.store("tick", 1)


@pytest.mark.parametrize("reason", list(Reason))
def test_a_dispatch_is_counted_under_its_reason_once(on: Fixture, reason: Reason) -> None:
    seat = on.lane.seat("i2", None, None)
    guard = on.lane.ledger.dispatch(None, seat, 10, True, reason)
    on.lane.ledger.hold(seat, reason)
    guard.fail()
    guard.release()
    claim = on.lane.attached.claim  # type: ignore[union-attr]
    split = {row: claim.naturals[row][2] for row in list(Natural)[Natural.BY_OUTSTANDING :]}
    assert sum(split.values()) == (2 if reason else 0)
    assert claim.naturals[reason.row][2] == 2
    told = on.explain().instances[2].decisions
    assert told == {each.name.lower(): 2 * (each is reason) for each in Reason}
    with TableReader.open(str(on.file)) as reader:
        assert reader.snapshot().instances[2].decisions == told


def test_a_reason_that_there_is_not_is_refused(on: Fixture) -> None:
    seat = on.lane.seat("i2", None, None)
    for reason in (5, -1):
        with pytest.raises(ValueError, match=r"[rR]eason"):
            on.lane.ledger.dispatch(None, seat, 10, True, reason)
        with pytest.raises(ValueError, match=r"[rR]eason"):
            on.lane.ledger.hold(seat, reason)
    assert on.writer.naturals().outstanding.sum() == 0


def test_a_request_that_moves_to_a_slot_later_is_counted_there_under_its_reason(on: Fixture) -> None:
    seat = on.lane.seat("late", None, None)
    guard = on.lane.ledger.dispatch(None, seat, 10, True, Reason.UNMATCHED)
    identity = on.writer.identity(0)
    assert identity is not None
    on.writer.assign(4, replace(identity, id="late", url="http://late", generation=1))
    publish(on.writer, [0] * 5, now_ns=NOW)
    on.lane.current()
    late = on.explain(["late"]).instances[0]
    assert (late.decisions["unmatched"], late.outstanding) == (1, 1)
    guard.release()


@pytest.mark.parametrize("seed", range(40))
def test_with_any_cursor_the_explanation_takes_what_every_core_takes(tmp_path: Path, seed: int) -> None:
    """Random scores near each other, marks, lanes, a private row, a living and a silent monitor, subsets."""
    rng = random.Random(seed)
    segment = new_segment(tmp_path)
    n = rng.randint(1, SLOTS)

    def head() -> int:
        mark = rng.choice([0] * 3 + [1, 2, 3, 4]) if seed % 2 else rng.choice([1, 2, 3, 4])
        return rng.randrange(-300, 300) + (Mark(mark).cell if mark else 0)

    base, rest = [head() for _ in range(n)], [head() for _ in range(n)]
    fill(segment, base, rest, [[rng.randrange(200) for _ in range(n)] for _ in range(rng.randint(0, LANES))])
    segment.store("state", State.READY)
    segment.store("heartbeat", NOW)
    private = [rng.randrange(200) for _ in range(SLOTS)] if rng.random() < 0.5 else None
    slots = rng.sample(range(n), rng.randint(1, n))
    now = NOW + rng.choice([0, 15, 500]) * 10**9
    mode = mode_of(segment, now)
    for cursor in (0, rng.randrange(2**16), n - 1):
        candidates = [Candidate(str(slot), slot) for slot in slots]
        why = explain(segment, candidates, now_ns=now, boot_ns=0, cursor=cursor, private=private)
        for kind in CORES.values():
            core = kind(segment)
            extra = None if private is None else array("i", private)
            answer = core.choose(core.prepare(slots), cursor % n, mode.fade, extra)
            if answer == NO_SLOT:
                assert (why.picked, why.decided_by) == (None, "round_robin")
            else:
                assert slots[why.picked or 0] == (answer if answer >= 0 else ~answer), kind
                assert (why.decided_by == "marked") == (answer < 0)


def test_a_table_of_random_bytes_is_explained_without_an_error(on: Fixture) -> None:
    rng, segment = random.Random(5), Segment.open(Location.parse(str(on.file)), writable=True)
    geometry = segment.geometry
    for _ in range(30):
        for start, size in (
            (layout.HOT_LINE["heartbeat"].offset, 64),
            (geometry.matrix_offset, 64),
            (geometry.row_offset(2), 64),
            (geometry.naturals_offset, 4096),
            (geometry.details_offset, 512),
            (geometry.identities_offset, 40),
        ):
            if rng.random() < 0.5:
                segment.data[start : start + size] = rng.randbytes(size)
        for ids in (None, ["i0", "i3"], ["i1", "elsewhere"]):
            with TableReader.open(str(on.file)) as reader:
                why = reader.explain(ids, cursor=rng.randrange(9), now_ns=NOW, boot_ns=NOW)
            assert len(why.instances) == len(ids or why.instances)
