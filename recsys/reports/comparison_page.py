"""A comparison as a self-contained page, with charts, CSV and LaTeX: the leading run first."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.ticker import LogLocator, MaxNLocator, PercentFormatter, StrMethodFormatter

from recsys.data.audit import Finding
from recsys.data.csv_cells import write_csv
from recsys.errors import InputError, printable
from recsys.evaluation.metrics import Interval
from recsys.evaluation.segments import SEGMENTS
from recsys.folders.atomic import new_folder
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
from recsys.reports.pages import Cell, render
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
HEADLINE = "ndcg_at_10"
"""The metric that runs are ordered by, unless a comparison has other metrics only."""
Curves = Mapping[str, Mapping[int, float]]
"""NDCG@10 on the validation targets, by run id and epoch."""

_FILES = re.compile(
    r"comparison\.(html|csv|tex)|segments\.csv|(intervals|differences|learning_curves|ndcg_by_k"
    r"|recall_by_k|segment_\w+|users|costs)\.svg"
)
"""The names of the files of a report; a folder with any other is left alone."""
_CUTOFFS = (1, 2, 3, 5, 10, 20, 50, 100)
"""The k of recall@k and NDCG@k that are drawn."""
_MOST_USERS = 240
"""The number of users that are drawn in a curve, evenly chosen: more would not be visible."""
_MOST_RUNS = 5
"""The number of runs in one chart of segments: with more, intervals cannot be told apart."""
_COSTS = {FIT_SECONDS: "seconds to fit", PEAK_MEMORY: "peak MiB", PARAMETERS: "parameters"}
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
    first = drawn(draw_intervals(comparison), draw_differences(comparison))
    closer = [
        *drawn(draw_curves(comparison, curves)),
        *(draw_by_k(comparison, kind) for kind in ("ndcg", "recall")),
        *draw_segments(comparison),
        *drawn(draw_users(comparison), draw_costs(comparison)),
    ]
    page = render(
        "comparison.html",
        title=f"{len(comparison.rows)} run{'s' * (len(comparison.rows) > 1)} "
        f"on {comparison.dataset}",
        lead=_lead(comparison),
        first=first,
        numbers=every_number(comparison),
        closer=closer,
        findings=audit_rows(findings),
        about=_about(comparison),
    )
    with new_folder(path) as folder:
        for picture in (*first, *closer):
            (folder / f"{picture.name}.svg").write_text(picture.file, encoding="utf-8")
        write_csv(comparison.frame(), folder / "comparison.csv")
        if (segments := _segments(comparison)) is not None:
            write_csv(segments, folder / "segments.csv")
        (folder / "comparison.tex").write_text(comparison_latex(comparison), encoding="utf-8")
        (folder / PAGE).write_text(page, encoding="utf-8")
    return path / PAGE


def _segments(comparison: Comparison) -> pl.DataFrame | None:
    """Return the metrics by every kind of segment; None without segments or metrics of ranks."""
    if not comparison.models[0].rank_metrics(comparison.metrics):
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


def _lead(comparison: Comparison) -> str:
    """Say which run leads, by how much, and whether that may be chance; empty for a single run."""
    first, *others = by_merit(comparison)
    if not others:
        return ""
    second, metric = others[0], headline(comparison)
    figures = f"{heading(metric)} {with_interval(first.interval)}; {second.row.label} "
    figures += f"follows at {decimals(second.interval.mean)}"
    if not first.model.first.shares_targets(second.model.first):
        return f"{first.row.label} leads: {figures}, on other targets."
    tests = [run.row.differences[metric] for run in (first, second) if run.row.differences]
    if len(tests) != 1:  # neither is the reference
        tests = [
            first.model.test(second.model, metric, method=comparison.method, across_protocols=True)
        ]
    p_value = tests[0].p_value
    if p_value < ALPHA:
        return f"{first.row.label} is best: {figures} (p = {decimals(p_value)})."
    return f"{first.row.label} leads: {figures}, which may be chance (p = {decimals(p_value)})."


def _about(comparison: Comparison) -> Mapping[str, str]:
    about = {
        "data": comparison.dataset,
        "protocol": comparison.protocol,
        "evaluated on": f"{comparison.targets:,} targets of {comparison.users:,} users",
        "intervals": "95%, percentile bootstrap over users",
    }
    if len(comparison.rows) > 1:
        test, reference = TESTS[comparison.method], comparison.rows[0].name
        about["tests"] = f"{test} over users against {reference}, Holm-corrected"
    return about


def audit_rows(findings: Sequence[Finding]) -> list[list[str | Cell]]:
    """Return the findings as the rows of a table; warnings are marked."""
    return [
        [
            Cell(finding.name, tag="warning" if finding.severity == "warn" else ""),
            f"{finding.count:,}",
            f"{finding.share:.1%}",
            finding.sentence,
        ]
        for finding in findings
    ]


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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
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


# --- Tables --------------------------------------------------------------------------------------


def every_number(comparison: Comparison) -> Mapping[str, object]:
    """Return what the table of the page shows, the best run first."""
    costs = [cost for cost in _COSTS if any(cost in row.costs for row in comparison.rows)]
    return {
        "head": ["run", *map(heading, comparison.metrics), *(_COSTS[cost] for cost in costs)],
        "rows": [
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
            for run in by_merit(comparison)
        ],
        "reference": comparison.rows[0].name if len(comparison.rows) > 1 else None,
        "pooled_lists": any(set(row.metrics) - set(row.intervals) for row in comparison.rows),
        "test": TESTS[comparison.method],
    }


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
