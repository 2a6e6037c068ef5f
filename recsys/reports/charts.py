"""Charts: static SVG by matplotlib, which stands in a page and as a file, on light and dark ground.

Every chart has the width of a telephone, of half a page and of a column of a paper. Its colours are
attributes, which need no style sheet; that of a page (`recsys.reports.pages`) changes them on dark
ground. Texts stay texts; they are measured in DejaVu Sans, which is wide.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure
from rich.cells import cell_len, set_cell_size

from recsys.errors import printable
from recsys.training.curve import MONITOR, Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH = 420
"""The width of every chart, in its own pixels."""

# Each colour on light and on dark ground. Those of runs were found by a search in OKLab: they stay
# apart for every kind of colour blindness (Machado et al. 2009) and have a contrast of 3:1 with
# their ground, as WCAG 1.4.11 asks of marks.
PAPER = ("#ffffff", "#14191f")
INK = ("#17212b", "#e8edf2")
MUTED = ("#5b6874", "#9aa7b4")
RULE = ("#dfe4e9", "#2d3742")
GREY = ("#87929d", "#74808c")
PANEL = ("#f5f7f9", "#1c232b")
RUNS = (
    ("#8d59f8", "#678bff"),
    ("#924400", "#e98c4b"),
    ("#429ea5", "#8cf5d1"),
    ("#2f0f82", "#7e63a0"),
    ("#11668e", "#56bdcc"),
    ("#4d1e1a", "#c94235"),
    ("#d17611", "#fcd40a"),
)
"""The colours of runs, the best run first."""
COLOURS = (PAPER, INK, MUTED, RULE, GREY, *RUNS)
"""All that charts have."""
_FORMS = (
    ("o", "-", '<circle cx="6" cy="6" r="5"/>'),
    ("s", "--", '<path d="M1 1h10v10H1z"/>'),
    ("^", ":", '<path d="M6 0l6 11H0z"/>'),
    ("D", "-.", '<path d="M6 0l6 6-6 6-6-6z"/>'),
)
"""Mark, stroke and key of the first seven runs, of the next seven and so on."""
_LEGEND_ROW, _LEGEND_LETTERS = 17, 54
_FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
_RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "recsys",  # the same numbers give the same bytes
    "text.parse_math": False,  # a run may be called $a_1$
    "font.size": 12,
    "text.color": INK[0],
    "axes.edgecolor": RULE[0],
    "axes.labelcolor": MUTED[0],
    "axes.labelsize": 11,
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "figure.facecolor": "none",
    "grid.color": RULE[0],
    "grid.linewidth": 1,
    "xtick.color": MUTED[0],
    "ytick.color": MUTED[0],
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 12,
    "legend.handlelength": 2,
}


class Style(NamedTuple):
    """How a run is drawn everywhere on a page."""

    colour: str = GREY[0]
    """On light ground."""
    form: int = 0
    """0 to 3: its mark and the stroke of its lines."""

    @property
    def key(self) -> str:
        """Its mark as SVG, to stand before a name in a table."""
        mark = _FORMS[self.form][2].replace("/>", f' fill="{self.colour}"/>')
        return f'<svg viewBox="0 0 12 12" width="12" height="12" aria-hidden="true">{mark}</svg>'


def styles_by_merit(count: int) -> list[Style]:
    """Give each of ``count`` runs a style of its own, the best first; after 28 the others are grey.

    >>> styles_by_merit(8)[7], styles_by_merit(29)[28] == Style()
    (Style(colour='#8d59f8', form=1), True)
    """
    styles = [Style(light, form) for form in range(len(_FORMS)) for light, _ in RUNS]
    return (styles + [Style()] * count)[:count]


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart with its numbers as a table."""

    name: str
    """The name of its file, without extension."""
    title: str
    caption: str
    svg: str
    """The chart as it stands in a page."""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    """Its numbers, each row with its heading first; empty if the page has them in another table."""

    @property
    def file(self) -> str:
        """The content of an SVG file: on white."""
        ground = f'<rect width="100%" height="100%" fill="{PAPER[0]}"/>'
        return re.sub(r"(<svg[^>]*>)", rf"\1{ground}", self.svg, count=1)


