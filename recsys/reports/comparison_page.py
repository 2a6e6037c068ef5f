"""A comparison as a self-contained page, with pictures, CSV and LaTeX."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import polars as pl

from recsys.data.audit import Finding
from recsys.data.csv_cells import write_csv
from recsys.drawing.axes import Axis, log_axis, value_axis
from recsys.drawing.forest import ForestRow, draw_forest
from recsys.drawing.lines import Line, draw_lines
from recsys.drawing.marks import BEST, Style, key, styles_by_merit
from recsys.drawing.page import render
from recsys.drawing.picture import FULL, HALF, Picture, draw
from recsys.drawing.points import Point, draw_points
from recsys.drawing.svg import markup
from recsys.drawing.values import Values, line_values
from recsys.errors import InputError, printable
from recsys.evaluation.metrics import Interval, find_metric
from recsys.evaluation.segments import SEGMENTS
from recsys.folders.atomic import new_folder
from recsys.reports.statistics import ALPHA, ModelRuns
from recsys.reports.tables import (
    TESTS,
    ComparedRun,
    Comparison,
    decimals,
    heading,
    in_brackets,
    title,
    with_interval,
)
from recsys.tracking.artifacts import FIT_SECONDS, PARAMETERS, PEAK_MEMORY

PAGE = "comparison.html"
_FILES = re.compile(
    r"comparison\.(html|csv|tex)|segments\.csv|(intervals|differences|learning_curves|ndcg_by_k"
    r"|recall_by_k|segment_\w+|users|costs)\.svg"
)
"""The names of the files of a report; a folder with any other is left alone."""


def write_comparison_report(
    path: str | os.PathLike[str],
    comparison: Comparison,
    curves: Curves,
    findings: Sequence[Finding] = (),
) -> Path:
    """Write a folder atomically: `PAGE`, its pictures as SVG, and the table.

    The table is comparison.csv (every number) and comparison.tex (booktabs); segments.csv has the
    metrics by segment. An existing report is replaced. The same arguments give the same bytes.

    Args:
        path: the folder.
        comparison: the runs.
        curves: the learning curves of the trained runs.
        findings: the findings of the audit of the data.

    Returns:
        The page.

    Raises:
        InputError: the path holds something else, or cannot be written.
    """
    path = Path(path)
    _refuse_others(path)
    pictures = _Pictures.of(comparison, curves)
    with new_folder(path) as folder:
        for picture in (*pictures.first, *pictures.rest, *pictures.last):
            (folder / f"{picture.name}.svg").write_text(picture.file, encoding="utf-8")
        write_csv(comparison.frame(), folder / "comparison.csv")
        if (segments := _segments(comparison)) is not None:
            write_csv(segments, folder / "segments.csv")
        (folder / "comparison.tex").write_text(comparison_latex(comparison), encoding="utf-8")
        (folder / PAGE).write_text(_page(comparison, pictures, findings), encoding="utf-8")
    return path / PAGE


def _refuse_others(path: Path) -> None:
    """Refuse a path that holds anything but a comparison report, which a new one would delete."""
    if not path.exists():
        return
    foreign = [path.name]
    if path.is_dir():
        foreign = [file.name for file in path.iterdir() if not _FILES.fullmatch(file.name)]
    if foreign:
        raise InputError(
            f"{path}: exists and is left alone: {min(foreign)} is not part of a comparison report: "
            "choose another folder, or move it away"
        )


def _segments(comparison: Comparison) -> pl.DataFrame | None:
    """Return the metrics by every kind of segment; None without segments or metrics of ranks."""
    if all(find_metric(name).source != "ranks" for name in comparison.metrics):
        return None
    frames = [
        comparison.by_segment(column).select(
            pl.lit(column).alias("segment"),
            pl.col(column).cast(pl.String).alias("value"),
            pl.exclude(column),
        )
        for column in SEGMENTS
        if all(column in model.first.ranks.segments for model in comparison.models)
    ]
    return pl.concat(frames) if frames else None


class _Pictures(NamedTuple):
    """The pictures of the page, by where they stand."""

    first: list[Picture]
    """Above the table."""
    rest: list[Picture]
    """Below it, side by side."""
    last: list[Picture]
    """Below these, as wide as the page."""

    @classmethod
    def of(cls, comparison: Comparison, curves: Curves) -> _Pictures:
        """Draw a comparison."""
        first = [
            draw_intervals(comparison),
            draw_differences(comparison),
            draw_curves(comparison, curves),
        ]
        rest = [draw_by_k(comparison, "ndcg"), draw_by_k(comparison, "recall")]
        rest += draw_segments(comparison)
        return cls(_drawn(*first), rest, _drawn(draw_users(comparison), draw_costs(comparison)))


def _drawn(*pictures: Picture | None) -> list[Picture]:
    return [picture for picture in pictures if picture is not None]


def _page(comparison: Comparison, pictures: _Pictures, findings: Sequence[Finding]) -> str:
    runs = len(comparison.rows)
    few = f"By segment: {MOST_RUNS} runs that lead, the reference among them; all: segments.csv."
    return render(
        "reports/templates/comparison.html",
        title=f"{runs} run{'s' * (runs > 1)} on {comparison.dataset}",
        lead=_lead(comparison),
        table=page_table(comparison),
        first=pictures.first,
        rest=pictures.rest,
        last=pictures.last,
        few_shown=few if runs > MOST_RUNS else "",
        findings=findings,
        about=_about(comparison),
    )


def _lead(comparison: Comparison) -> str:
    """Say which run leads, by how much, and whether that may be chance; empty for a single run."""
    first, *others = by_merit(comparison)
    if not others:
        return ""
    second, metric = others[0], headline(comparison)
    figures = f"{heading(metric)} {with_interval(first.interval)}; {second.label} "
    figures += f"follows at {decimals(second.interval.mean)}"
    if not first.model.first.shares_targets(second.model.first):
        return f"{first.label} leads: {figures}, on other targets."
    tested = [run for run in (first, second) if metric in run.row.differences]
    if len(tested) == 1:  # the other is the reference
        p_value = tested[0].row.differences[metric].p_value
    else:
        p_value = first.model.test(
            second.model, metric, method=comparison.method, across_protocols=True
        ).p_value
    if p_value < ALPHA:
        return f"{first.label} is best: {figures} (p = {decimals(p_value)})."
    return f"{first.label} leads: {figures}, which may be chance (p = {decimals(p_value)})."


def _about(comparison: Comparison) -> Mapping[str, str]:
    users, targets = f"{comparison.users:,}", f"{comparison.targets:,}"
    about = {
        "data": comparison.dataset,
        "protocol": comparison.protocol,
        "evaluated on": f"{targets} targets of {users} users",
        "intervals": "95%, percentile bootstrap over users",
    }
    if len(comparison.rows) > 1:
        about["tests"] = (
            f"{TESTS[comparison.method]} over users against {comparison.rows[0].name}, "
            "Holm-corrected"
        )
    return about


HEADLINE = "ndcg_at_10"
"""The metric that runs are ordered by, unless a comparison has other metrics only."""


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

    @property
    def label(self) -> str:
        """The name of the run in pictures."""
        seeds = f" ({self.row.seeds} seeds)" if self.row.seeds > 1 else ""
        return self.row.name + seeds


def headline(comparison: Comparison) -> str:
    """Return the metric that the runs are ordered by.

    It is NDCG@10, or the last metric with a value per user of a comparison without NDCG@10.
    """
    tested = [name for name in comparison.metrics if name in comparison.rows[0].intervals]
    return HEADLINE if HEADLINE in tested or not tested else tested[-1]


def by_merit(comparison: Comparison) -> list[RankedRun]:
    """Return the runs, the best on the headline metric first; equal ones keep their order."""
    metric, several = headline(comparison), len(comparison.rows) > 1
    pairs = zip(comparison.rows, comparison.models, strict=True)
    found = [
        (row, model, row.intervals.get(metric) or model.intervals([metric])[metric])
        for row, model in pairs
    ]
    order = sorted(range(len(found)), key=lambda number: -found[number][2].mean)
    return [
        RankedRun(*found[number], style, several and place == 0, several and number == 0)
        for place, (number, style) in enumerate(
            zip(order, styles_by_merit(len(order)), strict=True)
        )
    ]


CUTOFFS = (1, 2, 3, 5, 10, 20, 50, 100)
"""The k of recall@k and NDCG@k that are drawn."""

Curves = Mapping[str, Mapping[int, float]]
"""NDCG@10 on the validation targets, by run id and epoch."""

_MOST_POINTS = 240
"""The number of users that are drawn in a curve, evenly chosen: more would not be visible."""


def draw_intervals(comparison: Comparison) -> Picture:
    """Draw the headline metric of every run with its interval, the best on top."""
    metric, runs = headline(comparison), by_merit(comparison)
    words = heading(metric)
    rows = [
        ForestRow(
            label=run.label + (" · reference" if run.is_reference else ""),
            mean=run.interval.mean,
            low=run.interval.low,
            high=run.interval.high,
            value=with_interval(run.interval),
            hover=f"{run.label}: {words} {with_interval(run.interval)}, {run.row.model}",
            style=run.style,
            strong=run.is_best,
            hollow=run.is_reference,
        )
        for run in runs
    ]
    reference = next((run.interval.mean for run in runs if run.is_reference), None)
    axis = _padded(words, [row.low for row in rows], [row.high for row in rows])
    caption = f"{explained(metric)} Means over users with 95% intervals".lstrip()
    if reference is not None:
        caption += ", the leading run on top. The hollow mark and the broken line are the "
        caption += "reference: the run that all others are tested against"
    return draw(
        "intervals",
        words,
        f"{caption}.",
        FULL,
        lambda width: draw_forest(rows, width, axis, f"{words} of every run", reference),
        Values(
            ("run", words, "95% interval"),
            tuple(
                (run.label, decimals(run.interval.mean), in_brackets(*run.interval[1:]))
                for run in runs
            ),
        ),
    )


def draw_differences(comparison: Comparison) -> Picture | None:
    """Draw the paired difference of every run to the first; None if none was tested."""
    metric = headline(comparison)
    words, first = heading(metric), comparison.rows[0].name
    rows, numbers = [], []
    for run in by_merit(comparison):
        if (found := run.row.differences.get(metric)) is None:
            continue
        interval = in_brackets(found.low, found.high, "+")
        change, p_value = decimals(found.difference, "+"), decimals(found.p_value)
        numbers.append((run.label, change, interval, p_value))
        text = f"{change}, p = {p_value}"
        rows.append(
            ForestRow(
                label=run.label,
                mean=found.difference,
                low=found.low,
                high=found.high,
                value=text,
                hover=f"{run.label} minus {first}: {text}, interval {interval}",
                style=run.style,
                strong=run.is_best,
            )
        )
    if not rows:
        return None
    lows, highs = [row.low for row in rows], [row.high for row in rows]
    axis = _padded(f"{words} minus that of {first}", [*lows, 0.0], [*highs, 0.0])
    return draw(
        "differences",
        f"Difference to {first}",
        "The same users under both runs: paired differences with 95% intervals and corrected "
        "p-values. An interval that crosses the broken line may be chance.",
        FULL,
        lambda width: draw_forest(rows, width, axis, f"Difference of {words} to {first}", 0.0),
        Values(("run", "difference", "95% interval", "p-value"), tuple(numbers)),
    )


def draw_curves(comparison: Comparison, curves: Curves) -> Picture | None:
    """Draw NDCG@10 on the validation targets by epoch; None if no run has a learning curve."""
    lines = []
    for run in by_merit(comparison):
        # A run with a count ensemble has two rows, but one curve.
        if (curve := curves.get(run.row.run_id)) and not run.model.first.model_alone:
            epochs = sorted(curve)
            lines.append(
                Line(
                    label=run.label,
                    xs=epochs,
                    ys=[curve[epoch] for epoch in epochs],
                    places=[f"epoch {epoch}" for epoch in epochs],
                    values=[decimals(curve[epoch]) for epoch in epochs],
                    style=run.style,
                    strong=run.is_best,
                )
            )
    if not lines:
        return None
    last = max(line.xs[-1] for line in lines)
    step = max(1, round(last / 8))
    x = Axis("epoch", 1, last, [(e, str(e)) for e in _epoch_ticks(int(last), step)])
    heights = [y for line in lines for y in line.ys]
    y = value_axis("NDCG@10 on validation", min(heights), max(heights))
    return draw(
        "learning_curves",
        "Learning curves",
        "NDCG@10 on the validation targets after each pass over the training data (epoch). The "
        "best epoch is kept.",
        FULL,
        lambda width: draw_lines(lines, width, x, y, "NDCG@10 on validation by epoch", height=340),
        line_values(lines, "epoch", "NDCG@10"),
    )


def draw_by_k(comparison: Comparison, kind: str) -> Picture:
    """Draw one metric of every run by k, with bands for the best run and the reference.

    Args:
        comparison: the runs.
        kind: ``recall`` or ``ndcg``.
    """
    names, words = [f"{kind}_at_{k}" for k in CUTOFFS], heading(f"{kind}_at_k")
    lines = []
    for run in by_merit(comparison):
        intervals = list(run.model.intervals(names).values())
        banded = run.style == BEST or run.is_reference
        lines.append(
            Line(
                label=run.label,
                xs=CUTOFFS,
                ys=[each.mean for each in intervals],
                lows=[each.low for each in intervals] if banded else (),
                highs=[each.high for each in intervals] if banded else (),
                places=[heading(name) for name in names],
                values=[with_interval(each) for each in intervals],
                style=run.style,
                strong=run.is_best,
            )
        )
    x = Axis("k", CUTOFFS[0], CUTOFFS[-1], [(k, str(k)) for k in CUTOFFS], logarithmic=True)
    y = value_axis(words, 0, max(max(line.highs or line.ys) for line in lines))
    title = "Recall by k" if kind == "recall" else "NDCG by k"
    caption = "Bands: 95% intervals over users"
    caption += ", of the leading run and of the reference." if len(lines) > 1 else "."
    if kind == "recall":
        caption = "The share of targets among the k best. " + caption
    return draw(
        f"{kind}_by_k",
        title,
        caption,
        HALF,
        lambda width: draw_lines(lines, width, x, y, f"{title} of every run"),
        line_values(lines, "metric", words),
    )


def draw_users(comparison: Comparison) -> Picture | None:
    """Draw the difference of every user to the first run, in ascending order; None without tests.

    Args:
        comparison: the runs.
    """
    metric = headline(comparison)
    first, lines, shares = comparison.models[0].values(metric), [], []
    for run in by_merit(comparison):
        if not run.row.differences:  # the first run, and those of other targets
            continue
        differences = np.sort(run.model.values(metric) - first)
        better, worse = (differences > 0).mean(), (differences < 0).mean()
        shares.append((run.label, f"{better:.0%}", f"{worse:.0%}", f"{1 - better - worse:.0%}"))
        count = min(len(differences), _MOST_POINTS)
        chosen = np.linspace(0, len(differences) - 1, count).round().astype(np.int64)
        lines.append(
            Line(
                label=run.label,
                xs=(chosen / max(len(differences) - 1, 1)).tolist(),
                ys=differences[chosen].tolist(),
                note=f" +{better:.0%} −{worse:.0%}",
                style=run.style,
                strong=run.is_best,
            )
        )
    if not lines:
        return None
    name = comparison.rows[0].name
    x = value_axis("users, in the order of their difference", 0, 1, percent=True)
    lows, highs = ([end(line.ys) for line in lines] for end in (min, max))
    y = value_axis(f"{heading(metric)} minus that of {name}", min(*lows, 0), max(*highs, 0))
    return draw(
        "users",
        "User by user",
        "A small mean difference may hide large ones. After each name: the share of users for whom "
        f"the run is better (+) and worse (−) than {name}; for the others both are equally good.",
        FULL,
        lambda width: draw_lines(lines, width, x, y, "Differences of the users"),
        Values(("run", "better for", "worse for", "equal for"), tuple(shares)),
    )


def draw_costs(comparison: Comparison) -> Picture | None:
    """Draw the headline metric against the seconds of fitting; None if one run or none has them."""
    metric = headline(comparison)
    timed = [
        (run, max(run.row.costs[FIT_SECONDS], 0.01))
        for run in by_merit(comparison)
        if FIT_SECONDS in run.row.costs
    ]
    if len(timed) < 2:
        return None
    points = [_cost(run, seconds) for run, seconds in timed]
    low, high = (end(point.x for point in points) for end in (min, max))
    x = log_axis("seconds to fit", low, high)
    y = value_axis(heading(metric), min(p.low for p in points), max(p.high for p in points))
    return draw(
        "costs",
        "Quality and cost",
        "Seconds as measured on the machine of each run, which may have run other jobs. "
        "Strokes are 95% intervals. A mark whose name had no room says it "
        "when it is chosen.",
        FULL,
        lambda width: draw_points(points, width, x, y, "Quality against seconds"),
        Values(
            ("run", "seconds to fit", heading(metric), "95% interval"),
            tuple(
                (
                    point.label,
                    f"{point.x:,.2f}",
                    decimals(point.y),
                    in_brackets(point.low, point.high),
                )
                for point in points
            ),
        ),
    )


def _cost(run: RankedRun, seconds: float) -> Point:
    mean, low, high = run.interval
    hover = f"{run.label}: {with_interval(run.interval)}, {seconds:,.2f} s"
    return Point(run.label, seconds, mean, low, high, hover, run.style, run.is_best)


def _padded(title: str, lows: Sequence[float], highs: Sequence[float]) -> Axis:
    """Return the axis of intervals, with a little room at both ends."""
    low, high = min(lows), max(highs)
    room = 0.03 * (high - low) or 0.01
    axis = value_axis(title, low, high)
    return Axis(title, min(low - room, axis.low), max(high + room, axis.high), axis.ticks)


def _epoch_ticks(last: int, step: int) -> list[int]:
    """Return epochs to label: the first one, then every ``step``-th."""
    return sorted({1, *range(step, last + 1, step)})


MOST_RUNS = 5
"""The number of runs in one picture: with more, intervals cannot be told apart."""

_TITLES = {
    "history": "By length of the history",
    "customer": "Cold and warm users",
    "purchase": "New items and repeats",
    "popularity_decile": "By popularity of the item",
    "gap": "By time since the last item",
}


def draw_segments(
    comparison: Comparison, columns: Sequence[str] = tuple(SEGMENTS)
) -> list[Picture]:
    """Draw NDCG@10 of the best runs and the reference by segment, one picture for each kind.

    Kinds that the rank tables lack, or of which all targets have the same value, have no picture.

    Args:
        comparison: the runs.
        columns: the kinds of segments, keys of `SEGMENTS`.
    """
    frame = comparison.models[0].first.ranks.frame
    drawn = []
    for column in columns:
        if column not in frame.columns or frame[column].drop_nulls().n_unique() < 2:
            continue
        if (picture := _draw(column, _shown(by_merit(comparison)))) is not None:
            drawn.append(picture)
    return drawn


def _shown(runs: list[RankedRun]) -> list[RankedRun]:
    """Return the best runs, with the reference in the last place if it is not among them."""
    best = runs[:MOST_RUNS]
    reference = [run for run in runs if run.is_reference and run not in best]
    return best[: MOST_RUNS - len(reference)] + reference


def _draw(column: str, runs: list[RankedRun]) -> Picture | None:
    frame = runs[0].model.first.ranks.frame
    segments = [
        segment
        for segment in frame[column].drop_nulls().unique().sort().to_list()
        if all(_has(run.model, column, segment) for run in runs)
    ]
    if len(segments) < 2:
        return None
    lines = [_line(run, column, segments) for run in runs]
    words = SEGMENTS[column]
    targets = frame[column].value_counts()
    counts = dict(zip(targets[column].to_list(), targets["count"].to_list(), strict=True))
    ticks = [(place, str(each).removesuffix(" quarter")) for place, each in enumerate(segments)]
    x = Axis(words, 0, len(segments) - 1, ticks, categories=True)
    y = value_axis(heading(HEADLINE), 0, max(max(line.highs) for line in lines))
    sizes = ", ".join(f"{counts[each]:,}" for each in segments)
    return draw(
        f"segment_{column}",
        _TITLES.get(column, words),
        f"Means and 95% intervals over the users with such held-out items. How many there are, "
        f"from left to right: {sizes}.",
        HALF,
        lambda width: draw_lines(lines, width, x, y, _TITLES.get(column, words), whiskers=True),
        line_values(lines, words, heading(HEADLINE)),
    )


def _line(run: RankedRun, column: str, segments: list[object]) -> Line:
    found = [
        run.model.where(column, segment).intervals([HEADLINE])[HEADLINE] for segment in segments
    ]
    return Line(
        label=run.label,
        xs=range(len(segments)),
        ys=[each.mean for each in found],
        lows=[each.low for each in found],
        highs=[each.high for each in found],
        places=[str(segment) for segment in segments],
        values=[with_interval(each) for each in found],
        style=run.style,
        strong=run.is_best,
    )


def _has(model: ModelRuns, column: str, segment: object) -> bool:
    """Does the run have targets in that segment?"""
    frame = model.first.ranks.frame
    return column in frame.columns and bool((frame[column] == segment).any())


_COSTS = {FIT_SECONDS: "seconds to fit", PEAK_MEMORY: "peak MiB", PARAMETERS: "parameters"}


def page_table(comparison: Comparison) -> Mapping[str, object]:
    """Return what the template ``table.html`` shows."""
    costs = [cost for cost in _COSTS if any(cost in row.costs for row in comparison.rows)]
    return {
        "metrics": [heading(metric) for metric in comparison.metrics],
        "costs": [_COSTS[cost] for cost in costs],
        "rows": [_row(comparison, run, costs) for run in by_merit(comparison)],
        "reference": comparison.rows[0].name if len(comparison.rows) > 1 else None,
        "pooled_lists": any(set(row.metrics) - set(row.intervals) for row in comparison.rows),
        "test": TESTS[comparison.method],
    }


def is_best(comparison: Comparison, row: ComparedRun, metric: str) -> bool:
    """Is it the best of several? More coverage or novelty is not better by itself: none is best."""
    best = max(other.metrics[metric] for other in comparison.rows)
    several = len(comparison.rows) > 1
    return several and metric in row.intervals and row.metrics[metric] == best


def mark(row: ComparedRun, metric: str) -> str:
    """Return * if significantly better than the first run, † if worse."""
    found = row.differences.get(metric)
    if found is None or found.p_value >= ALPHA:
        return ""
    return "*" if found.difference > 0 else "†"


def _row(comparison: Comparison, run: RankedRun, costs: list[str]) -> Mapping[str, object]:
    row = run.row
    return {
        "name": run.label,
        "run_id": row.run_id,
        "model": row.model,
        "fitted_on": row.fitted_on,
        "key": markup(key(run.style)),
        "is_reference": run.is_reference,
        "cells": [_cell(comparison, row, metric) for metric in comparison.metrics],
        "costs": [_amount(row.costs.get(cost)) for cost in costs],
    }


def _cell(comparison: Comparison, row: ComparedRun, metric: str) -> Mapping[str, object]:
    interval, found = row.intervals.get(metric), row.differences.get(metric)
    return {
        "mean": decimals(row.metrics[metric]),
        "best": is_best(comparison, row, metric),
        "interval": interval and in_brackets(interval.low, interval.high),
        "spread": row.spreads.get(metric) and decimals(row.spreads[metric]),
        "mark": mark(row, metric),
        "difference": found
        and f"{decimals(found.difference, '+')} {in_brackets(found.low, found.high, '+')}, "
        f"p = {decimals(found.p_value)}",
    }


def _amount(cost: float | None) -> str:
    if cost is None:
        return ""
    if 0 < cost < 0.005:
        return "<0.01"
    return f"{cost:,.0f}" if cost >= 10 else f"{cost:.2f}"


def comparison_latex(comparison: Comparison) -> str:
    """Return the table for a paper: booktabs, the best of each metric bold, * and † if different.

    ``*`` marks a run that is better than the first, ``†`` one that is worse, by the corrected
    p-value of the paired test.
    """
    rows = [
        {"run": _escape(row.name)}
        | {_escape(title(m)): _latex_cell(comparison, row, m) for m in comparison.metrics}
        for row in comparison.rows
    ]
    table = pd.DataFrame(rows)
    protocol = _escape(f"{comparison.dataset}, {comparison.targets:,} targets: ")
    return (
        f"% {printable(f'{comparison.dataset}: {comparison.protocol}')}\n"
        "% needs \\usepackage{booktabs}; * better, † worse than the first run (p < .05, Holm)\n"
    ) + table.style.hide(axis="index").to_latex(
        hrules=True,
        column_format="l" + "r" * len(comparison.metrics),
        caption=protocol + _escape(comparison.protocol) + ".",
    )


def _latex_cell(comparison: Comparison, row: ComparedRun, metric: str) -> str:
    text = decimals(row.metrics[metric]) + mark(row, metric).replace("†", r"$^\dagger$")
    return rf"\textbf{{{text}}}" if is_best(comparison, row, metric) else text


def _escape(text: str) -> str:
    """Escape a text for LaTeX."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {character: f"{{{character}}}" for character in "[]*"}  # options, after a line's end
    return "".join(special.get(character, character) for character in printable(text))


def explained(metric: str) -> str:
    """Say in a sentence what a metric counts; empty for those beyond recall, NDCG and MRR.

    >>> explained("recall_at_5")
    'Recall@5 is the share of held-out items that are among the first 5 of the list.'
    """
    name, _, k = metric.partition("_at_")
    words = {
        "ndcg": "is 1 where the held-out item is the first of the list, less the lower it stands "
        f"(.63 for the second, .39 for the fifth), and 0 where it is not among the first {k}.",
        "recall": f"is the share of held-out items that are among the first {k} of the list.",
        "mrr": "is 1 where the held-out item is the first of the list, ½ for the second, ⅓ for the "
        "third, and so on.",
    }
    return f"{heading(metric)} {words[name]}" if name in words else ""
