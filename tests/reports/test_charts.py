"""Charts: every name can stand in them, their marks are the numbers, pages may hold them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from xml.etree.ElementTree import fromstring

import numpy as np
import pytest

from recsys.evaluation.metrics import Interval
from recsys.reports import charts
from recsys.reports.charts import STYLES, Chart, add_line, chart, forest, new_axes

NAMES = ["<script>alert(1)</script> & $a_1$", "_b", "日本語の名前", "a\x1b[2Jb", "long " * 40]
ROWS = [
    (name, Interval(0.2 + n, 0.1 + n, 0.5 + n), f".{n}", style)
    for n, (name, style) in enumerate(zip(NAMES, STYLES, strict=False))
]


def lines(name: str) -> Chart:
    axes = new_axes("$x$", "$y$")
    for label, style in zip(NAMES, STYLES, strict=False):
        add_line(axes, label, [1, 2], [0.5, 2], style)
    return chart(axes, name, NAMES[0], "")


CHARTS: dict[str, Callable[[str], Chart]] = {
    "forest": lambda name: forest(name, NAMES[0], "", ROWS, "$x$", 2.2),
    "lines": lines,
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
    for word in ("style", "url(", "<metadata"):
        assert word not in first.svg
    ids, of_other = (set(re.findall(r'\bid="([^"]*)"', c.svg)) for c in (first, other))
    assert not ids & of_other
    assert set(re.findall(r'href="#([^"]*)"', first.svg)) <= ids
    colours = set(re.findall(r'(?:fill|stroke)="(#\w+)"', first.svg))
    assert colours <= {light for light, _ in charts.COLOURS}


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
    for n, interval in enumerate(axes.collections):
        ((low, y), (high, _)) = interval.get_paths()[0].vertices
        assert (low, high, y) == pytest.approx((0.1 + n, 0.5 + n, n))
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first on top