class Series(NamedTuple):
    """Points of one run: a line of a chart, or a row of a forest plot, which has one point."""

    label: str
    """Its name; not in the legend if empty."""
    xs: Sequence[float]
    """Ascending; in a forest plot, the means."""
    ys: Sequence[float]
    style: Style
    strong: bool = False
    lows: Sequence[float] = ()
    """The lower ends of the intervals of the points; empty if they have none."""
    highs: Sequence[float] = ()
    text: str = ""
    """In a forest plot, the numbers at the right."""
    hollow: bool = False
    """In a forest plot: is its mark a ring, as that of the reference?"""


def new_axes(x: str, y: str = "", height: int = 250) -> Axes:
    """Return the axes of a new chart, with the titles of both; that of y stands on top."""
    with rc_context(_RC):
        size = (WIDTH / 72, height / 72)  # a point of matplotlib's is a pixel of the SVG
        axes = Figure(figsize=size, layout="constrained").add_subplot()
        axes.set_xlabel(x)
        axes.set_title(y, loc="left", size=11, color=MUTED[0])
    return axes


def add_lines(axes: Axes, lines: Sequence[Series]) -> None:
    """Draw lines, the first on top of the others; intervals are bands."""
    for number, line in enumerate(lines):
        marker, stroke, _ = _FORMS[line.style.form]
        colour, order = line.style.colour, 3 + len(lines) - number
        if line.lows:
            band: Any = {"alpha": 0.13, "linewidth": 0, "zorder": order}
            axes.fill_between(line.xs, line.lows, line.highs, color=colour, **band)
        axes.plot(
            line.xs,
            line.ys,
            label=_in_legend(line.label),
            color=colour,
            linestyle=stroke,
            linewidth=3 if line.strong else 2,
            marker=marker if len(line.xs) <= 40 else "",
            markersize=7 if line.strong else 6,
            markeredgecolor=PAPER[0],
            zorder=order,
        )


def add_ranges(axes: Axes, lines: Sequence[Series], names: Sequence[str]) -> None:
    """Draw the points of lines one below the other, at named places, with horizontal intervals."""
    for number, line in enumerate(lines):
        places = [x + 0.16 * (number - (len(lines) - 1) / 2) for x in line.xs]
        colour, marker = line.style.colour, _FORMS[line.style.form][0]
        axes.hlines(places, line.lows, line.highs, colour, linewidth=2)
        marks: Any = {"linestyle": "none", "marker": marker, "markersize": 6}
        axes.plot(line.ys, places, label=_in_legend(line.label), color=colour, **marks)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def forest(
    name: str, title: str, caption: str, rows: Sequence[Series], x: str, line: float | None = None
) -> Chart:
    """Draw rows from top to bottom: the label and the numbers, below them mean and interval.

    Args:
        name: see `chart`.
        title: see `chart`.
        caption: see `chart`.
        rows: the rows, the best first; their label and text must fit one line of the chart.
        x: the title of the axis.
        line: a value that has a vertical line, such as the mean of the reference.
    """
    axes = new_axes(x, height=42 + 40 * len(rows))
    if line is not None:
        axes.axvline(line, color=MUTED[0], linestyle=(0, (4, 3)), linewidth=1)
    for place, row in enumerate(rows):
        colour, marker = row.style.colour, _FORMS[row.style.form][0]
        face, edge = (PAPER[0], colour) if row.hollow else (colour, PAPER[0])
        axes.hlines(place, row.lows, row.highs, colour, linewidth=3)
        axes.plot(
            row.xs,
            [place],
            marker=marker,
            color=colour,
            markersize=9,
            markerfacecolor=face,
            markeredgecolor=edge,
            markeredgewidth=1.5 + row.hollow,
        )
        room = int((WIDTH - 7 * len(row.text)) / 7.5) - 1
        for side, words in (("left", shortened(row.label, room)), ("right", row.text)):
            axes.text(
                float(side == "right"),
                place - 0.27,
                words,
                ha=side,
                va="bottom",
                weight="bold" if row.strong else "normal",
                size=12,
                color=INK[0],
                transform=axes.get_yaxis_transform(),
                bbox={"facecolor": PAPER[0], "edgecolor": "none", "pad": 1},
                parse_math=False,
            )
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.6, -0.85)
    return chart(axes, name, title, caption)


