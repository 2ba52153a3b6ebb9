"""All pick implementations follow one rule to the bit. The oracle here is written apart from any of them."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

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
    Geometry,
    Mark,
)
from score_table.location import Location
from score_table.pick import CORES, NATIVE_MISSING, NO_SLOT, core_class
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


def test_the_native_core_is_built_where_it_was_demanded() -> None:
    """A failed optional build is silent; where ``LOADBOARD_REQUIRE_NATIVE`` is set it must not be."""
    if os.environ.get("LOADBOARD_REQUIRE_NATIVE") != "1":
        pytest.skip("the native core is optional here")
    assert "native" in CORES, NATIVE_MISSING
    assert score_table.implementation == "native"


@pytest.mark.skipif("native" not in CORES, reason="the native core is not built")
class TestNative:
    """What only the native core can do wrong: read outside of the mapping, or keep what it was given."""

    def test_candidates_outside_of_the_table_are_refused(self, segment: Segment) -> None:
        core = CORES["native"](segment)
        for slots in ([SLOTS], [-1], [2**40], ["x"], [None]):
            with pytest.raises((IndexError, TypeError, OverflowError)):
                core.prepare(slots)  # type: ignore[arg-type]

    def test_arguments_of_a_wrong_kind_are_refused(self, segment: Segment) -> None:
        core = CORES["native"](segment)
        with pytest.raises(TypeError):
            core.choose((1, 2), 0, -1, None)
        with pytest.raises(ValueError, match="fade is 32"):
            core.choose(None, 0, 32, None)
        with pytest.raises(ValueError, match="extra row is shorter"):
            core.choose(None, 0, -1, memoryview(bytes(8)))  # type: ignore[arg-type]
        with pytest.raises(IndexError):
            core.live([SLOTS], -1, None)

    def test_a_count_beyond_the_capacity_is_cut_to_it(self, segment: Segment) -> None:
        fill(segment, [0] * SLOTS, [0] * SLOTS, [[0] * SLOTS] * LANES)
        segment.store("n", 2**32 - 1)
        segment.store("lanes_hi", 2**32 - 1)
        assert CORES["native"](segment).choose(None, SLOTS - 1, -1, None) == SLOTS - 1

    def test_candidates_of_a_larger_table_are_refused(self, segment: Segment, tmp_path: Path) -> None:
        place = Location.parse(str(tmp_path / "table"))
        larger = Segment.create(place, Geometry(64, 1), mode=0o600, gid=None, max_heartbeat_age_ns=1)
        foreign = CORES["native"](larger).prepare([60])
        with pytest.raises(ValueError, match="larger table"):
            CORES["native"](segment).choose(foreign, 0, -1, None)

    def test_a_mapping_that_does_not_fit_its_file_is_refused(self, tmp_path: Path) -> None:
        from score_table import _native

        path = tmp_path / "small"
        path.write_bytes(bytes(8192))
        with path.open("rb") as file:
            for size, offset, stride, slots, lanes in (
                (1 << 20, 4096, 64, 16, 1),
                (8192, 4096, 64, 17, 1),
                (8192, 4096, 64, 16, 1000),
                (8192, 8192, 64, 16, 1),
                (8192, 4096, 0, 16, 1),
                (-1, 4096, 64, 16, 1),
                (8192, 4096, 2**62, 16, 1),
            ):
                with pytest.raises(ValueError, match="do not lie inside"):
                    _native.Core(file.fileno(), size, offset, stride, 276, 280, slots, lanes, 1, 1, 1, 4)

    def test_picks_allocate_nothing_that_stays(self, segment: Segment) -> None:
        fill(segment, [0] * SLOTS, [0] * SLOTS, [[0] * SLOTS] * LANES)
        core = CORES["native"](segment)
        prepared = core.prepare([1, 2, 3])
        for _ in range(10):
            core.choose(prepared, 300, -1, None)
        before = sys.getallocatedblocks()
        for _ in range(10_000):
            core.choose(prepared, 0, -1, None)
            core.choose(None, 0, 5, memoryview(bytes(4 * SLOTS)).cast("i"))
            core.live([1, 2], -1, None)
            core.prepare([3, 1])
        assert sys.getallocatedblocks() - before < 50
