"""A comparison as a self-contained page, with charts, CSV and LaTeX: the leading run first."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl
from matplotlib.ticker import MaxNLocator

from recsys.data.audit import Finding
from recsys.data.frames import write_csv
from recsys.errors import InputError, printable
from recsys.evaluation.metrics import Interval, find_metric
from recsys.evaluation.segments import SEGMENTS
from recsys.folders.atomic import new_folder
from recsys.reports.charts import (
    Chart,
    Series,
    Style,
    add_lines,
    add_ranges,
    chart,
    forest,
    new_axes,
    styles_by_merit,
)
from recsys.reports.comparison import (
    HEADLINE,
    TESTS,
    ComparedRun,
    Comparison,
    decimals,
    heading,
    in_brackets,
    title,
    with_interval,
)
from recsys.reports.pages import Cell, Section, Table, render
from recsys.reports.statistics import ALPHA
from recsys.tracking.artifacts import FIT_SECONDS, PARAMETERS, PEAK_MEMORY

PAGE = "comparison.html"
Curves = Mapping[str, Mapping[int, float]]
"""NDCG@10 on the validation targets, by run id and epoch."""

_FILES = re.compile(
    r"comparison\.(html|csv|tex)|segments\.csv"
    r"|(intervals|differences|learning_curves|recall_by_k|segment_\w+)\.svg"
)
"""The names of the files of a report; a folder with any other is left alone."""
_COSTS = {FIT_SECONDS: "seconds to fit", PEAK_MEMORY: "peak MiB", PARAMETERS: "parameters"}
_CUTOFFS = (1, 2, 3, 5, 10, 20, 50, 100)
"""The k of recall@k that are drawn."""
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
    "purchase": "New items and repeats",
    "popularity_decile": "By popularity of the item",
    "gap": "By time since the last item",
}
"""The segments that are drawn; segments.csv has all."""


def write_comparison_report(
    path: str | os.PathLike[str],
    comparison: Comparison,
    curves: Curves,
    findings: Sequence[Finding] = (),
) -> Path:
    """Write a folder atomically: `PAGE`, its charts as SVG, and the table.

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
    foreign = [path.name] if path.exists() else []
    if path.is_dir():
        foreign = [file.name for file in path.iterdir() if not _FILES.fullmatch(file.name)]
    if foreign:
        raise InputError(
            f"{path}: exists and is left alone: {min(foreign)} is not part of a comparison report: "
            "choose another folder, or move it away"
        )
    first = forests(comparison)
    closer = [*_draw_curves(comparison, curves), _draw_recall(comparison)]
    closer += draw_segments(comparison)
    count = len(comparison.rows)
    headline = f"{count} run{'s' * (count > 1)} on {comparison.dataset}"
    sections = [
        Section("At a glance", charts=first),
        Section("Every number", tables=[every_number(comparison)]),
        Section("Closer", charts=closer),
        Section("Audit of the data", tables=[audit_table(findings)] if findings else ()),
        Section("How it was measured", facts=measured(comparison)),
    ]
    with new_folder(path) as folder:
        for picture in (*first, *closer):
            (folder / f"{picture.name}.svg").write_text(picture.file, encoding="utf-8")
        write_csv(comparison.frame(), folder / "comparison.csv")
        if (segments := _segments(comparison)) is not None:
            write_csv(segments, folder / "segments.csv")
        (folder / "comparison.tex").write_text(comparison_latex(comparison), encoding="utf-8")
        page = render(headline, headline, _lead(comparison), sections)
        (folder / PAGE).write_text(page, encoding="utf-8")
    return path / PAGE


def _segments(comparison: Comparison) -> pl.DataFrame | None:
    """Return the metrics by every kind of segment; None without segments or metrics of ranks."""
    if not any(find_metric(metric).source == "ranks" for metric in comparison.metrics):
        return None
    frames = [
        comparison.by_segment(column).select(
            pl.lit(column).alias("segment"),
            pl.col(column).cast(pl.String).alias("value"),
            pl.exclude(column),
        )
        for column in SEGMENTS
        if all(column in row.first.ranks.segments for row in comparison.rows)
    ]
    return pl.concat(frames) if frames else None


