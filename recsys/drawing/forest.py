"""A forest plot: one row per run, its mean and its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from recsys.drawing.axes import Axis, Scale, ticks_below
from recsys.drawing.labels import short_labels
from recsys.drawing.marks import GREY, Style, shape
from recsys.drawing.svg import node, picture, text_width

_NARROW = 500
"""Below this width the label of a row stands above its interval."""
_ROW, _TALL_ROW = 30, 42


@dataclass(frozen=True, slots=True)
class ForestRow:
    """One row of a forest plot."""

    label: str
    mean: float
    low: float
    high: float
    value: str
    """The numbers, beside the interval."""
    hover: str
    """What the row says when it is pointed at or chosen."""
    style: Style = GREY
    strong: bool = False
    """Is its label bold?"""
    hollow: bool = False
    """Is its mark a ring, as that of the reference?"""


def draw_forest(
    rows: Sequence[ForestRow], width: int, axis: Axis, title: str, line: float | None = None
) -> Element:
    """Draw rows from top to bottom in their order.

    Args:
        rows: the rows, the best first.
        width: the width of the picture in pixels; a narrow one has labels above the intervals.
        axis: the axis of the means.
        title: what the picture shows, for those who cannot see it.
        line: a value that has a vertical line, such as the mean of the reference.
    """
    narrow = width < _NARROW
    tall = _TALL_ROW if narrow else _ROW
    values = max(text_width(row.value) for row in rows) + 14
    sizes = [13 if row.strong else 12 for row in rows]
    labels = max(text_width(row.label, size) for row, size in zip(rows, sizes, strict=True)) + 16
    labels = min(labels, width * 0.34)
    left, right = (8.0, width - 8.0) if narrow else (labels, width - values)
    room = width - values if narrow else labels - 12
    bottom = 6 + tall * len(rows) + 4
    scale = axis.scale(left + 6, right - 6)
    drawn = ticks_below(axis, scale, 4, bottom)
    if line is not None:
        x = scale(line)
        drawn.append(
            node("line", x1=x, x2=x, y1=4, y2=bottom, class_="base", stroke_dasharray="4 3")
        )
    short = short_labels([row.label for row in rows], room, sizes)
    for number, (row, label) in enumerate(zip(rows, short, strict=True)):
        top = 6 + tall * number
        drawn.append(_row(row, label, scale, top, tall, width, narrow))
    drawn.append(
        node(
            "text",
            axis.title,
            x=(left + right) / 2,
            y=bottom + 34,
            text_anchor="middle",
            class_="tick muted",
        )
    )
    return picture(width, bottom + 42, title, *drawn)


def _row(
    row: ForestRow, label: str, scale: Scale, top: float, tall: int, width: int, narrow: bool
) -> Element:
    middle = top + tall - 12 if narrow else top + tall / 2
    text = top + 14 if narrow else middle + 4
    weight, edge = "strong" if row.strong else "", 8 if narrow else 2
    low, mean, high = scale(row.low), scale(row.mean), scale(row.high)
    # Where words stand above the interval, no line of the grid goes through them.
    ground = [node("rect", x=0, y=top, width=width, height=19, class_="ground")] * narrow
    return node(
        "g",
        *ground,
        node("rect", x=0, y=top, width=width, height=tall, class_="hit"),
        node("text", label, x=edge, y=text, class_=f"{weight} halo"),
        node("line", x1=low, x2=high, y1=middle, y2=middle, class_="line", stroke_width=3),
        shape(row.style, mean, middle, 5, "hollow" if row.hollow else "dot ring"),
        node(
            "text",
            row.value,
            x=width - edge,
            y=text,
            text_anchor="end",
            class_=f"{weight} halo",
        ),
        node("title", row.hover),
        class_=f"mark {row.style.css}",
    )
