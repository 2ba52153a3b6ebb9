"""All pick implementations follow one rule to the bit. The oracle here is written apart from any of them."""

from __future__ import annotations

import os
import random
import threading
from array import array
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import score_table
from score_table.layout import (
    MARK_FLOOR,
    MARKED_SCORE_LIMIT,
    SCORE_LIMIT,
    TIE_WINDOW,
    UNITS,
    Geometry,
    Mark,
)
from score_table.pick import CORES, NATIVE_MISSING, NO_SLOT, core_class
from score_table.pick.rules import FADE_NS, fade_of, marked
from score_table.segment import Segment
from tests.unit.score_table.pick_rig import LANES, SLOTS, fill, new_segment

LANE_LIMIT = Geometry(SLOTS, LANES).lane_cell_limit
#: Tables that hypothesis tries. The long run: ``LOADBOARD_PICK_EXAMPLES=10000 pytest tests/unit/score_table/test_pick.py``.
EXAMPLES = int(os.environ.get("LOADBOARD_PICK_EXAMPLES", "1000"))


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    return new_segment(tmp_path_factory.mktemp("pick"))


class Table(NamedTuple):
    """What a table holds, and a question to it."""

    base: list[int]
    rest: list[int]
    lanes: list[list[int]]
    candidates: list[int] | None
    cursor: int
    fade: int
    extra: list[int] | None


def oracle(table: Table) -> int:
    """The rule in its own words: bands of marks, least live value, tie window, cyclic cursor."""
    base, rest, lanes, candidates, cursor, fade, extra = table

    def head(slot: int) -> int:
        if fade < 0:
            return base[slot]
        return rest[slot] if rest[slot] >= MARK_FLOOR else rest[slot] >> fade

    def live(slot: int) -> int:
        return head(slot) + sum(lane[slot] for lane in lanes) + (extra[slot] if extra else 0)

    def band(slot: int) -> int:
        raw = base[slot] if fade < 0 else rest[slot]
        return next((m for m in (1, 2, 3, 4) if abs(raw - Mark(m).cell) <= MARKED_SCORE_LIMIT + 1), 0)

    slots = sorted(set(range(len(base)) if candidates is None else candidates))
    for mark in (0, 1, 2, 3):
        group = [slot for slot in slots if band(slot) == mark]
        if group:
            least = min(map(live, group))
            tied = [slot for slot in group if live(slot) <= least + TIE_WINDOW]
            chosen = next((slot for slot in tied if slot >= cursor), tied[0])
            return ~chosen if mark else chosen
    return NO_SLOT


cell = st.one_of(
    st.integers(-300, 300),
    st.integers(-SCORE_LIMIT, SCORE_LIMIT),
    *(st.integers(mark.cell - 200, mark.cell + 200) for mark in Mark if mark),
    *(st.integers(mark.cell - MARKED_SCORE_LIMIT, mark.cell + MARKED_SCORE_LIMIT) for mark in Mark if mark),
)
lane_cell = st.one_of(st.integers(0, 300), st.integers(0, LANE_LIMIT))


@st.composite
def tables(draw: st.DrawFn) -> Table:
    n = draw(st.integers(0, 8))
    fade = draw(st.sampled_from([-1, -1, 0, 1, 5, 31]))
    head = draw(st.lists(cell, min_size=n, max_size=n))
    # Whoever reads the wrong head finds nothing but the least there is.
    base, rest = (head, [-SCORE_LIMIT] * n) if fade < 0 else ([-SCORE_LIMIT] * n, head)
    lanes = draw(st.lists(st.lists(lane_cell, min_size=n, max_size=n), max_size=LANES))
    candidates = None
    if n and draw(st.booleans()):
        candidates = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n))
    extra = draw(
        st.none() | st.lists(lane_cell, min_size=n, max_size=n).map(lambda cells: cells + [0] * (SLOTS - n))
    )
    return Table(base, rest, lanes, candidates, draw(st.integers(0, n + 1)), fade, extra)


