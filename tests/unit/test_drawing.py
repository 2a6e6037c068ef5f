"""Pictures: colours that stay apart, labels that do not touch, text that cannot break them."""

from __future__ import annotations

from itertools import pairwise
from xml.etree.ElementTree import Element, fromstring

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.drawing.axes import Axis, log_axis, log_ticks, nice_ticks, value_axis
from recsys.drawing.bars import Bar, draw_bars
from recsys.drawing.forest import ForestRow, draw_forest
from recsys.drawing.labels import short_labels, spread
from recsys.drawing.lines import Line, draw_lines
from recsys.drawing.marks import BEST, Style, key, shape, styles_by_merit
from recsys.drawing.palette import DARK, LIGHT, Theme
from recsys.drawing.picture import Picture
from recsys.drawing.points import Point, draw_points
from recsys.drawing.svg import markup, node, picture
from recsys.drawing.values import Values

# Machado, Oliveira and Fernandes 2009, severity 1.0, on linear RGB.
EYES = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.01182, 0.04294, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "tritanopia": np.array(
        [
            [1.255528, -0.076749, -0.178779],
            [-0.078411, 0.930809, 0.147602],
            [0.004733, 0.691367, 0.3039],
        ]
    ),
}


def linear(colour: str) -> np.ndarray:
    values = np.array([int(colour[place : place + 2], 16) for place in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    lab = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    found: np.ndarray = lab @ np.cbrt(cones @ rgb.clip(0, 1))
    return found


def contrast(one: str, other: str) -> float:
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted(float(weights @ linear(each)) for each in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("eyes", EYES)
@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_stay_apart_for_every_eye(theme: Theme, eyes: str) -> None:
    seen = [oklab(EYES[eyes] @ linear(colour)) for colour in theme.colours]
    distances = [float(np.linalg.norm(a - b)) for place, a in enumerate(seen) for b in seen[:place]]
    assert min(distances) > 0.085  # 0.02 is just noticeable; the colours of matplotlib have 0.03


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_everything_stands_out_from_its_ground(theme: Theme) -> None:
    assert contrast(theme.ink, theme.paper) > 12
    for ground in (theme.paper, theme.panel):
        assert contrast(theme.muted, ground) > 4.5  # WCAG AA for text
    for colour in (*theme.colours, theme.grey):
        assert contrast(colour, theme.paper) > 3  # WCAG 1.4.11 for marks


def look_of(style: Style, element: Element) -> tuple[str, ...]:
    """What is seen of a style: its colour, the outline of its mark and the dashes of its line."""
    mark = next(each for each in element.iter() if each.get("class", "").startswith("dot"))
    line = next(each for each in element.iter() if each.get("class") == "line")
    return style.css, mark.get("points", "circle"), line.get("stroke-dasharray", "whole")


@given(st.integers(1, 40))
def test_no_two_of_28_runs_look_alike(count: int) -> None:
    styles = styles_by_merit(count)
    own = [style for style in styles if style.colour is not None]
    assert len(own) == len(set(own)) == min(count, 28)
    assert styles[0] == BEST
    assert {style.css for style in own} == {f"c{n}" for n in range(min(count, len(LIGHT.colours)))}


def test_runs_of_one_colour_have_marks_and_strokes_of_their_own() -> None:
    styles = styles_by_merit(28)
    looks = [look_of(style, key(style)) for style in styles]
    assert len(set(looks)) == 28
    for colour in {look[0] for look in looks}:
        alike = [look for look in looks if look[0] == colour]
        assert len({mark for _, mark, _ in alike}) == 4
        assert len({dashes for _, _, dashes in alike}) == 4


def test_pictures_draw_every_run_in_its_style() -> None:
    styles, axis = styles_by_merit(16), value_axis("y", 0, 16)
    forest = draw_forest(
        [ForestRow(str(n), n, n, n, "", "", style) for n, style in enumerate(styles)],
        *(400, axis, ""),
    )
    points = draw_points(
        [Point(str(n), n, n, n, n, "", style) for n, style in enumerate(styles)],
        *(400, axis, axis, ""),
    )
    lines = draw_lines(
        [
            Line(str(n), [n, 16], [n, n], places=["a", "b"], values=["", ""], style=s)
            for n, s in enumerate(styles)
        ],
        *(400, axis, axis, ""),
    )
    expected = {(style.css, shape(style, 0, 0, 1).get("points", "").count(",")) for style in styles}
    for drawn in (forest, points, lines):
        marks = {
            (group.get("class", "").removeprefix("mark "), mark.get("points", "").count(","))
            for group in drawn.iter("g")
            for mark in group.iter()
            if group.get("class", "mark") != "mark" and mark.get("class", "").startswith("dot")
        }
        assert marks == expected
    strokes = {
        (group.get("class"), line.get("stroke-dasharray"))
        for group in lines.iter("g")
        for line in group.findall("polyline")
        if line.get("class") == "line"
    }
    assert strokes == {(style.css, style.dashes) for style in styles}


@given(st.lists(st.floats(0, 100), min_size=1, max_size=20), st.floats(1, 30))
def test_labels_keep_their_order_and_their_distance(wanted: list[float], gap: float) -> None:
    places = spread(wanted, gap, 0, 100)
    order = np.argsort(wanted, kind="stable")
    ordered = np.array(places)[order]
    room = min(gap, 100 / max(len(wanted) - 1, 1))
    assert all(b - a >= room - 1e-6 for a, b in pairwise(ordered))
    assert ordered[0] >= -1e-6
    assert ordered[-1] <= 100 + 1e-6


@given(st.floats(-1e6, 1e6), st.floats(1e-6, 1e6))
def test_ticks_are_inside_and_few(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    assert 1 <= len(ticks) <= 8
    slack = 1e-6 * max(abs(low), span)
    assert low - slack <= ticks[0] <= ticks[-1] <= low + span + slack


def test_ticks_of_a_log_axis_are_few() -> None:
    assert log_ticks(0.01, 2000) == [0.01, 0.1, 1, 10, 100, 1000]
    assert log_ticks(0.5, 5) == [0.5, 1, 2, 5]


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.02, 3, [".02", ".05", ".1", ".2", ".5", "1", "2"]),
        (120, 150, ["120", "130", "140", "150"]),
        (3.1, 4.2, ["3.25", "3.50", "3.75", "4.00"]),
        (3.3, 3.3, ["3.3"]),
    ],
)
def test_a_log_axis_has_ticks_however_short_it_is(
    low: float, high: float, labels: list[str]
) -> None:
    assert [label for _, label in log_axis("seconds", low, high).ticks] == labels


@pytest.mark.parametrize(("low", "high"), [(0.3, 0.1 + 0.2), (0.0, 1e-16), (-2e-17, 1e-17)])
def test_rounding_errors_are_no_ticks(low: float, high: float) -> None:
    labels = [label for _, label in value_axis("difference", low, high).ticks]
    assert labels == [".3" if high > 0.1 else "0"]


def words(drawn: Element) -> list[str]:
    return [text.text or "" for text in drawn.iter("text")]


def test_names_that_begin_alike_stay_different_where_they_are_cut() -> None:
    names = ["shop-model", "shop-model, model alone", "shop-transitions_and_repeats"]
    short = short_labels(names, 110, [12, 12, 12])
    assert short == ["shop-model", "…model, model…", "…transitions_a…"]
    assert short_labels(names, 400, [12, 12, 12]) == names
    # Where nothing is shared, or only part of a word, the end is cut.
    assert short_labels(["transitions", "transfer"], 50, [12, 12]) == ["transi…", "transfer"]
    assert short_labels(["transitions_and"], 50, [12]) == ["transi…"]


def test_every_category_has_its_label() -> None:
    ticks = [(float(n), f"{10 * n}-{10 * n + 9}") for n in range(1, 7)]
    y = value_axis("y", 0, 1)
    lines = [Line("a rather long name", [1, 6], [0, 1])]
    labels = [label for _, label in ticks]
    plain = draw_lines(lines, 358, Axis("x", 1, 6, ticks), y, "")
    assert not set(labels) <= set(words(plain))
    drawn = draw_lines(lines, 358, Axis("x", 1, 6, ticks, categories=True), y, "")
    assert set(labels) <= set(words(drawn))
    places = {t.get("y") for t in drawn.iter("text") if t.text in labels}
    assert len(places) == 2  # those that would touch stand lower


def test_a_title_may_be_wider_than_its_plot() -> None:
    title = "decile of the target's popularity, 1 the most popular"
    y = value_axis("y", 0, 1)
    drawn = draw_lines(
        [Line("a rather long name", [1, 6], [0, 1])], 358, Axis(title, 1, 6, ()), y, ""
    )
    assert title in words(drawn)


def test_a_note_is_never_cut() -> None:
    axis = value_axis("y", 0, 1)
    line = Line("a rather long name", [0, 1], [0, 1], note=" +7% −28%")
    assert "a rather long name +7% −28%" in words(draw_lines([line], 960, axis, axis, ""))
    (found,) = (w for w in words(draw_lines([line], 358, axis, axis, "")) if w.endswith("−28%"))
    assert found.startswith("a rat")
    assert found.endswith("… +7% −28%")


def test_no_line_goes_through_the_words_of_a_narrow_forest() -> None:
    row = ForestRow("only", 0.5, 0.0, 1.0, ".5 [0, 1]", "")
    axis = value_axis("x", 0, 1)
    for width, grounds in ((960, 0), (358, 1)):
        group = draw_forest([row], width, axis, "", 0.5).findall("g")[-1]
        assert sum(each.get("class") == "ground" for each in group) == grounds


def test_names_cannot_break_a_picture() -> None:
    evil = '<script>alert(1)</script> & "x" \x00\x1b $a_1$'
    row = ForestRow(evil, 1, 0, 2, evil, evil)
    line = Line(evil, [1, 2], [1, 2], places=[evil, evil], values=[evil, evil])
    axis = value_axis(evil, 0, 2)
    for drawn in (
        draw_forest([row], 400, axis, evil),
        draw_lines([line], 400, axis, axis, evil),
        draw_bars([Bar(evil, 1, evil, evil)], 400, evil, evil, evil),
        draw_points([Point(evil, 1, 1, 0, 2, evil)], 400, axis, axis, evil),
    ):
        text = markup(drawn)
        assert "<script" not in text
        assert fromstring(text).tag.endswith("svg")  # noqa: S314 - our own


def test_one_value_has_an_axis() -> None:
    for width in (358, 960):
        row = ForestRow("only", 0.0, 0.0, 0.0, "0", "")
        markup(draw_forest([row], width, value_axis("x", 0, 0), "one"))
        line = Line("only", [3], [0.25])
        drawn = draw_lines(
            [line], width, Axis("x", 3, 3, [(3, "3")]), value_axis("y", 0.25, 0.25), ""
        )
        assert "nan" not in markup(drawn)


def test_a_file_brings_its_style() -> None:
    drawn = picture(10, 10, "a dot", node("circle", cx=5, cy=5, r=2, class_="dot"))
    root = fromstring(Picture("dot", "a dot", "", drawn, drawn, Values((), ())).file)  # noqa: S314 - our own
    assert root[0].tag.endswith("style")
    assert LIGHT.colours[0] in (root[0].text or "")
    assert "var(" not in (root[0].text or "")  # few programs that show SVG know variables
