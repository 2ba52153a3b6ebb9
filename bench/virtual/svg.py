"""A picture as SVG text: marks on a logarithmic axis, as few elements as will do."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

INK, FAINT, GRID = "#1a1a1a", "#666666", "#dddddd"
#: Distinguishable with every common form of colour blindness (Okabe and Ito).
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8a8a00")
_FONT = "font-family='system-ui, sans-serif'"


class Svg:
    """Elements in the order in which they are drawn. Coordinates in pixels, from the upper left."""

    def __init__(self, width: float, height: float, title: str) -> None:
        self._width, self._height = width, height
        self._elements = [f"<title>{escape(title)}</title>", self._box(0, 0, width, height, "#ffffff")]
        self.text(16, 26, title, size=16)

    def line(self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0) -> None:
        """A straight one."""
        self._elements.append(
            f"<line x1='{x1:.1f}' y1='{y1:.1f}' x2='{x2:.1f}' y2='{y2:.1f}' stroke='{colour}' "
            f"stroke-width='{width:g}'/>"
        )

    def path(self, points: list[tuple[float, float]], colour: str) -> None:
        """Lines from each point to the next."""
        text = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._elements.append(f"<polyline points='{text}' fill='none' stroke='{colour}' stroke-width='1.8'/>")

    def dot(self, x: float, y: float, colour: str) -> None:
        """A point."""
        self._elements.append(f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.4' fill='{colour}'/>")

    def text(
        self, x: float, y: float, text: str, *, size: int = 12, colour: str = INK, anchor: str = "start"
    ) -> None:
        """A line of text; ``anchor`` is start, middle or end."""
        self._elements.append(
            f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' fill='{colour}' text-anchor='{anchor}' "
            f"{_FONT}>{escape(text)}</text>"
        )

    def __str__(self) -> str:
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {self._width:g} {self._height:g}' "
            f"width='{self._width:g}' height='{self._height:g}'>"
        )
        return "\n".join([head, *self._elements, "</svg>\n"])

    def _box(self, x: float, y: float, width: float, height: float, colour: str) -> str:
        return f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' fill='{colour}'/>"


class Axis:
    """A logarithmic one from ``low`` to ``high`` > ``low`` > 0, on pixels ``begin`` to ``end``."""

    def __init__(self, low: float, high: float, begin: float, end: float) -> None:
        self._low, self._span = math.log(low), math.log(high) - math.log(low)
        self._limits, self._begin, self._end = (low, high), begin, end

    def at(self, value: float) -> float:
        """The pixel of a value; of one outside, the nearer end's."""
        low, high = self._limits
        share = (math.log(min(max(value, low), high)) - self._low) / self._span
        return self._begin + share * (self._end - self._begin)

    def ticks(self) -> list[float]:
        """1, 2 and 5 of every power of ten, or 1 alone where that would be too many."""
        low, high = self._limits
        powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        steps = (1, 2, 5) if self._span < math.log(300) else (1,)
        # A hair, so that the ends themselves count whatever their rounding.
        values = (step * 10.0**power for power in powers for step in steps)
        return [value for value in values if low * 0.999 <= value <= high * 1.001]