@settings(max_examples=EXAMPLES, deadline=None)
@given(table=tables())
def test_every_core_follows_the_rule(segment: Segment, table: Table) -> None:
    fill(segment, table.base, table.rest, table.lanes)
    row = None if table.extra is None else memoryview(array("i", table.extra))
    answers = {}
    for name, implementation in CORES.items():
        core = implementation(segment)
        prepared = None if table.candidates is None else core.prepare(table.candidates)
        answers[name] = core.choose(prepared, table.cursor, table.fade, row)
    assert answers == dict.fromkeys(CORES, oracle(table))


def test_cores_agree_on_long_random_pick_sequences(segment: Segment) -> None:
    """Fixed seed; 10,000 picks that count themselves, over ever new tables."""
    rng = random.Random(20)
    cores = {name: core(segment) for name, core in CORES.items()}
    for _ in range(100):
        n, lanes = rng.randint(1, SLOTS), rng.randint(1, LANES)
        base = [rng.choice([rng.randint(-5000, 5000), Mark(rng.randint(1, 4)).cell]) for _ in range(n)]
        fill(segment, base, base, [[rng.randint(0, 4000) for _ in range(n)] for _ in range(lanes)])
        subset = rng.sample(range(n), rng.randint(1, n))
        cursor = 0
        for step in range(100):
            candidates = None if step % 2 else subset
            answers = {
                name: core.choose(None if candidates is None else core.prepare(candidates), cursor, -1, None)
                for name, core in cores.items()
            }
            assert len(set(answers.values())) == 1, answers
            answer = next(iter(answers.values()))
            if answer != NO_SLOT:
                slot = answer if answer >= 0 else ~answer
                segment.row(2)[slot] += rng.choice([1024, 1500, 0])
                cursor = slot + 1


@pytest.mark.parametrize("core_name", sorted(CORES))
def test_ties_rotate_and_an_eighth_of_a_request_is_a_tie(segment: Segment, core_name: str) -> None:
    fill(segment, [0, TIE_WINDOW, TIE_WINDOW + 1], [0] * 3, [[0] * 3])
    core = CORES[core_name](segment)
    assert [core.choose(None, cursor, -1, None) for cursor in (0, 1, 2, 3)] == [0, 1, 0, 0]


@pytest.mark.parametrize("core_name", sorted(CORES))
@pytest.mark.parametrize("cursor", [0, 1])
def test_the_least_marked_slot_does_not_tie_with_the_most_loaded_unmarked_one(
    segment: Segment, core_name: str, cursor: int
) -> None:
    """With all lanes at their stop the two are closer than the tie window."""
    marked_cell = Mark.AVOIDED.cell - MARKED_SCORE_LIMIT
    fill(segment, [marked_cell, SCORE_LIMIT], [0, 0], [[0, LANE_LIMIT]] * LANES)
    extra = memoryview(array("i", [0, LANE_LIMIT] + [0] * (SLOTS - 2)))
    core = CORES[core_name](segment)
    assert core.live([0], -1, extra)[0] - core.live([1], -1, extra)[0] < TIE_WINDOW
    assert core.choose(None, cursor, -1, extra) == 1
    assert core.choose(core.prepare([0, 1]), cursor, -1, extra) == 1


@pytest.mark.parametrize("core_name", sorted(CORES))
def test_slots_and_lanes_that_join_are_seen_by_the_next_pick(segment: Segment, core_name: str) -> None:
    fill(segment, [5 * UNITS, 6 * UNITS, 0], [0] * 3, [[0, 0, 0], [UNITS, UNITS, 9 * UNITS]])
    core = CORES[core_name](segment)
    answers = []
    for n, lanes_hi in ((2, 1), (3, 1), (3, 2), (0, 2), (3, 0)):
        segment.store("n", n)
        segment.store("lanes_hi", lanes_hi)
        answers.append(core.choose(None, 0, -1, None))
    assert answers == [0, 2, 0, NO_SLOT, 2]


