"""All pick implementations follow one rule to the bit. The oracle here is written apart from any of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from score_table.layout import (
    MARK_FLOOR,
    MARKED_SCORE_LIMIT,
    SCORE_LIMIT,
    TIE_WINDOW,
    Geometry,
    Mark,
)
from score_table.location import Location
from score_table.pick import CORES, NO_SLOT, core_class
from score_table.pick.rules import FADE_NS, fade_of, marked
from score_table.segment import Segment

SLOTS, LANES = 32, 4


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Segment]:
    place = Location.parse(str(tmp_path_factory.mktemp("pick") / "table"))
    yield Segment.create(place, Geometry(SLOTS, LANES), mode=0o600, gid=None, max_heartbeat_age_ns=10**9)
    Path(place.path).unlink()


def fill(segment: Segment, base: list[int], rest: list[int], lanes: list[list[int]]) -> None:
    segment.store("n", len(base))
    segment.store("lanes_hi", len(lanes))
    for row, values in enumerate([base, rest, *lanes]):
        cells = segment.row(row)
        for slot, value in enumerate(values):
            cells[slot] = value


def oracle(
    base: list[int],
    rest: list[int],
    lanes: list[list[int]],
    candidates: list[int] | None,
    cursor: int,
    fade: int,
    extra: list[int] | None,
) -> int:
    """The rule in its own words: bands of marks, least live value, tie window, cyclic cursor."""

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
    st.integers(-SCORE_LIMIT, SCORE_LIMIT),
    st.integers(-300, 300),
    st.builds(
        lambda mark, score: mark.cell + score,
        st.sampled_from([mark for mark in Mark if mark]),
        st.one_of(st.integers(-200, 200), st.integers(-MARKED_SCORE_LIMIT, MARKED_SCORE_LIMIT)),
    ),
)
lane_cell = st.one_of(st.integers(0, 300), st.integers(0, Geometry(SLOTS, LANES).lane_cell_limit // 2))


@st.composite
def tables(
    draw: st.DrawFn,
) -> tuple[list[int], list[int], list[list[int]], list[int] | None, int, int, list[int] | None]:
    n = draw(st.integers(0, SLOTS))
    row = st.lists(cell, min_size=n, max_size=n)
    lanes = draw(st.lists(st.lists(lane_cell, min_size=n, max_size=n), max_size=LANES))
    candidates = None
    if n and draw(st.booleans()):
        candidates = draw(st.lists(st.integers(0, n - 1), min_size=1, max_size=n))
    extra = draw(st.none() | st.lists(st.integers(0, 2000), min_size=SLOTS, max_size=SLOTS))
    fade = draw(st.sampled_from([-1, -1, 0, 1, 5, 31]))
    return draw(row), draw(row), lanes, candidates, draw(st.integers(0, SLOTS + 1)), fade, extra


@pytest.mark.parametrize("core_name", sorted(CORES))
@settings(max_examples=500, deadline=None)
@given(table=tables())
def test_every_core_follows_the_rule(segment: Segment, core_name: str, table: object) -> None:
    base, rest, lanes, candidates, cursor, fade, extra = table  # type: ignore[misc]
    fill(segment, base, rest, lanes)
    core = CORES[core_name](segment)
    prepared = None if candidates is None else core.prepare(candidates)
    row = None if extra is None else memoryview(np.array(extra, dtype=np.int32)).cast("B").cast("i")
    assert core.choose(prepared, cursor, fade, row) == oracle(
        base, rest, lanes, candidates, cursor, fade, extra
    )


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
