"""Charts: every name can stand in them, their marks are the numbers, pages may hold them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from rich.cells import cell_len

from recsys.reports import charts
from recsys.reports.charts import (
    Chart,
    Series,
    add_lines,
    add_ranges,
    chart,
    forest,
    new_axes,
    shortened,
    styles_by_merit,
)

NAMES = ["<script>alert(1)</script> & $a_1$", "_b", "日本語の名前", "a\x1b[2Jb", "long " * 40]
STYLES = styles_by_merit(len(NAMES))
LINES = [
    Series(name, [1, 2], [0.5, 2], STYLES[n], n == 0, [0.0, 1.0], [1.0, 3.0])
    for n, name in enumerate(NAMES)
]
ROWS = [
    Series(name, [0.2 + n], [0], STYLES[n], n == 0, [0.1 + n], [0.5 + n], f".{n}", hollow=n == 2)
    for n, name in enumerate(NAMES)
]


def drawn(draw: Callable[[Axes, list[Series]], None]) -> Axes:
    axes = new_axes("$x$", "$y$")
    draw(axes, LINES)
    return axes


def ranges(axes: Axes, lines: list[Series]) -> None:
    add_ranges(axes, [line._replace(xs=[0, 1]) for line in lines], ["$new$", "repeat"])


CHARTS: dict[str, Callable[[str], Chart]] = {
    "forest": lambda name: forest(name, NAMES[0], "", ROWS, "$x$", 2.2),
    "lines": lambda name: chart(drawn(add_lines), name, NAMES[0], ""),
    "ranges": lambda name: chart(drawn(ranges), name, NAMES[0], ""),
}


@pytest.mark.parametrize("kind", CHARTS)
def test_a_chart_is_a_part_of_a_page(kind: str) -> None:
    """Every name as text; no style of its own, no id of another's; colours have a dark one."""
    first, again, other = CHARTS[kind]("chart"), CHARTS[kind]("chart"), CHARTS[kind]("other")
    assert first == again
    nodes = fromstring(first.svg).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314
    texts = [(node.text or "").strip() for node in nodes]
    assert {*NAMES[:3], "a?[2Jb"} <= set(texts)
    assert any(re.fullmatch(r"long .*….*long", text) for text in texts)
    assert first.svg.startswith("<svg ")
    for word in ("style", "url(", "<metadata", "rotate(-0"):
        assert word not in first.svg
    ids, of_other = (set(re.findall(r'\bid="([^"]*)"', c.svg)) for c in (first, other))
    assert not ids & of_other
    assert set(re.findall(r'href="#([^"]*)"', first.svg)) <= ids
    colours = set(re.findall(r'(?:fill|stroke)="(#\w+)"', first.svg))
    assert colours <= {light for light, _ in charts.COLOURS}
    assert re.search(r'aria-label="&lt;script', first.svg)
    assert f'<rect width="100%" height="100%" fill="{charts.PAPER[0]}"/>' in first.file


def test_the_marks_of_a_forest_are_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(charts, "chart", lambda axes, *_: made.append(axes))
    CHARTS["forest"]("chart")
    (axes,) = made
    reference, *marks = axes.get_lines()
    assert np.asarray(reference.get_xdata()).tolist() == [2.2, 2.2]
    assert [(mark.get_xdata()[0], mark.get_ydata()[0]) for mark in marks] == [
        (0.2 + n, n) for n in range(len(NAMES))
    ]
    hollow = [mark.get_markerfacecolor() == charts.PAPER[0] for mark in marks]
    assert hollow == [n == 2 for n in range(len(NAMES))]
    for n, interval in enumerate(axes.collections):
        ((low, y), (high, _)) = interval.get_paths()[0].vertices
        assert (low, high, y) == pytest.approx((0.1 + n, 0.5 + n, n))
    bottom, top = axes.get_ylim()
    assert bottom > len(NAMES) - 1 > 0 > top  # the first on top


def test_the_intervals_of_lines_are_bands_and_the_first_is_on_top() -> None:
    axes: Any = drawn(add_lines)
    corners = {tuple(corner) for corner in axes.collections[0].get_paths()[0].vertices.tolist()}
    assert corners == {(1, 0), (2, 1), (1, 1), (2, 3)}
    orders = [line.get_zorder() for line in axes.get_lines()]
    assert orders == sorted(orders, reverse=True)


def test_ranges_of_one_place_stand_side_by_side() -> None:
    axes: Any = drawn(ranges)
    heights = np.array([line.get_ydata() for line in axes.get_lines()])
    assert heights.mean(axis=0) == pytest.approx([0, 1])
    assert (np.diff(heights[:, 0]) > 0.1).all()
    assert heights[-1, 0] < heights[0, 1]
    bottom, top = axes.get_ylim()
    assert bottom > heights.max() > heights.min() > top


def test_the_legend_grows_with_the_names() -> None:
    axes = new_axes("x")
    for lines, height in (([Series("", [1], [1], STYLES[0])], 250), (LINES[1:3], 267)):
        add_lines(axes, lines)
        assert f'height="{height}"' in chart(axes, "x", "", "").svg
    assert 'height="335"' in CHARTS["lines"]("x").svg


@given(st.text(), st.integers(5, 60))
def test_a_shortened_text_fits(text: str, cells: int) -> None:
    short = shortened(text, cells)
    assert short.isprintable()
    assert cell_len(short) <= cells


def test_colours_are_seen_on_their_ground() -> None:
    """The contrast of WCAG 2: 3:1 for marks, 4.5:1 for text."""

    def luminance(colour: str) -> float:
        values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    wanted = [*((colour, 3) for colour in charts.RUNS), (charts.MUTED, 4.5), (charts.INK, 4.5)]
    for ground in (0, 1):
        paper = luminance(charts.PAPER[ground])
        for colour, least in wanted:
            low, high = sorted([paper, luminance(colour[ground])])
            assert (high + 0.05) / (low + 0.05) >= least
