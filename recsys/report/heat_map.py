"""A heat map of attention weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from recsys.errors import printable

COLOURS = "GnBu"
EXPONENT = 0.5
"""A weight w has the colour of w ** EXPONENT, which makes differences of small weights visible."""

_CELL = 0.3
"""The side of a cell in inches."""
_SHORTEST_BAR = 1.8
"""The least height of the colour bar in inches."""
_MOST_NUMBERS = 2_500
"""The largest number of cells with numbers: more are unreadable and slow to draw."""
_LONGEST = 32
"""The largest number of characters of a label."""


def draw_heat_map(
    weights: ArrayLike,
    rows: Sequence[str],
    columns: Sequence[str],
    *,
    title: str = "",
    row_axis: str = "",
    column_axis: str = "",
) -> Figure:
    """Draw weights from 0 to 1, [rows, columns], in one colour scale for all maps.

    Cells have the same size in every map, and labels are outside the figure: save it with
    ``bbox_inches="tight"``, as notebooks do. Labels are truncated to 32 characters. A weight
    that rounds to .00 has no number.
    """
    values = np.asarray(weights)
    height, width = (_CELL * count for count in values.shape)
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    image = axes.imshow(values, cmap=COLOURS, norm=PowerNorm(EXPONENT, 0, 1), aspect="auto")
    axes.set_title(printable(title), fontsize=11, loc="left", parse_math=False)
    axes.set_xlabel(column_axis, fontsize=9, loc="left")
    axes.set_ylabel(row_axis, fontsize=9, loc="top")
    _label(axes, rows, columns)
    if values.size <= _MOST_NUMBERS:
        _write_numbers(axes, values)
    tall = max(height, _SHORTEST_BAR) / height
    scale = figure.add_axes((1 + 0.15 / width, 1 - tall, 0.15 / width, tall))
    colour_bar = figure.colorbar(image, cax=scale, ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 1])
    colour_bar.outline.set_visible(False)
    colour_bar.ax.set_yticklabels(["0", ".01", ".05", ".10", ".25", ".50", ".75", "1"], fontsize=7)
    colour_bar.ax.tick_params(length=2)
    colour_bar.set_label("weight", fontsize=8)
    return figure


def decimals(weight: float) -> str:
    """Format a weight with two decimals; empty if it rounds to 0.

    >>> decimals(0.126), decimals(1), decimals(0.004)
    ('.13', '1', '')
    """
    return "" if weight < 0.005 else f"{weight:.2f}".lstrip("0").removesuffix(".00") or "1"


def _label(axes: Axes, rows: Sequence[str], columns: Sequence[str]) -> None:
    """Add the names of rows and columns, and white lines between the cells."""
    for axis, labels in ((axes.yaxis, rows), (axes.xaxis, columns)):
        # Names are text, not mathematics, even with a $ in them.
        axis.set_ticks(range(len(labels)), labels=[_short(label) for label in labels])
        for text in axis.get_ticklabels():
            text.set(fontsize=8, parse_math=False)
        axis.set_ticks(np.arange(len(labels) + 1) - 0.5, minor=True)
    axes.tick_params(axis="x", rotation=90)
    axes.tick_params(which="both", length=0)
    axes.grid(which="minor", color="white", linewidth=1)
    axes.spines[:].set_visible(False)


def _write_numbers(axes: Axes, values: NDArray[np.floating]) -> None:
    for (row, column), weight in np.ndenumerate(values):
        colour = "white" if weight > 0.45 else "black"
        axes.text(column, row, decimals(weight), ha="center", va="center", fontsize=6, color=colour)


def _short(label: str) -> str:
    label = printable(label)
    return label if len(label) <= _LONGEST else label[: _LONGEST - 1] + "…"