def _lead(comparison: Comparison) -> str:
    """Say which run leads, by how much, and whether that may be chance; empty for a single run."""
    first, *others = comparison.by_merit()
    if not others:
        return ""
    second, metric = others[0], comparison.headline
    figures = f"{heading(metric)} {with_interval(comparison.headline_interval(first))}; "
    figures += f"{second.label} follows at {decimals(comparison.headline_interval(second).mean)}"
    if not first.first.shares_targets(second.first):
        return f"{first.label} leads: {figures}, on other targets."
    tests = [row.differences[metric] for row in (first, second) if row.differences]
    if len(tests) != 1:  # neither is the reference
        tests = [first.test(second, metric, comparison.method, across_protocols=True)]
    p_value = f"p = {decimals(tests[0].p_value)}"
    if tests[0].p_value < ALPHA:
        return f"{first.label} is best: {figures} ({p_value})."
    return f"{first.label} leads: {figures}, which may be chance ({p_value})."


def measured(comparison: Comparison) -> dict[str, str]:
    """Return how the figures were measured, in words."""
    facts = {
        "data": comparison.dataset,
        "protocol": comparison.protocol,
        "evaluated on": f"{comparison.targets:,} targets of {comparison.users:,} users",
        "intervals": "95%, percentile bootstrap over users",
    }
    if len(comparison.rows) > 1:
        test, reference = TESTS[comparison.method], comparison.rows[0].name
        facts["tests"] = f"{test} over users against {reference}, Holm-corrected"
    return facts


# --- Charts --------------------------------------------------------------------------------------


class RankedRun(NamedTuple):
    """A run at its place in the order of merit, as it is drawn everywhere on a page."""

    row: ComparedRun
    interval: Interval
    """The headline metric."""
    style: Style
    is_best: bool
    """Is it the best of several?"""
    is_reference: bool
    """Is it the first of several, which the paired tests compare the others with?"""


def ranked_runs(comparison: Comparison) -> list[RankedRun]:
    """Return the runs in the order of merit."""
    several, rows = len(comparison.rows) > 1, comparison.by_merit()
    styles = styles_by_merit(len(rows))
    return [
        RankedRun(
            row,
            comparison.headline_interval(row),
            style,
            several and place == 0,
            several and row is comparison.rows[0],
        )
        for place, (row, style) in enumerate(zip(rows, styles, strict=True))
    ]


def forests(comparison: Comparison) -> list[Chart]:
    """Draw the headline metric of every run, and its difference to the first if it was tested."""
    metric, runs, reference = comparison.headline, ranked_runs(comparison), comparison.rows[0].name
    words, (name, _, k) = heading(metric), metric.partition("_at_")
    caption = f"{words} {_EXPLAINED[name].format(k=k)} " if name in _EXPLAINED else ""
    caption += "Means over users with 95% intervals"
    line, rows, differences = None, [], []
    for run in runs:
        if run.is_reference:
            line = run.interval.mean
            caption += ", the leading run on top. The hollow mark and the broken line are the "
            caption += "reference: the run that all others are tested against"
        label = run.row.label + " · reference" * run.is_reference
        rows.append(_forest_row(label, run.interval, with_interval(run.interval), run))
        if (result := run.row.differences.get(metric)) is not None:
            text = f"{decimals(result.difference, '+')}, p = {decimals(result.p_value)}"
            differences.append(_forest_row(run.row.label, Interval(*result[:3]), text, run))
    charts = [forest("intervals", words, f"{caption}.", rows, words, line)]
    if differences:
        caption = "The same users under both runs: paired differences with 95% intervals and "
        caption += "corrected p-values. An interval that crosses the broken line may be chance."
        title, x = f"Difference to {reference}", f"{words} minus that of {reference}"
        rows = [row._replace(hollow=False) for row in differences]
        charts.append(forest("differences", title, caption, rows, x, 0.0))
    return charts


def _forest_row(label: str, interval: Interval, text: str, run: RankedRun) -> Series:
    mean, low, high = interval
    return Series(label, [mean], [0], run.style, run.is_best, [low], [high], text, run.is_reference)


