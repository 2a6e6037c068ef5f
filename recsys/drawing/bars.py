"""Bars: how many there are of each kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

from recsys.drawing.axes import Axis, axis_titles, grid_across, left_margin, value_axis
from recsys.drawing.marks import BEST, Style
from recsys.drawing.svg import node, picture, text_width


class Bar(NamedTuple):
    """One bar."""

    label: str
    value: float
    name: str
    """What the bar counts; the label may be shorter."""
    text: str
    """The value as a text."""


def draw_bars(
    bars: Sequence[Bar],
    width: int,
    x_title: str,
    y_title: str,
    title: str,
    *,
    height: int = 230,
    style: Style = BEST,
) -> Element:
    """Draw vertical bars from 0; of labels that would touch, the later is left out."""
    y = value_axis(y_title, 0, max(bar.value for bar in bars) or 1, 4)
    left, right, top, bottom = left_margin(y), width - 6.0, 24.0, height - 42.0
    down = y.scale(bottom, top)
    step = (right - left) / len(bars)
    gap = min(4.0, step * 0.2)
    drawn = grid_across(y, down, left, right)
    drawn += axis_titles(Axis(x_title, 0, 1, ()), y, left, right, bottom, width)
    end = float("-inf")
    for number, bar in enumerate(bars):
        x, peak = left + number * step, down(bar.value)
        drawn.append(
            node(
                "g",
                node("rect", x=x, y=top, width=step, height=bottom - top, class_="hit"),
                node(
                    "rect",
                    x=x + gap / 2,
                    y=peak,
                    width=max(step - gap, 0.6),
                    height=bottom - peak,
                    class_="bar",
                ),
                node("title", f"{bar.name}: {bar.text}"),
                class_="mark",
            )
        )
        wide, middle = text_width(bar.label, 11), x + step / 2
        if bar.label and middle - wide / 2 > end + 6 and middle + wide / 2 <= width:
            end = middle + wide / 2
            drawn.append(
                node(
                    "text",
                    bar.label,
                    x=middle,
                    y=bottom + 16,
                    text_anchor="middle",
                    class_="tick muted",
                )
            )
    return picture(width, height, title, node("g", *drawn, class_=style.css))
