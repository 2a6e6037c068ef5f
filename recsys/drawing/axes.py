"""Scales, ticks and grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from xml.etree.ElementTree import Element

from recsys.drawing.svg import fitted, node, text_width

Tick = tuple[float, str]
"""A value and its label."""
_NOTHING = 1e-12
"""A span is nothing below this share of its ends, or this number: what differs is rounding."""
_LABEL_ROW = 12
"""The distance of two rows of labels in pixels."""


@dataclass(frozen=True, slots=True)
class Scale:
    """The pixels of values between two ends."""

    low: float
    high: float
    start: float
    """The pixel of the low end."""
    stop: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a value; the middle if both ends are the same."""
        low, high = self.low, self.high
        if self.logarithmic:
            value, low, high = (math.log(each) for each in (value, low, high))
        share = (value - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.stop - self.start)


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis: what it shows, between which values, and where it has ticks."""

    title: str
    low: float
    high: float
    ticks: Sequence[Tick]
    logarithmic: bool = False
    categories: bool = False
    """Must every tick have its label? Those that would touch stand in a second row."""

    @property
    def below(self) -> float:
        """The height of its labels and its title, below a picture."""
        return 42 + _LABEL_ROW * self.categories

    def scale(self, start: float, stop: float) -> Scale:
        """Return the scale of the axis between two pixels."""
        return Scale(self.low, self.high, start, stop, self.logarithmic)


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about ``count`` round values between two ends, both of them inside.

    >>> nice_ticks(0, 0.21), nice_ticks(3, 3)
    ([0.0, 0.05, 0.1, 0.15, 0.2], [3.0])
    """
    if _is_point(low, high):
        return [round(low, 12) + 0.0]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(number * step, 12) + 0.0 for number in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return powers of ten between two positive ends, with 2 and 5 where they are few.

    >>> log_ticks(1, 100), log_ticks(3, 3000)
    ([1, 2, 5, 10, 20, 50, 100], [10, 100, 1000])
    """
    span = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for factors in ((1,), (1, 2, 5)):
        values = [factor * 10.0**power for power in span for factor in factors]
        ticks = [
            int(value) if value >= 1 else value
            for value in values
            if low * 0.999 <= value <= high * 1.001
        ]
        if len(ticks) > 2 and math.log10(high / low) > 2:
            break
    return ticks


def value_axis(
    title: str, low: float, high: float, count: int = 5, *, percent: bool = False
) -> Axis:
    """Return an axis of numbers that ends at round values or a little beyond the data."""
    high = low if _is_point(low, high) else high
    ticks = nice_ticks(low, high, count)
    if len(ticks) > 1 and high > ticks[-1]:
        step = ticks[1] - ticks[0]
        if high > ticks[-1] + step / 2:
            ticks.append(ticks[-1] + step)
        high = max(high, ticks[-1])
    return Axis(title, low, high, [(tick, tick_label(tick, ticks, percent)) for tick in ticks])


def log_axis(title: str, low: float, high: float) -> Axis:
    """Return a logarithmic axis of positive numbers; a short one has ticks at round values."""
    ticks = log_ticks(low, high)
    if len(ticks) > 1:
        labels = [(tick, tick_label(tick, [tick])) for tick in ticks]
    else:
        ticks = nice_ticks(low, high)
        labels = [(tick, tick_label(tick, ticks)) for tick in ticks]
    return Axis(title, low, high, labels, logarithmic=True)


def tick_label(tick: float, ticks: Sequence[float], percent: bool = False) -> str:
    """Format a tick with as many decimals as the distance to the next one needs.

    >>> tick_label(0.05, [0, 0.05]), tick_label(20000, [0, 20000]), tick_label(0.1, [0, 0.1], True)
    ('.05', '20,000', '10%')
    """
    if tick == 0:
        return "0%" if percent else "0"
    step = min((b - a for a, b in pairwise(ticks)), default=abs(tick))
    if percent:
        return f"{tick * 100:.{max(0, _decimals(step * 100))}f}%"
    text = f"{tick:,.{max(0, _decimals(step))}f}"
    return text.replace("0.", ".", 1) if text.startswith(("0.", "-0.")) else text


def grid_across(axis: Axis, scale: Scale, left: float, right: float) -> list[Element]:
    """Draw horizontal lines at the ticks, with their labels to the left."""
    drawn = []
    for value, label in axis.ticks:
        y = scale(value)
        drawn.append(node("line", x1=left, x2=right, y1=y, y2=y, class_="grid"))
        drawn.append(
            node("text", label, x=left - 6, y=y + 4, text_anchor="end", class_="tick muted")
        )
    return drawn


def ticks_below(axis: Axis, scale: Scale, top: float, bottom: float) -> list[Element]:
    """Draw vertical lines at the ticks with room for their labels, which stand below.

    Of labels that would touch, the later is left out, or stands in the second row of `categories`.
    """
    drawn, ends = [], [-math.inf] * (2 if axis.categories else 1)
    for value, label in axis.ticks:
        x, width = scale(value), text_width(label, 11)
        drawn.append(node("line", x1=x, x2=x, y1=top, y2=bottom, class_="grid"))
        x = max(x, width / 2 + 2)
        row = next((row for row, end in enumerate(ends) if x - width / 2 >= end + 6), None)
        if row is None:
            continue
        ends[row] = x + width / 2
        y = bottom + 16 + _LABEL_ROW * row
        drawn.append(node("text", label, x=x, y=y, text_anchor="middle", class_="tick muted"))
    return drawn


def axis_titles(
    x: Axis, y: Axis, left: float, right: float, bottom: float, width: float
) -> list[Element]:
    """Write the title of y above the plot and that of x below it, inside a picture of a width."""
    room = width - 4
    half = min(text_width(x.title, 11), room) / 2
    return [
        node("text", fitted(y.title, room, 11), x=2, y=12, class_="tick muted"),
        node(
            "text",
            fitted(x.title, room, 11),
            x=min(max((left + right) / 2, half + 2), width - half - 2),
            y=bottom + x.below - 8,
            text_anchor="middle",
            class_="tick muted",
        ),
    ]


def left_margin(axis: Axis) -> float:
    """Return the room that the labels of a vertical axis need."""
    return 12 + max((text_width(label, 11) for _, label in axis.ticks), default=20)


def _is_point(low: float, high: float) -> bool:
    """Return whether two ends differ by a rounding error at most."""
    return high - low <= _NOTHING * max(abs(low), abs(high), 1.0)


def _decimals(step: float) -> int:
    """Return the decimals that tell apart numbers which are a step apart."""
    if step <= 0:
        return 0
    digits = -math.floor(math.log10(step) + 1e-9)
    return digits if math.isclose(step * 10**digits, round(step * 10**digits)) else digits + 1