def _draw_curves(comparison: Comparison, curves: Curves) -> list[Chart]:
    """Draw NDCG@10 on the validation targets by epoch; nothing if no run has a learning curve."""
    lines = [
        Series(run.row.label, [*curve], [*curve.values()], run.style, run.is_best)
        for run in ranked_runs(comparison)
        # A run with a count ensemble has two rows, but one curve.
        if not run.row.first.model_alone
        and (curve := dict(sorted(curves.get(run.row.run_id, {}).items())))
    ]
    if not lines:
        return []
    axes = new_axes("epoch", "NDCG@10 on validation")
    add_lines(axes, lines)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    epochs = sorted({epoch for line in lines for epoch in line.xs})
    values = [dict(zip(line.xs, map(decimals, line.ys), strict=True)) for line in lines]
    caption = "NDCG@10 on the validation targets after each pass over the training data (epoch). "
    caption += "The best epoch is kept."
    head = ("epoch", *(line.label for line in lines))
    rows = [(f"{epoch:g}", *(curve.get(epoch, "") for curve in values)) for epoch in epochs]
    return [chart(axes, "learning_curves", "Learning curves", caption, head, rows)]


def _draw_recall(comparison: Comparison) -> Chart:
    """Draw the recall of every run by k, with bands for the best run and the reference."""
    names = [f"recall_at_{k}" for k in _CUTOFFS]
    lines, columns = [], []
    for place, run in enumerate(ranked_runs(comparison)):
        intervals = run.row.intervals_of(names).values()
        means, lows, highs = zip(*intervals, strict=True)
        ends = (lows, highs) if place == 0 or run.is_reference else ((), ())
        lines.append(Series(run.row.label, _CUTOFFS, means, run.style, run.is_best, *ends))
        columns.append([*map(with_interval, intervals)])
    axes = new_axes("k", "Recall@k")
    add_lines(axes, lines)
    axes.set_xscale("log")
    axes.set_xticks(_CUTOFFS, [str(k) for k in _CUTOFFS])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    caption = "The share of targets among the k best. Bands: 95% intervals over users"
    caption += ", of the leading run and of the reference." if len(lines) > 1 else "."
    head = ("metric", *(line.label for line in lines))
    rows = [*zip(map(heading, names), *columns, strict=True)]
    return chart(axes, "recall_by_k", "Recall by k", caption, head, rows)


def draw_segments(
    comparison: Comparison, columns: Sequence[str] = tuple(_SEGMENT_TITLES)
) -> list[Chart]:
    """Draw NDCG@10 of the best runs and the reference by segment, one chart for each kind.

    Kinds that the rank tables lack, or of which all targets have the same value, have no chart.
    """
    runs, charts = ranked_runs(comparison), []
    best = runs[:_MOST_RUNS]
    reference = [run for run in runs if run.is_reference and run not in best]
    shown = best[: _MOST_RUNS - len(reference)] + reference
    frames = [run.row.first.ranks.frame for run in shown]
    for column in columns:
        if any(column not in frame.columns for frame in frames):
            continue
        counts = dict(frames[0][column].drop_nulls().value_counts().sort(column).iter_rows())
        segments = [
            segment for segment in counts if all((f[column] == segment).any() for f in frames)
        ]
        if len(segments) > 1:
            charts.append(_draw_segment(column, {s: counts[s] for s in segments}, shown, len(runs)))
    return charts


def _draw_segment(
    column: str, counts: Mapping[object, int], runs: Sequence[RankedRun], of: int
) -> Chart:
    lines, columns = [], []
    for run in runs:
        intervals = [
            run.row.where(column, segment).intervals_of([HEADLINE])[HEADLINE] for segment in counts
        ]
        means, lows, highs = zip(*intervals, strict=True)
        places = range(len(counts))
        lines.append(Series(run.row.label, places, means, run.style, run.is_best, lows, highs))
        columns.append([*map(with_interval, intervals)])
    axes = new_axes(heading(HEADLINE), height=45 + len(counts) * (12 + 8 * len(lines)))
    add_ranges(axes, lines, [f"{segment} ({count:,})" for segment, count in counts.items()])
    caption = f"By {SEGMENTS[column]}: means and 95% intervals over the users with such held-out "
    caption += "items. In brackets: the number of targets."
    if of > len(runs):
        caption += f" {len(runs)} runs that lead, the reference among them; all: segments.csv."
    head = (SEGMENTS[column], *(line.label for line in lines))
    rows = [*zip(map(str, counts), *columns, strict=True)]
    return chart(axes, f"segment_{column}", _SEGMENT_TITLES[column], caption, head, rows)


# --- Tables --------------------------------------------------------------------------------------


