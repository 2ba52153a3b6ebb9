"""Pictures of the tables: every policy in every mix, and what old data does as polls become rare."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.virtual import tables
from bench.virtual.plan import Effort
from bench.virtual.ratios import Spread
from bench.virtual.svg import COLOURS, FAINT, GRID, INK, Axis, Svg
from bench.virtual.tables import Table
from bench.virtual.terms import Results

#: Too many policies in one panel hide each other.
IN_PICTURE = (
    "token_aware",
    "blind",
    "count",
    "per_process",
    "smg_1629",
    "smg_1647",
    "least_work",
    "round_robin",
)

_LEFT, _RIGHT, _TOP, _ROW, _PANEL = 150.0, 24.0, 84.0, 9.0, 16.0


def pictures(effort: Effort, results: Results) -> dict[str, str]:
    """SVG texts by file name. What is not measured is left out."""
    return {
        "routing-mixes.svg": mixes(tables.mixes(effort), results),
        "routing-polls.svg": polls(tables.polls(effort), results),
    }


def mixes(table: Table, results: Results) -> str:
    """A panel for each mix, in it a dot for each policy with the range of its seeds."""
    rows = [row for row in table.rows if row.label in IN_PICTURE]
    figures = [[cell.figure(results) for cell in row.cells] for row in rows]
    panel = _ROW * len(rows) + _PANEL
    width, height = 860.0, _TOP + panel * len(table.heads) + 30.0
    picture = Svg(width, height, table.title)
    axis = Axis(*_limits([each for row in figures for each in row]), _LEFT, width - _RIGHT)
    _legend(picture, [row.label for row in rows], 48.0, width)
    _vertical_grid(picture, axis, _TOP, height - 26.0)
    for at, head in enumerate(table.heads):
        top = _TOP + panel * at
        picture.line(16.0, top, width - _RIGHT, top, GRID)
        picture.text(_LEFT - 10.0, top + panel / 2 + 4.0, head, anchor="end")
        for row, (of_row, colour) in enumerate(zip(figures, COLOURS, strict=False)):
            figure, y = of_row[at], top + _PANEL / 2 + _ROW * (row + 0.5)
            if figure is not None:
                picture.line(axis.at(figure.low), y, axis.at(figure.high), y, colour, 1.4)
                picture.dot(axis.at(figure.value), y, colour)
    return str(picture)


def polls(table: Table, results: Results) -> str:
    """A line for each policy over the poll interval, with the range of its seeds."""
    width, height = 700.0, 460.0
    picture = Svg(width, height, table.title)
    figures = [[cell.figure(results) for cell in row.cells] for row in table.rows]
    down = Axis(*_limits([each for row in figures for each in row]), height - 50.0, _TOP)
    across = Axis(min(tables.POLLS), max(tables.POLLS), 80.0, width - 40.0)
    _legend(picture, [row.label for row in table.rows], 48.0, width)
    for value in down.ticks():
        y = down.at(value)
        picture.line(80.0, y, width - 40.0, y, INK if value == 1.0 else GRID)
        picture.text(72.0, y + 4.0, f"{value:g}", colour=FAINT, anchor="end")
    for poll in tables.POLLS:
        picture.text(across.at(poll), height - 28.0, f"{poll:g}", colour=FAINT, anchor="middle")
    picture.text((80.0 + width - 40.0) / 2, height - 8.0, "poll interval, s", colour=FAINT, anchor="middle")
    for of_row, colour in zip(figures, COLOURS, strict=False):
        points = []
        for poll, figure in zip(tables.POLLS, of_row, strict=True):
            if figure is None:
                continue
            x, y = across.at(poll), down.at(figure.value)
            picture.line(x, down.at(figure.low), x, down.at(figure.high), colour, 1.4)
            picture.dot(x, y, colour)
            points.append((x, y))
        if len(points) > 1:
            picture.path(points, colour)
    return str(picture)


def _limits(figures: Sequence[Spread | None]) -> tuple[float, float]:
    """Round values around all of them, and 1 among them."""
    values = [1.0, *(value for each in figures if each is not None for value in (each.low, each.high))]
    return _round_down(min(values) / 1.05), 1.0 / _round_down(1.0 / (max(values) * 1.05))


def _round_down(value: float) -> float:
    power = 10.0 ** math.floor(math.log10(value))
    return power * max(step for step in (1, 2, 5) if step * power <= value)


def _vertical_grid(picture: Svg, axis: Axis, top: float, bottom: float) -> None:
    for value in axis.ticks():
        x = axis.at(value)
        picture.line(x, top, x, bottom, INK if value == 1.0 else GRID)
        picture.text(x, bottom + 16.0, f"{value:g}", colour=FAINT, anchor="middle")


def _legend(picture: Svg, labels: Sequence[str], y: float, width: float) -> None:
    x = 20.0
    for label, colour in zip(labels, COLOURS, strict=False):
        if x + 24.0 + 7.0 * len(label) > width:
            x, y = 20.0, y + 18.0
        picture.dot(x, y - 4.0, colour)
        picture.text(x + 8.0, y, label)
        x += 30.0 + 7.0 * len(label)
