"""The pictures are XML, have what was measured, and leave out what was not."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from bench.virtual import plot, tables
from bench.virtual.plan import QUICK, Run
from bench.virtual.svg import Axis, Svg
from tests.unit.bench_routing.results import everything, outcome

NAMES = {"routing-mixes.svg", "routing-polls.svg"}
_SVG = "{http://www.w3.org/2000/svg}"


def _p99(run: Run) -> float:
    return 300.0 if run.policy == "stale_argmin" else 1.0


def _dots(picture: str) -> int:
    return len(ElementTree.fromstring(picture).findall(f"{_SVG}circle"))


def test_pictures_show_every_figure() -> None:
    made = plot.pictures(QUICK, everything(_p99))
    assert set(made) == NAMES
    shown = len(plot.IN_PICTURE)
    assert _dots(made["routing-mixes.svg"]) == shown * 10 + shown
    assert _dots(made["routing-polls.svg"]) == 3 * len(tables.POLLS) + 3
    for policy in tables.BY_POLL:
        assert f">{policy}<" in made["routing-polls.svg"]


def test_what_is_not_measured_is_left_out() -> None:
    only = plot.pictures(QUICK, lambda run: None if run.policy == "stale_argmin" else outcome())
    assert _dots(only["routing-polls.svg"]) == 2 * len(tables.POLLS) + 3
    nothing = plot.pictures(QUICK, lambda run: None)
    assert _dots(nothing["routing-mixes.svg"]) == len(plot.IN_PICTURE)


def test_nothing_lies_outside_of_the_picture() -> None:
    for picture in plot.pictures(QUICK, everything(_p99)).values():
        root = ElementTree.fromstring(picture)
        width, height = float(root.get("width", "0")), float(root.get("height", "0"))
        for element in root.iter():
            for most, names in ((width, ("x", "x1", "x2", "cx")), (height, ("y", "y1", "y2", "cy"))):
                assert all(0.0 <= float(element.get(name, "0")) <= most for name in names)


def test_an_axis_is_logarithmic_and_ends_at_its_ends() -> None:
    axis = Axis(0.1, 10.0, 0.0, 200.0)
    assert [axis.at(value) for value in (0.01, 0.1, 1.0, 10.0, 99.0)] == pytest.approx(
        [0.0, 0.0, 100.0, 200.0, 200.0]
    )
    assert axis.ticks() == pytest.approx([0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0])


def test_text_is_escaped() -> None:
    picture = Svg(10.0, 10.0, "a < b & c")
    assert ElementTree.fromstring(str(picture)).find(f"{_SVG}title").text == "a < b & c"  # type: ignore[union-attr]
