"""Charts: static SVG by matplotlib, which stands in a page and as a file.

Colours are attributes: a page's style sheet changes them on dark ground. Texts stay texts.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure

from recsys.errors import printable
from recsys.evaluation.metrics import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 420
"""The width of every chart, in its own pixels: that of a telephone, or of a column of a paper."""

# Each colour on light and on dark ground. Those of runs stay apart for every kind of colour
# blindness (Machado et al. 2009) and have a contrast of 3:1 with their ground (WCAG 1.4.11).
PAPER = ("#ffffff", "#14191f")
INK = ("#17212b", "#e8edf2")
MUTED = ("#5b6874", "#9aa7b4")
RULE = ("#dfe4e9", "#2d3742")
RUNS = (
    ("#8d59f8", "#678bff"),
    ("#924400", "#e98c4b"),
    ("#429ea5", "#8cf5d1"),
    ("#2f0f82", "#7e63a0"),
    ("#11668e", "#56bdcc"),
    ("#4d1e1a", "#c94235"),
    ("#d17611", "#fcd40a"),
)
COLOURS = (PAPER, INK, MUTED, RULE, *RUNS)
_FORMS = (("o", "-"), ("s", "--"), ("^", ":"), ("D", "-."))
"""Mark and stroke of the first seven runs, of the next seven and so on."""
BROKEN: Any = {"color": MUTED[0], "linestyle": (0, (4, 3)), "linewidth": 1}
_LETTERS = 50
_FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
_RC: Any = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a run may be called $a_1$
    "font.size": 12,
    "text.color": INK[0],
    "axes.edgecolor": RULE[0],
    "axes.labelcolor": MUTED[0],
    "axes.labelsize": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": PAPER[0],
    "grid.color": RULE[0],
    "xtick.color": MUTED[0],
    "ytick.color": MUTED[0],
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
}


class Style(NamedTuple):
    """How a run is drawn everywhere on a page."""

    colour: str
    marker: str
    stroke: str


STYLES = [Style(light, *form) for form in _FORMS for light, _ in RUNS]


class Chart(NamedTuple):
    """A chart; its name is that of its file, without extension, its caption says how to read it."""

    name: str
    title: str
    caption: str
    svg: str


ForestRow = tuple[str, Interval, str, Style]
"""A run in a forest plot: its name, its interval, its numbers as a text at the right, its style."""


def new_axes(x: str, y: str = "", height: int = 250) -> Axes:
    """Return the axes of a new chart, with the titles of both; that of y stands on top."""
    with rc_context(_RC):
        size = (WIDTH / 72, height / 72)  # a point of matplotlib's is a pixel of the SVG
        axes = Figure(figsize=size, layout="constrained").add_subplot()
        axes.spines[["left", "right", "top"]].set_visible(False)
        axes.set_xlabel(x)
        axes.set_title(y, loc="left", size=11, color=MUTED[0])
    return axes


def add_line(
    axes: Axes, label: str, xs: Sequence[float], ys: Sequence[float], style: Style
) -> None:
    """Draw the line of a run, below those that were drawn before."""
    axes.plot(
        xs,
        ys,
        label=f" {shortened(label, _LETTERS)}",  # matplotlib leaves out names that begin with _
        color=style.colour,
        linestyle=style.stroke,
        linewidth=2,
        marker=style.marker if len(xs) <= 40 else "",
        markeredgecolor=PAPER[0],
        zorder=40 - len(axes.lines),
    )


def forest(
    name: str, title: str, caption: str, rows: Sequence[ForestRow], x: str, line: float | None
) -> Chart:
    """Draw rows from top to bottom: the label and the numbers, below them mean and interval.

    A broken line stands at the value ``line``, such as the mean of the reference.
    """
    axes = new_axes(x, height=42 + 40 * len(rows))
    if line is not None:
        axes.axvline(line, **BROKEN)
    words: Any = {
        "va": "bottom",
        "color": INK[0],
        "transform": axes.get_yaxis_transform(),
        "bbox": {"facecolor": PAPER[0], "edgecolor": "none", "pad": 1},
        "parse_math": False,
    }
    for place, (label, (mean, low, high), text, (colour, marker, _)) in enumerate(rows):
        axes.hlines(place, low, high, colour, linewidth=3)
        axes.plot(mean, place, marker, color=colour, ms=9, mew=2, markeredgecolor=PAPER[0])
        room = int((WIDTH - 7 * len(text)) / 7.5) - 1
        axes.text(0, place - 0.27, shortened(label, room), ha="left", **words)
        axes.text(1, place - 0.27, text, ha="right", **words)
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.6, -0.85)
    return chart(axes, name, title, caption)


def chart(axes: Axes, name: str, title: str, caption: str) -> Chart:
    """Finish a chart, with the legend below it; the same chart has the same bytes."""
    figure, buffer = axes.get_figure(), io.StringIO()
    assert isinstance(figure, Figure)  # noqa: S101 - not part of another
    handles, labels = axes.get_legend_handles_labels()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    # Ids, which a page has once, are made of the name.
    with rc_context({**_RC, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a browser has other fonts
        if labels:
            columns = 2 if max(map(len, labels)) <= _LETTERS // 2 - 2 else 1
            more = 17 * -(-len(labels) // columns)
            figure.set_figheight(figure.get_figheight() + more / 72)
            figure.legend(handles, labels, loc="outside lower left", ncols=columns)
        figure.savefig(buffer, format="svg", metadata=metadata)
    return Chart(name, title, caption, _as_element(buffer.getvalue(), printable(title)))


def shortened(text: str, length: int) -> str:
    """Return a text without control characters, and without its middle if it is longer."""
    text, half = printable(text), (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[-half:]}"


def _as_element(svg: str, title: str) -> str:
    """Return what matplotlib wrote as an element of a page, named, with styles as attributes."""
    named = f'<svg role="img" aria-label="{escape(title)}" font-family="{_FONT}"'
    svg = svg[svg.index("<svg") :].replace("<svg", named, 1)
    left_out = r'<defs>\s*<(?:style|clipPath).*?</defs>| clip-path="[^"]*"|(?<=<g) id="[^"]*"'
    svg = re.sub(left_out, "", svg, flags=re.DOTALL)

    def attributes(style: re.Match[str]) -> str:
        pairs = (rule.split(": ", 1) for rule in style[1].split("; "))
        return "".join(f' {name}="{value}"' for name, value in pairs if name != "font-family")

    return re.sub(r' style="([^"]*)"', attributes, svg)
