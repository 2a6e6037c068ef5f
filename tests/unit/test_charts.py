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

from recsys.evaluation.metrics import Interval
from recsys.reports import charts
from recsys.reports.charts import (
    Chart,
    ForestRow,
    Line,
    add_forest,
    add_lines,
    add_ranges,
    chart,
    forest_height,
    new_axes,
    shortened,
    styles_by_merit,
)

NAMES = ["<script>alert(1)</script> & $a_1$", "_b", "日本語の名前", "a\x1b[2Jb", "long " * 40]
STYLES = styles_by_merit(len(NAMES))


def finished(axes: Axes, name: str = "chart") -> Chart:
    return chart(axes, name, NAMES[0], "", (), ())


def forest() -> Axes:
    axes = new_axes("$x$", height=forest_height(len(NAMES)))
    rows = [
        ForestRow(name, Interval(0.2 + n, 0.1 + n, 0.5 + n), f".{n}", STYLES[n], n == 0, n == 2)
        for n, name in enumerate(NAMES)
    ]
    add_forest(axes, rows, 2.2)
    return axes


def curves(*, whiskers: bool = False) -> Axes:
    axes = new_axes("x", "$y$")
    ends = ([0.0, 1.0], [1.0, 3.0])
    lines = [Line(name, [1, 2], [0.5, 2], STYLES[n], n == 0, *ends) for n, name in enumerate(NAMES)]
    add_lines(axes, lines, whiskers=whiskers)
    return axes


def ranges() -> Axes:
    axes = new_axes("x")
    ends = ([0.0, 0.1], [0.4, 0.3])
    lines = [
        Line(name, [0, 1], [0.3, 0.2], STYLES[n], False, *ends) for n, name in enumerate(NAMES)
    ]
    add_ranges(axes, lines, ["$new$", "repeat"])
    return axes


@pytest.mark.parametrize("draw", [forest, curves, ranges])
def test_every_name_stands_in_a_chart(draw: Callable[[], Axes]) -> None:
    drawn = finished(draw())
    nodes = fromstring(drawn.svg).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314
    texts = [(node.text or "").strip() for node in nodes]
    for name in (*NAMES[:3], "a?[2Jb"):
        assert name in texts
    assert any(re.fullmatch(r"long .*….*long", text) for text in texts)


@pytest.mark.parametrize("draw", [forest, curves, ranges])
def test_a_chart_is_a_part_of_a_page(draw: Callable[[], Axes]) -> None:
    """No style of its own, no id of another's, every colour has one for dark ground."""
    first, again, other = finished(draw()), finished(draw()), finished(draw(), "other")
    assert first == again
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
    assert len(first.svg) < 40_000


def test_the_marks_of_a_forest_are_its_numbers() -> None:
    axes: Any = forest()
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


def test_the_intervals_of_lines_are_bands_or_whiskers() -> None:
    drawn: list[Any] = [curves(whiskers=kind) for kind in (False, True)]
    (band, *_), (whisker, *_) = (axes.collections for axes in drawn)
    corners = {tuple(corner) for corner in band.get_paths()[0].vertices.tolist()}
    assert corners == {(1, 0), (2, 1), (1, 1), (2, 3)}
    assert [path.vertices.tolist() for path in whisker.get_paths()] == [
        [[1, 0], [1, 1]],
        [[2, 1], [2, 3]],
    ]
    orders = [line.get_zorder() for line in curves().get_lines()]
    assert orders == sorted(orders, reverse=True)  # the first over the others


def test_ranges_of_one_place_stand_side_by_side() -> None:
    axes: Any = ranges()
    heights = np.array([line.get_ydata() for line in axes.get_lines()])
    assert heights.mean(axis=0) == pytest.approx([0, 1])
    assert (np.diff(heights[:, 0]) > 0.1).all()
    assert heights[-1, 0] < heights[0, 1]
    bottom, top = axes.get_ylim()
    assert bottom > heights.max() > heights.min() > top


def test_the_legend_grows_with_the_names() -> None:
    axes = new_axes("x")
    add_lines(axes, [Line("", [1, 2], [1, 2], STYLES[0])])
    assert 'height="250"' in finished(axes).svg
    add_lines(axes, [Line("a", [1, 2], [1, 2], STYLES[0]), Line("b", [1], [1], STYLES[1])])
    assert 'height="267"' in finished(axes).svg
    assert 'height="335"' in finished(curves()).svg


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
