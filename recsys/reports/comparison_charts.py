"""The charts of a comparison: intervals and differences, then epochs, k, segments, users, costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.ticker import LogLocator, MaxNLocator, PercentFormatter, StrMethodFormatter

from recsys.evaluation.metrics import Interval
from recsys.evaluation.segments import SEGMENTS
from recsys.reports.charts import (
    Chart,
    ForestRow,
    Line,
    Style,
    add_forest,
    add_lines,
    add_ranges,
    chart,
    forest_height,
    new_axes,
    styles_by_merit,
)
from recsys.reports.statistics import ModelRuns
from recsys.reports.tables import (
    ComparedRun,
    Comparison,
    decimals,
    heading,
    in_brackets,
    with_interval,
)
from recsys.tracking.artifacts import FIT_SECONDS

HEADLINE = "ndcg_at_10"
"""The metric that runs are ordered by, unless a comparison has other metrics only."""
Curves = Mapping[str, Mapping[int, float]]
"""NDCG@10 on the validation targets, by run id and epoch."""
_CUTOFFS = (1, 2, 3, 5, 10, 20, 50, 100)
"""The k of recall@k and NDCG@k that are drawn."""
_MOST_USERS = 240
"""The number of users that are drawn in a curve, evenly chosen: more would not be visible."""
_MOST_RUNS = 5
"""The number of runs in one chart of segments: with more, intervals cannot be told apart."""
_EXPLAINED = {
    "ndcg": "is 1 where the held-out item is the first of the list, less the lower it stands "
    "(.63 for the second, .39 for the fifth), and 0 where it is not among the first {k}.",
    "recall": "is the share of held-out items that are among the first {k} of the list.",
    "mrr": "is 1 where the held-out item is the first of the list, ½ for the second, ⅓ for the "
    "third, and so on.",
}
_SEGMENT_TITLES = {
    "history": "By length of the history",
    "customer": "Cold and warm users",
    "purchase": "New items and repeats",
    "popularity_decile": "By popularity of the item",
    "gap": "By time since the last item",
}


# --- The order of merit --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RankedRun:
    """A run at its place in the order of merit."""

    row: ComparedRun
    model: ModelRuns
    interval: Interval
    """The headline metric."""
    style: Style
    is_best: bool
    """Is it the best of several?"""
    is_reference: bool
    """Is it the first of several, which the paired tests compare the others with?"""


def headline(comparison: Comparison) -> str:
    """Return the metric that the runs are ordered by.

    It is NDCG@10, or the last metric with a value per user of a comparison without NDCG@10.
    """
    tested = [name for name in comparison.metrics if name in comparison.rows[0].intervals]
    return HEADLINE if HEADLINE in tested or not tested else tested[-1]


def by_merit(comparison: Comparison) -> list[RankedRun]:
    """Return the runs, the best on the headline metric first; equal ones keep their order."""
    metric, several = headline(comparison), len(comparison.rows) > 1
    runs = [
        (row, model, row.intervals.get(metric) or model.intervals([metric])[metric])
        for row, model in zip(comparison.rows, comparison.models, strict=True)
    ]
    order = sorted(range(len(runs)), key=lambda number: -runs[number][2].mean)
    styles = styles_by_merit(len(runs))
    return [
        RankedRun(*runs[number], styles[place], several and place == 0, several and number == 0)
        for place, number in enumerate(order)
    ]


# --- Charts --------------------------------------------------------------------------------------


def drawn(*charts: Chart | None) -> list[Chart]:
    """Return the charts without those that have nothing to show."""
    return [drawing for drawing in charts if drawing is not None]


def draw_intervals(comparison: Comparison) -> Chart:
    """Draw the headline metric of every run with its interval, the best on top."""
    metric, runs = headline(comparison), by_merit(comparison)
    words = heading(metric)
    reference = next((run.interval.mean for run in runs if run.is_reference), None)
    name, _, k = metric.partition("_at_")
    caption = f"{words} {_EXPLAINED[name].format(k=k)} " if name in _EXPLAINED else ""
    caption += "Means over users with 95% intervals"
    if reference is not None:
        caption += ", the leading run on top. The hollow mark and the broken line are the "
        caption += "reference: the run that all others are tested against"
    axes = new_axes(words, height=forest_height(len(runs)))
    rows = [
        ForestRow(
            run.row.label + " · reference" * run.is_reference,
            run.interval,
            with_interval(run.interval),
            run.style,
            strong=run.is_best,
            hollow=run.is_reference,
        )
        for run in runs
    ]
    add_forest(axes, rows, reference)
    numbers = [
        (run.row.label, decimals(run.interval.mean), in_brackets(*run.interval[1:])) for run in runs
    ]
    head = ("run", words, "95% interval")
    return chart(axes, "intervals", words, f"{caption}.", head, numbers)


def draw_differences(comparison: Comparison) -> Chart | None:
    """Draw the paired difference of every run to the first; None if none was tested."""
    metric, first = headline(comparison), comparison.rows[0].name
    rows, numbers = [], []
    for run in by_merit(comparison):
        if (result := run.row.differences.get(metric)) is None:
            continue
        interval = in_brackets(result.low, result.high, "+")
        change, p_value = decimals(result.difference, "+"), decimals(result.p_value)
        numbers.append((run.row.label, change, interval, p_value))
        text, ends = f"{change}, p = {p_value}", Interval(*result[:3])
        rows.append(ForestRow(run.row.label, ends, text, run.style, strong=run.is_best))
    if not rows:
        return None
    axes = new_axes(f"{heading(metric)} minus that of {first}", height=forest_height(len(rows)))
    add_forest(axes, rows, 0.0)
    return chart(
        axes,
        "differences",
        f"Difference to {first}",
        "The same users under both runs: paired differences with 95% intervals and corrected "
        "p-values. An interval that crosses the broken line may be chance.",
        ("run", "difference", "95% interval", "p-value"),
        numbers,
    )


def draw_curves(comparison: Comparison, curves: Curves) -> Chart | None:
    """Draw NDCG@10 on the validation targets by epoch; None if no run has a learning curve."""
    lines = [
        Line(run.row.label, list(curve), list(curve.values()), run.style, run.is_best)
        for run in by_merit(comparison)
        # A run with a count ensemble has two rows, but one curve.
        if not run.model.first.model_alone
        and (curve := dict(sorted(curves.get(run.row.run_id, {}).items())))
    ]
    if not lines:
        return None
    axes = new_axes("epoch", "NDCG@10 on validation")
    add_lines(axes, lines)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    epochs = sorted({epoch for line in lines for epoch in line.xs})
    values = [dict(zip(line.xs, map(decimals, line.ys), strict=True)) for line in lines]
    return chart(
        axes,
        "learning_curves",
        "Learning curves",
        "NDCG@10 on the validation targets after each pass over the training data (epoch). The "
        "best epoch is kept.",
        ("epoch", *(line.label for line in lines)),
        [(f"{epoch:g}", *(curve.get(epoch, "") for curve in values)) for epoch in epochs],
    )


def draw_by_k(comparison: Comparison, kind: str) -> Chart:
    """Draw one metric of every run by k, with bands for the best run and the reference.

    Args:
        comparison: the runs.
        kind: ``recall`` or ``ndcg``.
    """
    names, words = [f"{kind}_at_{k}" for k in _CUTOFFS], heading(f"{kind}_at_k")
    lines, columns = [], []
    for place, run in enumerate(by_merit(comparison)):
        intervals = run.model.intervals(names).values()
        means, lows, highs = zip(*intervals, strict=True)
        ends = (lows, highs) if place == 0 or run.is_reference else ((), ())
        lines.append(Line(run.row.label, _CUTOFFS, means, run.style, run.is_best, *ends))
        columns.append(list(map(with_interval, intervals)))
    axes = new_axes("k", words)
    add_lines(axes, lines)
    axes.set_xscale("log")
    axes.set_xticks(_CUTOFFS, [str(k) for k in _CUTOFFS])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    caption = "Bands: 95% intervals over users"
    caption += ", of the leading run and of the reference." if len(lines) > 1 else "."
    if kind == "recall":
        caption = "The share of targets among the k best. " + caption
    return chart(
        axes,
        f"{kind}_by_k",
        f"{words.removesuffix('@k')} by k",
        caption,
        ("metric", *(line.label for line in lines)),
        list(zip(map(heading, names), *columns, strict=True)),
    )


def draw_segments(comparison: Comparison, columns: Sequence[str] = tuple(SEGMENTS)) -> list[Chart]:
    """Draw NDCG@10 of the best runs and the reference by segment, one chart for each kind.

    Kinds that the rank tables lack, or of which all targets have the same value, have no chart.

    Args:
        comparison: the runs.
        columns: the kinds of segments, keys of `SEGMENTS`.
    """
    runs = by_merit(comparison)
    best = runs[:_MOST_RUNS]
    reference = [run for run in runs if run.is_reference and run not in best]
    shown = best[: _MOST_RUNS - len(reference)] + reference
    return drawn(*(_draw_segment(column, shown, len(runs)) for column in columns))


def _draw_segment(column: str, runs: Sequence[RankedRun], of: int) -> Chart | None:
    frames = [run.model.first.ranks.frame for run in runs]
    if any(column not in frame.columns for frame in frames):
        return None
    segments = [
        segment
        for segment in frames[0][column].drop_nulls().unique().sort()
        if all((frame[column] == segment).any() for frame in frames)
    ]
    if len(segments) < 2:
        return None
    lines, columns = [], []
    for run in runs:
        intervals = [
            run.model.where(column, segment).intervals([HEADLINE])[HEADLINE] for segment in segments
        ]
        means, lows, highs = zip(*intervals, strict=True)
        places = range(len(segments))
        lines.append(Line(run.row.label, places, means, run.style, run.is_best, lows, highs))
        columns.append(list(map(with_interval, intervals)))
    words, counts = SEGMENTS[column], [int((frames[0][column] == each).sum()) for each in segments]
    names = [f"{segment} ({count:,})" for segment, count in zip(segments, counts, strict=True)]
    axes = new_axes(heading(HEADLINE), height=45 + len(segments) * (12 + 8 * len(lines)))
    add_ranges(axes, lines, names)
    caption = f"By {words}: means and 95% intervals over the users with such held-out items. In "
    caption += "brackets: the number of targets."
    if of > len(runs):
        caption += f" {len(runs)} runs that lead, the reference among them; all: segments.csv."
    return chart(
        axes,
        f"segment_{column}",
        _SEGMENT_TITLES.get(column, words),
        caption,
        (words, *(line.label for line in lines)),
        list(zip(map(str, segments), *columns, strict=True)),
    )


def draw_users(comparison: Comparison) -> Chart | None:
    """Draw the difference of every user to the first run, ascending; None without tests."""
    metric, reference = headline(comparison), comparison.rows[0].name
    first, lines, numbers = comparison.models[0].values(metric), [], []
    for run in by_merit(comparison):
        if not run.row.differences:  # the first run, and those of other targets
            continue
        differences = np.sort(run.model.values(metric) - first)
        better, worse = (differences > 0).mean(), (differences < 0).mean()
        numbers.append((run.row.label, *(f"{s:.0%}" for s in (better, worse, 1 - better - worse))))
        last = len(differences) - 1
        users = np.linspace(0, last, min(last + 1, _MOST_USERS)).round().astype(np.int64)
        places, heights = (users / max(last, 1)).tolist(), differences[users].tolist()
        label = f"{run.row.label} +{better:.0%} −{worse:.0%}"
        lines.append(Line(label, places, heights, run.style, run.is_best))
    if not lines:
        return None
    axes = new_axes(
        "users, in the order of their difference", f"{heading(metric)} minus that of {reference}"
    )
    add_lines(axes, lines)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    return chart(
        axes,
        "users",
        "User by user",
        "A small mean difference may hide large ones. After each name: the share of users for whom "
        f"the run is better (+) and worse (−) than {reference}; for the others both are equally "
        "good.",
        ("run", "better for", "worse for", "equal for"),
        numbers,
    )


def draw_costs(comparison: Comparison) -> Chart | None:
    """Draw the headline metric against the seconds of fitting; None if one run or none has them."""
    runs = [run for run in by_merit(comparison) if FIT_SECONDS in run.row.costs]
    if len(runs) < 2:
        return None
    words = heading(headline(comparison))
    seconds = [max(run.row.costs[FIT_SECONDS], 0.01) for run in runs]
    axes = new_axes("seconds to fit", words)
    lines = [
        Line(run.row.label, [x], [mean], run.style, run.is_best, [low], [high])
        for x, run in zip(seconds, runs, strict=True)
        for mean, low, high in [run.interval]
    ]
    add_lines(axes, lines, whiskers=True)
    axes.set_xscale("log")
    axes.set_xlim(min(seconds) / 1.6, max(seconds) * 1.6)
    few = max(seconds) < 100 * min(seconds)
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,)))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.minorticks_off()
    return chart(
        axes,
        "costs",
        "Quality and cost",
        "Seconds as measured on the machine of each run, which may have run other jobs. "
        "Strokes are 95% intervals.",
        ("run", "seconds to fit", words, "95% interval"),
        [
            (
                run.row.label,
                f"{x:,.2f}",
                decimals(run.interval.mean),
                in_brackets(*run.interval[1:]),
            )
            for x, run in zip(seconds, runs, strict=True)
        ],
    )