def chart(
    axes: Axes,
    name: str,
    title: str,
    caption: str,
    head: Sequence[str] = (),
    rows: Sequence[Sequence[str]] = (),
) -> Chart:
    """Finish a chart: the legend below it, and its numbers.

    Args:
        axes: its axes, with all that was drawn.
        name: the name of its file, without extension.
        title: what it shows, over it and for those who cannot see it.
        caption: how to read it, below it.
        head: the head of the table of its numbers.
        rows: the numbers; the first cell of a row is its heading.
    """
    figure, buffer = axes.get_figure(), io.StringIO()
    assert isinstance(figure, Figure)  # noqa: S101 - not part of another
    handles, labels = axes.get_legend_handles_labels()
    with rc_context(_RC), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # a browser has other fonts
        if labels:
            columns = 2 if max(map(cell_len, labels)) <= _LEGEND_LETTERS // 2 - 4 else 1
            more = _LEGEND_ROW * -(-len(labels) // columns)
            figure.set_figheight(figure.get_figheight() + more / 72)
            figure.legend(handles, labels, loc="outside lower left", ncols=columns)
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    svg = _clean(buffer.getvalue(), name, printable(title))
    return Chart(name, title, caption, svg, head, rows)


def draw_learning_curve(curve: Curve, path: Path) -> None:
    """Write validation NDCG@10 and, in grey, training loss by epoch, as an SVG file.

    An epoch of a mean of models has no training loss: only its validation is marked.
    """
    epochs = dict(enumerate(curve.epochs, 1))
    if curve.start:
        epochs = {0: curve.start, **epochs}
    ndcg = {epoch: metrics[MONITOR] for epoch, metrics in epochs.items() if MONITOR in metrics}
    axes = new_axes("epoch", "NDCG@10 on validation; grey: training loss")
    losses = [metrics.get("train/loss", math.nan) for metrics in curve.epochs]
    if not all(map(math.isnan, losses)):
        second = axes.twinx()
        second.plot(range(1, len(losses) + 1), losses, color=GREY[0])
        second.tick_params(colors=GREY[0], length=0)
        second.spines[:].set_visible(False)
    add_lines(axes, [Series("", [*ndcg], [*ndcg.values()], Style(RUNS[0][0]), strong=True)])
    if curve.best_epoch is not None:
        axes.axvline(curve.best_epoch, color=MUTED[0], linestyle=(0, (4, 3)), linewidth=1)
    axes.locator_params("x", integer=True)
    path.write_text(chart(axes, path.stem, "Learning curve", "").file, encoding="utf-8")


def _in_legend(label: str) -> str:
    """Return a name as the legend has it; matplotlib leaves out those that begin with _."""
    return f" {shortened(label, _LEGEND_LETTERS)}" if label else "_"


def shortened(text: str, cells: int) -> str:
    """Return a text of so many columns at most, without its middle if it is longer.

    >>> shortened("a rather long name", 11), shortened("short", 11)
    ('a rat… name', 'short')
    """
    text = printable(text)
    if cell_len(text) <= cells:
        return text
    half = (cells - 1) // 2
    return f"{set_cell_size(text, half)}…{set_cell_size(text[::-1], half)[::-1]}"


def _clean(svg: str, name: str, title: str) -> str:
    """Return what matplotlib wrote as a part of a page.

    It has no prologue, metadata, style sheet or clips; its styles are attributes; ids, which a page
    has once, begin with the name of the chart.
    """
    head = r"^.*?(?=<svg)|<metadata>.*?</metadata>|<defs>\s*<(?:style|clipPath).*?</defs>"
    svg = re.sub(head + r'| clip-path="[^"]*"', "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'\bid="|(?<=href=")#', lambda match: f"{match[0]}{name}-", svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    svg = re.sub(r' style="([^"]*)"', lambda match: _attributes(match[1]), svg)
    svg = re.sub(r' d="[^"]*"', lambda match: re.sub(r"(\.\d)\d+", r"\1", match[0]), svg)
    size = re.search(r'viewBox="0 0 (\S+) (\S+)"', svg)
    assert size is not None  # noqa: S101
    words = f'width="{size[1]}" height="{size[2]}" role="img" aria-label="{escape(title)}"'
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*" height="[^"]*"', r"\1", svg, count=1)
    return svg.replace("<svg", f'<svg {words} font-family="{_FONT}"', 1)


def _attributes(style: str) -> str:
    """Return a style as attributes; the font is that of the whole chart."""
    pairs = (rule.split(": ", 1) for rule in style.split("; ") if "font-family" not in rule)
    return "".join(f' {name}="{value}"' for name, value in pairs)