@pytest.mark.parametrize("core_name", sorted(CORES))
def test_counts_beyond_the_capacity_are_cut_to_it(segment: Segment, core_name: str) -> None:
    fill(segment, [0] * SLOTS, [0] * SLOTS, [[1] * SLOTS] * LANES)
    segment.store("n", 2**32 - 1)
    segment.store("lanes_hi", 2**32 - 1)
    core = CORES[core_name](segment)
    assert core.choose(None, SLOTS - 1, -1, None) == SLOTS - 1
    assert core.choose(None, SLOTS, -1, None) == 0
    assert core.live([SLOTS - 1], -1, None) == [LANES]


@pytest.mark.parametrize("core_name", sorted(CORES))
def test_threads_that_share_a_core_do_not_disturb_each_other(segment: Segment, core_name: str) -> None:
    """Each asks for its own candidates, while slots join and leave."""
    fill(segment, [UNITS * slot for slot in range(SLOTS)], [0] * SLOTS, [[0] * SLOTS])
    core = CORES[core_name](segment)
    wrong: list[int] = []

    def ask(first: int) -> None:
        candidates = core.prepare(range(first, SLOTS))
        for _ in range(500):
            wrong.extend(slot for slot in [core.choose(candidates, 0, -1, None)] if slot != first)
            wrong.extend(slot for slot in [core.choose(None, 0, -1, None)] if slot != 0)

    threads = [threading.Thread(target=ask, args=(first,)) for first in (0, 1, 7, 30)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        for n in (SLOTS, 5, 1):
            segment.store("n", n)
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("core_name", sorted(CORES))
def test_unused_slots_are_never_taken(segment: Segment, core_name: str) -> None:
    unused = Mark.UNUSED.cell
    fill(segment, [unused, unused], [unused, unused], [[0, 0]])
    assert CORES[core_name](segment).choose(None, 0, -1, None) == NO_SLOT


@pytest.mark.parametrize("core_name", sorted(CORES))
def test_an_empty_table_has_no_slot(segment: Segment, core_name: str) -> None:
    fill(segment, [], [], [])
    assert CORES[core_name](segment).choose(None, 0, -1, None) == NO_SLOT


def test_rest_fades_by_half_each_ten_seconds_and_a_clock_mismatch_trusts_it_least() -> None:
    assert [fade_of(seconds * FADE_NS // 10) for seconds in (0, 9, 10, 25, 10_000)] == [0, 0, 1, 2, 31]
    assert fade_of(-1) == 31


def test_marked_clamps_and_refuses_what_is_not_finite() -> None:
    marks = np.array([0, 0, 0, Mark.AVOIDED, Mark.UNREACHABLE], dtype=np.int8)
    cells = marked(np.array([1e18, -1e18, 2.5, 1e18, -3.0]), marks)
    assert cells.dtype == np.int32
    assert cells.tolist() == [
        SCORE_LIMIT,
        -SCORE_LIMIT,
        2,
        Mark.AVOIDED.cell + MARKED_SCORE_LIMIT,
        Mark.UNREACHABLE.cell - 3,
    ]
    for bad in (np.nan, np.inf, -np.inf):
        with pytest.raises(ValueError, match=r"slots \[1\]"):
            marked(np.array([0.0, bad]), np.zeros(2, dtype=np.int8))


def test_the_core_in_use_can_be_forced_and_an_unknown_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADBOARD_PICK_CORE", "plain")
    assert core_class().name == "plain"
    monkeypatch.setenv("LOADBOARD_PICK_CORE", "fortran")
    with pytest.raises(ValueError, match="'fortran'"):
        core_class()


def test_the_native_core_is_built_where_it_was_demanded() -> None:
    """A failed optional build is silent; where ``LOADBOARD_REQUIRE_NATIVE`` is set it must not be."""
    if os.environ.get("LOADBOARD_REQUIRE_NATIVE") != "1":
        pytest.skip("the native core is optional here")
    assert "native" in CORES, NATIVE_MISSING
    assert score_table.implementation == "native"
