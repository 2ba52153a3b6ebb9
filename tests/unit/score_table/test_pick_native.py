"""What only the native pick can do wrong: read outside of the mapping, or keep what it was given."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from score_table.layout import Geometry
from score_table.location import Location
from score_table.pick import CORES
from score_table.segment import Segment
from tests.unit.score_table.pick_rig import LANES, SLOTS, fill, new_segment

pytestmark = pytest.mark.skipif("native" not in CORES, reason="the native core is not built")


@pytest.fixture(scope="module")
def segment(tmp_path_factory: pytest.TempPathFactory) -> Segment:
    return new_segment(tmp_path_factory.mktemp("pick"))


def test_candidates_outside_of_the_table_are_refused(segment: Segment) -> None:
    core = CORES["native"](segment)
    for slots in ([SLOTS], [-1], [2**40], ["x"], [None]):
        with pytest.raises((IndexError, TypeError, OverflowError)):
            core.prepare(slots)  # type: ignore[arg-type]


def test_arguments_of_a_wrong_kind_are_refused(segment: Segment) -> None:
    core = CORES["native"](segment)
    with pytest.raises(TypeError):
        core.choose((1, 2), 0, -1, None)
    with pytest.raises(ValueError, match="fade is 32"):
        core.choose(None, 0, 32, None)
    with pytest.raises(ValueError, match="extra row is shorter"):
        core.choose(None, 0, -1, memoryview(bytes(8)))
    with pytest.raises(IndexError):
        core.live([SLOTS], -1, None)


def test_candidates_of_a_larger_table_are_refused(segment: Segment, tmp_path: Path) -> None:
    place = Location.parse(str(tmp_path / "table"))
    larger = Segment.create(place, Geometry(64, 1), mode=0o600, gid=None, max_heartbeat_age_ns=1)
    foreign = CORES["native"](larger).prepare([60])
    with pytest.raises(ValueError, match="larger table"):
        CORES["native"](segment).choose(foreign, 0, -1, None)


def test_a_mapping_that_does_not_fit_its_file_is_refused(tmp_path: Path) -> None:
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


def test_picks_allocate_nothing_that_stays(segment: Segment) -> None:
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
