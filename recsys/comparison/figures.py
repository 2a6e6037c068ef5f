"""Pictures of a comparison: by k, over the epochs, user by user, and against what it cost."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import MaxNLocator

from recsys.comparison.compare import Comparison
from recsys.comparison.seeds import ModelRuns
from recsys.evaluation.segments import SEGMENTS

CUTOFFS = (1, 2, 3, 5, 10, 20, 50, 100)
"""The k of recall@k and NDCG@k that are drawn."""

Curves = Mapping[str, Mapping[int, float]]
"""Of runs by their id: NDCG@10 on the validation targets, by epoch."""

_WIDTH = 7.0
"""Of a picture, in inches."""
_MOST_POINTS = 2_000
"""Users of a curve that are drawn, evenly chosen: more are not to be seen."""


def draw_by_k(comparison: Comparison, kind: str) -> Figure:
    """One metric of every run by k, the 95% intervals as bands.

    Args:
        comparison: the runs.
        kind: ``recall`` or ``ndcg``.
    """
    figure, axes = _axes(3.8)
    names = [f"{kind}_at_{k}" for k in CUTOFFS]
    for row, model in zip(comparison.rows, comparison.models, strict=True):
        intervals = model.figures(names).values()
        means, lows, highs = zip(*intervals, strict=True)
        (line,) = axes.plot(CUTOFFS, means, marker=".", label=row.name)
        axes.fill_between(CUTOFFS, lows, highs, color=line.get_color(), alpha=0.15, linewidth=0)
    axes.set(xscale="log", xlabel="k", ylabel=_title(f"{kind}_at_k"))
    axes.set_ylim(bottom=0)
    axes.set_xticks(CUTOFFS, [str(k) for k in CUTOFFS])
    axes.minorticks_off()
    _legend(axes)
    return figure


def draw_curves(comparison: Comparison, curves: Curves) -> Figure:
    """NDCG@10 on the validation targets over the epochs, of the runs that were trained."""
    figure, axes = _axes(3.6)
    for number, (row, model) in enumerate(zip(comparison.rows, comparison.models, strict=True)):
        # A run with counts has two rows, and its model one curve.
        if (curve := curves.get(row.run_id)) and not model.first.alone:
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
    """Each user's difference to the first run, the worst first: whom a run serves better.

    Args:
        comparison: two runs or more.
        metric: of the ranks.
    """
    figure, axes = _axes(3.6)
    first = comparison.models[0].values(metric)
    for number, row in enumerate(comparison.rows):
        if not row.differences:  # the first, and those of other targets
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
        ylabel=f"{_title(metric)} less that of\n{comparison.rows[0].name}",
        xlim=(0, 1),
    )
    axes.xaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    _legend(axes)
    return figure


def draw_costs(comparison: Comparison, metric: str = "ndcg_at_10") -> Figure:
    """Quality against the seconds that fitting took, of the runs that logged them."""
    figure, axes = _axes(3.6)
    for number, row in enumerate(comparison.rows):
        if (seconds := row.costs.get("fit_seconds")) is None or metric not in row.figures:
            continue
        mean, low, high = row.figures[metric]
        axes.errorbar(
            max(seconds, 0.01),
            mean,
            yerr=[[mean - low], [high - mean]],
            fmt="o",
            color=f"C{number}",
            label=row.name,
        )
    axes.set(xscale="log", xlabel="seconds to fit", ylabel=_title(metric))
    axes.set_ylim(bottom=0)
    _legend(axes)
    return figure


def draw_segments(comparison: Comparison, metric: str = "ndcg_at_10") -> Figure | None:
    """A metric of every run by kinds of targets and users; None where the tables have no kinds.

    Args:
        comparison: the runs.
        metric: of the ranks.
    """
    frame = comparison.models[0].first.ranks.frame
    told = {name: words for name, words in SEGMENTS.items() if name in frame.columns}
    told = {name: words for name, words in told.items() if frame[name].drop_nulls().n_unique() > 1}
    if not told:
        return None
    lines = (len(told) + 1) // 2
    figure = Figure(figsize=(2 * _WIDTH, 3.0 * lines), layout="constrained")
    panels = figure.subplots(lines, 2, squeeze=False).ravel()
    for axes in panels[len(told) :]:
        axes.set_axis_off()
    for axes, (column, words) in zip(panels, told.items(), strict=False):
        segments = [
            segment
            for segment in frame[column].drop_nulls().unique().sort().to_list()
            if all(_has(model, column, segment) for model in comparison.models)
        ]
        for number, (row, model) in enumerate(zip(comparison.rows, comparison.models, strict=True)):
            figures = [
                model.where(column, segment).figures([metric])[metric] for segment in segments
            ]
            means, lows, highs = map(np.array, zip(*figures, strict=True))
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
        axes.set_ylabel(_title(metric))
        axes.set_ylim(bottom=0)
        _style(axes)
    handles, names = panels[0].get_legend_handles_labels()
    legend = figure.legend(
        handles, names, loc="outside upper center", ncols=min(len(names), 4), frameon=False
    )
    _as_text(legend)
    return figure


def _has(model: ModelRuns, column: str, segment: object) -> bool:
    """Has the run any target of that kind?"""
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
    """Names are text, not mathematics, even with a $ in them."""
    for text in legend.get_texts():
        text.set_parse_math(False)


def _title(metric: str) -> str:
    return metric.replace("_at_", "@").replace("ndcg", "NDCG")
