"""Pictures of a comparison: by k, by epoch, by user, by segment and against the training time."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator

from recsys.comparison.formats import title
from recsys.comparison.seeds import ModelRuns
from recsys.comparison.table import Comparison
from recsys.evaluation.segments import SEGMENTS
from recsys.tracking.artifacts import FIT_SECONDS

CUTOFFS = (1, 2, 3, 5, 10, 20, 50, 100)
"""The k of recall@k and NDCG@k that are drawn."""

Curves = Mapping[str, Mapping[int, float]]
"""NDCG@10 on the validation targets, by run id and epoch."""

_WIDTH = 7.0
"""The width of a picture in inches."""
_MOST_POINTS = 2_000
"""The number of users that are drawn in a curve, evenly chosen: more would not be visible."""


def draw_by_k(comparison: Comparison, kind: str) -> Figure:
    """Draw one metric of every run by k, with the 95% intervals as bands.

    Args:
        comparison: the runs.
        kind: ``recall`` or ``ndcg``.
    """
    figure, axes = _axes(3.8)
    names = [f"{kind}_at_{k}" for k in CUTOFFS]
    for row, model in zip(comparison.rows, comparison.models, strict=True):
        intervals = model.intervals(names).values()
        means, lows, highs = zip(*intervals, strict=True)
        (line,) = axes.plot(CUTOFFS, means, marker=".", label=row.name)
        axes.fill_between(CUTOFFS, lows, highs, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xscale="log", xlabel="k", ylabel=_label(f"{kind}_at_k"))
    axes.set_ylim(bottom=0)
    axes.set_xticks(CUTOFFS, [str(k) for k in CUTOFFS])
    axes.minorticks_off()
    _legend(axes)
    return figure


def draw_curves(comparison: Comparison, curves: Curves) -> Figure:
    """Draw NDCG@10 on the validation targets by epoch, for the runs that logged it."""
    figure, axes = _axes(3.6)
    for number, (row, model) in enumerate(zip(comparison.rows, comparison.models, strict=True)):
        # A run with a count ensemble has two rows, but one curve.
        if (curve := curves.get(row.run_id)) and not model.first.model_alone:
            epochs = sorted(curve)
            axes.plot(
                epochs, [curve[e] for e in epochs], color=f"C{number}", marker=".", label=row.name
            )
    axes.set(xlabel="epoch", ylabel="NDCG@10 on validation")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _legend(axes)
    return figure


def draw_differences(comparison: Comparison, metric: str = "ndcg_at_10") -> Figure:
    """Draw the difference of every user to the first run, in ascending order.

    Args:
        comparison: two runs or more.
        metric: a metric of ranks.
    """
    figure, axes = _axes(3.6)
    first = comparison.models[0].values(metric)
    for number, row in enumerate(comparison.rows):
        if not row.differences:  # the first run, and those of other targets
            continue
        differences = np.sort(comparison.models[number].values(metric) - first)
        better, worse = (differences > 0).mean(), (differences < 0).mean()
        chosen = np.linspace(0, len(differences) - 1, min(len(differences), _MOST_POINTS)).round()
        axes.plot(
            chosen / max(len(differences) - 1, 1),
            differences[chosen.astype(np.int64)],
            color=f"C{number}",
            label=f"{row.name}: better for {better:.0%} of users, worse for {worse:.0%}",
        )
    axes.axhline(0, color="#5c6b78", linewidth=0.8)
    axes.set(
        xlabel="users, in the order of their difference",
        ylabel=f"{_label(metric)} minus that of\n{comparison.rows[0].name}",
        xlim=(0, 1),
    )
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    _legend(axes)
    return figure


def draw_costs(comparison: Comparison, metric: str = "ndcg_at_10") -> Figure:
    """Draw a metric of the ranks against the seconds of fitting, for the runs that logged them."""
    figure, axes = _axes(3.6)
    for number, (row, model) in enumerate(zip(comparison.rows, comparison.models, strict=True)):
        if (seconds := row.costs.get(FIT_SECONDS)) is None:
            continue
        mean, low, high = model.intervals([metric])[metric]
        axes.errorbar(
            max(seconds, 0.01),
            mean,
            yerr=[[mean - low], [high - mean]],
            fmt="o",
            color=f"C{number}",
            label=row.name,
        )
    axes.set(xscale="log", xlabel="seconds to fit", ylabel=_label(metric))
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def draw_segments(comparison: Comparison, metric: str = "ndcg_at_10") -> Figure | None:
    """Draw a metric of every run by segment; None if the rank tables have no segments.

    Args:
        comparison: the runs.
        metric: a metric of ranks.
    """
    frame = comparison.models[0].first.ranks.frame
    shown = {
        name: words
        for name, words in SEGMENTS.items()
        if name in frame.columns and frame[name].drop_nulls().n_unique() > 1
    }
    if not shown:
        return None
    lines = (len(shown) + 1) // 2
    figure = Figure(figsize=(2 * _WIDTH, 3.0 * lines), layout="constrained")
    panels = figure.subplots(lines, 2, squeeze=False).ravel()
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    for axes, (column, words) in zip(panels, shown.items(), strict=False):
        segments = [
            segment
            for segment in frame[column].drop_nulls().unique().sort().to_list()
            if all(_has(model, column, segment) for model in comparison.models)
        ]
        for number, (row, model) in enumerate(zip(comparison.rows, comparison.models, strict=True)):
            intervals = [
                model.where(column, segment).intervals([metric])[metric] for segment in segments
            ]
            means, lows, highs = map(np.array, zip(*intervals, strict=True))
            shift = 0.5 * (number - (len(comparison.rows) - 1) / 2) / len(comparison.rows)
            axes.errorbar(
                np.arange(len(segments)) + shift,
                means,
                yerr=[means - lows, highs - means],
                fmt=".",
                label=row.name,
            )
        axes.set_xticks(range(len(segments)), [str(segment) for segment in segments])
        axes.set_xlabel(words)
        axes.set_ylabel(_label(metric))
        axes.set_ylim(bottom=0)
        _style(axes)
    handles, names = panels[0].get_legend_handles_labels()
    legend = figure.legend(
        handles, names, loc="outside upper center", ncols=min(len(names), 4), frameon=False
    )
    _as_text(legend)
    return figure


def _has(model: ModelRuns, column: str, segment: object) -> bool:
    """Does the run have targets in that segment?"""
    frame = model.first.ranks.frame
    return column in frame.columns and bool((frame[column] == segment).any())


def _axes(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    _style(axes)
    return figure, axes


def _style(axes: Axes) -> None:
    axes.grid(color="#dde3e8", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(axes: Axes) -> None:
    _as_text(axes.legend(fontsize=8, frameon=False))


def _as_text(legend: Legend) -> None:
    """Show names as text, not as mathematics, even if they contain a $."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def _label(metric: str) -> str:
    return title(metric).replace("ndcg", "NDCG")