def audit_table(findings: Sequence[Finding]) -> Table:
    """Return the findings of an audit that have cases, the warnings first and marked."""
    warned_first = sorted(findings, key=lambda finding: finding.severity != "warn")
    rows = [
        (
            Cell(finding.name, tag="warning" if finding.severity == "warn" else ""),
            f"{finding.count:,}",
            f"{finding.share:.1%}",
            finding.sentence,
        )
        for finding in warned_first
        if finding.count
    ]
    without = ", ".join(finding.name for finding in findings if not finding.count)
    caption = f"No cases of: {without}." if without else ""
    return Table("Audit of the data", ("finding", "count", "share", "meaning"), rows, caption)


def every_number(comparison: Comparison) -> Table:
    """Return the table of all figures, the best run first."""
    costs = [cost for cost in _COSTS if any(cost in row.costs for row in comparison.rows)]
    rows: list[list[str | Cell]] = [
        [
            Cell(
                run.row.label,
                (f"{run.row.model}, {run.row.run_id[:8]}", f"fitted on {run.row.fitted_on}"),
                run.style.key,
                "reference" if run.is_reference else "",
            ),
            *(_cell(comparison, run.row, metric) for metric in comparison.metrics),
            *(_amount(run.row.costs.get(cost)) for cost in costs),
        ]
        for run in ranked_runs(comparison)
    ]
    caption = "Each cell shows, from top to bottom, the mean over users; its 95% interval "
    caption += "(percentile bootstrap over users)"
    if len(comparison.rows) > 1:
        reference, test = comparison.rows[0].name, TESTS[comparison.method]
        caption += f"; the difference to {reference} with its interval and p-value ({test} over "
        caption += "users, Holm-corrected for the number of runs). Bold: the highest. *: "
        caption += f"significantly better than {reference}, †: significantly worse (p < .05)"
    caption += "."
    if any(set(row.metrics) - set(row.intervals) for row in comparison.rows):
        caption += " Metrics of all lists together, such as coverage, have no interval and no test."
    head = ["run", *map(heading, comparison.metrics), *(_COSTS[cost] for cost in costs)]
    return Table("Every number", head, rows, caption)


def _cell(comparison: Comparison, row: ComparedRun, metric: str) -> Cell:
    lines = []
    if metric in row.intervals:
        lines.append(in_brackets(*row.intervals[metric][1:]))
    if metric in row.spreads:
        lines.append(f"seeds: ±{decimals(row.spreads[metric])}")
    if metric in row.differences:
        difference, low, high, p_value = row.differences[metric]
        change = f"{decimals(difference, '+')} {in_brackets(low, high, '+')}"
        lines.append(f"{change}, p = {decimals(p_value)}")
    text = decimals(row.metrics[metric]) + _mark(row, metric)
    return Cell(text, lines, bold=comparison.is_best(row, metric))


def _mark(row: ComparedRun, metric: str) -> str:
    """Return * if significantly better than the first run, † if worse."""
    result = row.differences.get(metric)
    if result is None or result.p_value >= ALPHA:
        return ""
    return "*" if result.difference > 0 else "†"


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

    def cell(row: ComparedRun, metric: str) -> str:
        text = decimals(row.metrics[metric]) + _mark(row, metric).replace("†", r"$^\dagger$")
        return rf"\textbf{{{text}}}" if comparison.is_best(row, metric) else text

    metrics, caption = comparison.metrics, f"{comparison.dataset}, {comparison.targets:,} targets: "
    lines = [["run", *map(_escape, map(title, metrics))]]
    lines += [
        [_escape(row.name), *(cell(row, name) for name in metrics)] for row in comparison.rows
    ]
    head, *rows = (" & ".join(cells) + r" \\" for cells in lines)
    return "\n".join(
        [
            f"% {printable(f'{comparison.dataset}: {comparison.protocol}')}",
            r"% needs \usepackage{booktabs}; * better, † worse than the first run (p < .05, Holm)",
            r"\begin{table}",
            rf"\caption{{{_escape(caption + comparison.protocol)}.}}",
            rf"\begin{{tabular}}{{l{'r' * len(metrics)}}}",
            *(r"\toprule", head, r"\midrule", *rows, r"\bottomrule"),
            *(r"\end{tabular}", r"\end{table}", ""),
        ]
    )


def _escape(text: str) -> str:
    """Escape a text for LaTeX."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {character: f"{{{character}}}" for character in "[]*"}  # options, after a line's end
    return "".join(special.get(character, character) for character in printable(text))
