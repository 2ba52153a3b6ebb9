"""The layout module and its page say the same; no column can overflow; hostile headers are refused."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from score_table import layout
from score_table.layout import GROUPS, Geometry, Mark, Natural

PAGE = (Path(__file__).parents[3] / "docs" / "table-layout.md").read_text()


def _rows() -> list[str]:
    return [
        f"| {field.offset} | `{field.name}` | `{field.kind}` | {field.writer} | {field.meaning} |"
        for group in GROUPS.values()
        for field in group.values()
    ]


@pytest.mark.parametrize("row", _rows())
def test_every_field_stands_in_the_page_with_its_offset(row: str) -> None:
    assert row in PAGE


def test_the_page_has_no_field_that_the_layout_lacks() -> None:
    fields = [
        line for line in PAGE.splitlines() if line.startswith("| ") and line[2].isdigit() and "`" in line
    ]
    kinds = [f"| {kind.value} | `{kind.name.lower()}`" for kind in Natural]
    assert sorted(line for line in fields if not line.startswith(tuple(kinds))) == sorted(_rows())


@pytest.mark.parametrize("kind", list(Natural))
def test_every_natural_row_stands_in_the_page(kind: Natural) -> None:
    assert f"| {kind.value} | `{kind.name.lower()}` |" in PAGE


@pytest.mark.parametrize("mark", [mark for mark in Mark if mark])
def test_every_mark_stands_in_the_page_with_its_value(mark: Mark) -> None:
    assert f"| {mark.name.lower()} | {mark.cell} |" in PAGE


@pytest.mark.parametrize(
    "name",
    [
        "UNITS",
        "TIE_WINDOW",
        "SCORE_LIMIT",
        "LANE_SUM_LIMIT",
        "MARK_FLOOR",
        "MARK_BAND",
        "DISPATCH_LIMIT",
        "PRICE_LIMIT",
        "PROMPT_TOKENS_LIMIT",
        "LANE_LOCKS",
        "REGISTRY_LOCK",
    ],
)
def test_every_constant_stands_in_the_page_with_its_value(name: str) -> None:
    assert f"| `{name}` | {getattr(layout, name)} |" in PAGE


def test_fields_are_aligned_to_their_size_and_do_not_overlap() -> None:
    for group in GROUPS.values():
        end = 0
        for field in group.values():
            assert field.offset >= end, field
            if not field.kind.endswith("s"):
                assert field.offset % field.size == 0, field
            end = field.offset + field.size


def test_the_hot_line_is_one_cache_line() -> None:
    fields = layout.HOT_LINE.values()
    assert len({field.offset // layout.CACHE_LINE for field in fields}) == 1


@pytest.mark.parametrize(("slots", "lanes"), [(16, 1), (64, 32), (256, 32), (4096, 8), (65536, 1024)])
def test_regions_follow_each_other_without_overlap_and_rows_are_whole_odd_cache_lines(
    slots: int, lanes: int
) -> None:
    geometry = Geometry(slots, lanes)
    assert geometry.matrix_stride >= 4 * slots
    assert geometry.matrix_stride % layout.CACHE_LINE == 0
    assert (geometry.matrix_stride // layout.CACHE_LINE) % 2 == 1
    ends = [
        (geometry.matrix_offset, geometry.rows * geometry.matrix_stride),
        (geometry.naturals_offset, lanes * len(Natural) * geometry.naturals_stride),
        (geometry.lane_blocks_offset, lanes * layout.LANE_BLOCK_SIZE),
        (geometry.identities_offset, slots * layout.IDENTITY_SIZE),
        (geometry.details_offset, slots * layout.DETAIL_SIZE),
    ]
    for (start, size), (following, _) in itertools.pairwise(ends):
        assert start + size == following
    assert geometry.total_size >= geometry.details_offset + slots * layout.DETAIL_SIZE
    assert geometry.natural_offset(lanes - 1, list(Natural)[-1]) + geometry.naturals_stride == (
        geometry.lane_blocks_offset
    )


@pytest.mark.parametrize(("slots", "lanes"), [(0, 1), (15, 1), (17, 1), (65552, 1), (16, 0), (16, 1025)])
def test_sizes_out_of_range_are_refused_with_the_value(slots: int, lanes: int) -> None:
    with pytest.raises(ValueError, match=r"slots is|lanes is"):
        Geometry(slots, lanes)


def test_no_column_sum_overflows_int32_with_all_lanes_at_their_stop() -> None:
    for lanes in (1, 3, 32, 1024):
        lane_sum = lanes * Geometry(16, lanes).lane_cell_limit
        assert lane_sum <= layout.LANE_SUM_LIMIT
        assert layout.SCORE_LIMIT + lane_sum < layout.MARK_FLOOR
        worst = max(mark.cell for mark in Mark if mark) + layout.MARKED_SCORE_LIMIT + lane_sum
        assert worst <= 2**31 - 1


def test_marks_keep_their_order_whatever_the_score_inside_them() -> None:
    marks = [mark for mark in Mark if mark]
    for milder, harder in itertools.pairwise(marks):
        assert milder.cell + layout.MARKED_SCORE_LIMIT < harder.cell - layout.MARKED_SCORE_LIMIT
