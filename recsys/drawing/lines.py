"""Lines with their names at their ends: no legend, nothing over the curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from recsys.drawing.axes import (
    Axis,
    Scale,
    axis_titles,
    grid_across,
    left_margin,
    ticks_below,
)
from recsys.drawing.labels import short_labels, spread
from recsys.drawing.marks import GREY, Style, shape
from recsys.drawing.svg import node, picture, text_width

_LABEL_HEIGHT = 15
_ASIDE = 4
"""The distance in pixels of the intervals of two lines at one place."""
_MOST_DOTS = 40
_HIT = 8
"""The radius in pixels in which a point shows its number."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line through points."""

    label: str
    """Its name, which is cut if there is little room."""
    xs: Sequence[float]
    """Ascending."""
    ys: Sequence[float]
    lows: Sequence[float] = ()
    """The lower ends of the intervals of the points; empty if they have none."""
    highs: Sequence[float] = ()
    places: Sequence[str] = ()
    """Where each point is, in words; if empty, the points cannot be chosen."""
    values: Sequence[str] = ()
    """The value of each point as a text. The points of a line with many are not marked."""
    style: Style = GREY
    strong: bool = False
    """Is it thick, with a bold name?"""
    cross: bool = False
    """Does it end with a cross: was it given up there?"""
    dashed: bool = False
    """Is it a level to compare with?"""
    note: str = ""
    """Words after its name that are never cut."""


def draw_lines(
    lines: Sequence[Line],
    width: int,
    x: Axis,
    y: Axis,
    title: str,
    *,
    height: int = 300,
    whiskers: bool = False,
) -> Element:
    """Draw lines, the first on top of the others, each with its name beside its end.

    Args:
        lines: the lines, the most important first; a line without a name has none drawn.
        width: the width of the picture in pixels.
        x: the horizontal axis.
        y: the vertical axis.
        title: what the picture shows, for those who cannot see it.
        height: the height in pixels; it grows with the number of names.
        whiskers: intervals are vertical strokes; bands otherwise.
    """
    height = max(height, 80 + _LABEL_HEIGHT * len(lines))
    notes = max((text_width(line.note) for line in lines), default=0)
    sizes = [13 if line.strong else 12 for line in lines]
    names = max(
        (text_width(line.label, size) for line, size in zip(lines, sizes, strict=True)), default=0
    )
    names = min(names + notes + 4, max(width * 0.32, notes + 60))
    labels = short_labels([line.label for line in lines], names - notes, sizes)
    named = any(line.label for line in lines)
    # Strokes that stand side by side need room at both ends.
    aside = _ASIDE * (len(lines) - 1) / 2 if whiskers else 0.0
    left, right = left_margin(y) + aside, width - aside - (names + 32 if named else 16)
    top, bottom = 24.0, height - x.below
    across, down = x.scale(left + 6, right), y.scale(bottom, top)
    drawn = ticks_below(x, across, top, bottom) + grid_across(y, down, left, right)
    drawn += axis_titles(x, y, left, right, bottom, width)
    for number, line in reversed(list(enumerate(lines))):
        # Strokes of several lines at one place stand side by side.
        moved = _ASIDE * number - aside if whiskers else 0.0
        drawn.append(_line(line, across, down, whiskers, moved))
    ends = [down(line.ys[-1]) for line in lines]
    places = spread(ends, _LABEL_HEIGHT, top, bottom)
    for line, label, end, place in zip(lines, labels, ends, places, strict=True):
        if label:
            x_end = across(line.xs[-1]) + aside
            drawn.append(_name(line, label + line.note, x_end, end, place, right + aside))
    return picture(width, height, title, *drawn)


def _line(line: Line, across: Scale, down: Scale, whiskers: bool, aside: float) -> Element:
    points = [(across(x) + aside, down(y)) for x, y in zip(line.xs, line.ys, strict=True)]
    drawn: list[Element] = []
    if line.lows and not whiskers:
        edge = [(across(x), down(high)) for x, high in zip(line.xs, line.highs, strict=True)]
        edge += [(across(x), down(low)) for x, low in zip(line.xs, line.lows, strict=True)][::-1]
        drawn.append(node("polygon", points=_joined(edge), class_="band", fill_opacity="0.13"))
    drawn.append(
        node(
            "polyline",
            points=_joined(points),
            class_="line",
            stroke_width=3 if line.strong else 2,
            stroke_dasharray="6 4" if line.dashed else line.style.dashes,
        )
    )
    for number, (x, y) in enumerate(points):
        mark = []
        if line.lows and whiskers:
            low, high = down(line.lows[number]), down(line.highs[number])
            mark.append(node("line", x1=x, x2=x, y1=low, y2=high, class_="line"))
        if line.places:
            if len(points) <= _MOST_DOTS:
                size = 3.5 if line.strong else 3
                mark.append(shape(line.style, x, y, size, "dot ring"))
            mark.append(node("circle", cx=x, cy=y, r=_HIT, class_="hit"))
            mark.append(node("title", _said(line, number)))
        drawn.append(node("g", *mark, class_="mark" if line.places else None))
    if line.cross:
        x, y = points[-1]
        stroke = f"M{x - 4:.1f} {y - 4:.1f}l8 8m0 -8l-8 8"
        drawn.append(node("path", d=stroke, class_="line", stroke_width=2))
    return node("g", *drawn, class_=line.style.css)


def _said(line: Line, number: int) -> str:
    """Return what a point says when it is pointed at or chosen."""
    where = ", ".join(filter(None, (line.label, line.places[number])))
    return f"{where}: {line.values[number]}"


def _name(line: Line, label: str, x: float, y: float, place: float, right: float) -> Element:
    """Write the name of a line right of the picture, joined to its end if it is not beside it."""
    parts = []
    if abs(place - y) > 3 or right - x > 8:
        joint = f"{x + 5:.1f},{y:.1f} {right + 3:.1f},{y:.1f} {right + 14:.1f},{place:.1f}"
        if right - x <= 8:
            joint = f"{right + 4:.1f},{y:.1f} {right + 14:.1f},{place:.1f}"
        parts.append(
            node(
                "polyline",
                points=joint,
                class_="leader",
                stroke_width=1,
                stroke_opacity="0.6",
                stroke_dasharray="2 3",
            )
        )
    weight = "strong" if line.strong else ""
    muted = " muted" if line.style == GREY else ""
    parts.append(shape(line.style, right + 19, place, 4))
    parts.append(
        node(
            "text",
            label,
            x=right + 28,
            y=place + 4,
            class_=f"{weight}{muted} halo",
        )
    )
    parts.append(node("title", line.label + line.note))
    return node("g", *parts, class_=line.style.css)


def _joined(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
