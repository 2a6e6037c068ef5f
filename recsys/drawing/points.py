"""Points with intervals, each with its name beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from recsys.drawing.axes import Axis, axis_titles, grid_across, left_margin, ticks_below
from recsys.drawing.marks import GREY, Style, shape
from recsys.drawing.svg import fitted, node, picture, text_width

_Box = tuple[float, float, float, float]
"""Left, top, right, bottom."""


@dataclass(frozen=True, slots=True)
class Point:
    """A point with a vertical interval."""

    label: str
    x: float
    y: float
    low: float
    high: float
    hover: str
    style: Style = GREY
    strong: bool = False


def draw_points(
    points: Sequence[Point], width: int, x: Axis, y: Axis, title: str, *, height: int = 320
) -> Element:
    """Draw points; each name stands where it covers no other point or name, or is left out.

    The names of the first points are placed first; a point that is chosen says its name.
    """
    left, right, top, bottom = left_margin(y), width - 10.0, 24.0, height - 42.0
    across, down = x.scale(left + 10, right - 10), y.scale(bottom, top)
    drawn = ticks_below(x, across, top, bottom) + grid_across(y, down, left, right)
    drawn += axis_titles(x, y, left, right, bottom, width)
    places = [(across(point.x), down(point.y)) for point in points]
    taken: list[_Box] = [(px - 6, py - 6, px + 6, py + 6) for px, py in places]
    strokes: list[_Box] = [
        (px - 2, down(point.high), px + 2, down(point.low))
        for point, (px, _) in zip(points, places, strict=True)
    ]
    for point, (px, py) in zip(points, places, strict=True):
        parts = [
            node(
                "line",
                x1=px,
                x2=px,
                y1=down(point.low),
                y2=down(point.high),
                class_="line",
                stroke_width=2,
            ),
            shape(point.style, px, py, 5, "dot ring"),
            node("circle", cx=px, cy=py, r=10, class_="hit"),
            node("title", point.hover),
        ]
        label = fitted(point.label, width * 0.4)
        area = (left, top - 8, right + 8, bottom)
        box = _free(label, px, py, [*taken, *strokes], area) or _free(label, px, py, taken, area)
        if box is not None:
            taken.append(box)
            weight = "strong" if point.strong else ""
            parts.append(node("text", label, x=box[0], y=box[3] - 4, class_=f"{weight} halo"))
        drawn.append(node("g", *parts, class_=f"mark {point.style.css}"))
    return picture(width, height, title, *drawn)


def _free(label: str, x: float, y: float, taken: Sequence[_Box], area: _Box) -> _Box | None:
    """Return the first place right of, left of, above or below a point that is free."""
    wide = text_width(label, 12.6)
    for left, top in (
        (x + 9, y - 8),
        (x - 9 - wide, y - 8),
        (x - wide / 2, y - 25),
        (x - wide / 2, y + 9),
        (x + 9, y - 20),
        (x + 9, y + 4),
        (x - 9 - wide, y - 20),
        (x - 9 - wide, y + 4),
    ):
        box = (left, top, left + wide, top + 16)
        inside = box[0] >= area[0] and box[1] >= area[1] and box[2] <= area[2] and box[3] <= area[3]
        if inside and not any(_overlap(box, other) for other in taken):
            return box
    return None


def _overlap(a: _Box, b: _Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
