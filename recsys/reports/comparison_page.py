"""A comparison as a self-contained page, with charts, CSV and LaTeX: the leading run first."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from recsys.data.frames import write_csv
from recsys.errors import InputError, printable
from recsys.evaluation.metrics import Interval
from recsys.evaluation.segments import SEGMENTS
from recsys.folders.atomic import new_folder
from recsys.reports.charts import (
    Chart,
    ForestRow,
    Style,
    add_line,
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
    verdict,
    with_interval,
)
from recsys.reports.pages import Cell, Section, Table, render
from recsys.reports.statistics import ALPHA
from recsys.tracking.artifacts import COSTS

PAGE = "comparison.html"
Curves = Mapping[str, Mapping[int, float]]
"""NDCG@10 on the validation targets, by run id and epoch."""

_FILES = re.compile(
    r"comparison\.(html|csv|tex)|(intervals|differences|learning_curves|segment_\w+)\.svg"
)
"""The names of the files of a report; a folder with any other is left alone."""
_MOST_RUNS = 5
"""The number of runs in one chart of segments: with more, intervals cannot be told apart."""
_EXPLAINED = (
    "NDCG@10 is 1 where the held-out item is the first of the list, less the lower it stands (.63 "
    "for the second, .39 for the fifth), and 0 where it is not among the first 10. "
)
_SEGMENT_TITLES = {
    "history": "By length of the history",
    "purchase": "New items and repeats",
    "popularity_decile": "By popularity of the item",
}
"""The segments that are drawn; `Comparison.by_segment` has all."""


def write_comparison_report(
    path: str | os.PathLike[str], comparison: Comparison, curves: Curves
) -> Path:
    """Write a folder atomically: `PAGE`, its charts as SVG, and the table; return the page.

    The table is comparison.csv (every number) and comparison.tex (booktabs). An existing report is
    replaced, another folder refused. The same arguments give the same bytes.
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
    at_a_glance = forests(comparison)
    closer = [*_draw_curves(comparison, curves), *draw_segments(comparison)]
    count = len(comparison.rows)
    sections = [
        Section("At a glance", at_a_glance),
        Section("Every number", tables=[every_number(comparison)]),
        Section("Closer", closer),
    ]
    page = render(
        f"{count} run{'s' * (count > 1)} on {comparison.dataset}", _lead(comparison), sections
    )
    with new_folder(path) as folder:
        for picture in (*at_a_glance, *closer):
            (folder / f"{picture.name}.svg").write_text(picture.svg, encoding="utf-8")
        write_csv(comparison.frame(), folder / "comparison.csv")
        (folder / "comparison.tex").write_text(comparison_latex(comparison), encoding="utf-8")
        (folder / PAGE).write_text(page, encoding="utf-8")
    return path / PAGE


def _lead(comparison: Comparison) -> str:
    """Say which run leads, and how it compares with the reference, or the reference with others."""
    leader, *others = comparison.by_merit()
    if not others:
        return ""
    reference = comparison.rows[0]
    rival = others[0] if leader is reference else reference
    figures = with_interval(comparison.headline_interval(leader))
    rival_mean = comparison.headline_interval(rival).mean
    name = f"{rival.label} ({decimals(rival_mean)})"
    compared = verdict(comparison.difference(leader, rival), rival_mean, name)
    return f"{leader.label} leads: {heading(comparison.headline)} {figures}, {compared}."


# --- Charts --------------------------------------------------------------------------------------


def styled(comparison: Comparison) -> list[tuple[ComparedRun, Style]]:
    """Return the runs in the order of merit, with the style that each has everywhere on a page."""
    rows = comparison.by_merit()
    return list(zip(rows, styles_by_merit(len(rows)), strict=True))


def forests(comparison: Comparison) -> list[Chart]:
    """Draw the headline metric of every run, and its difference to the first if it was tested."""
    metric, reference = comparison.headline, comparison.rows[0]
    words, line = heading(metric), None
    rows, differences = list[ForestRow](), list[ForestRow]()
    for row, style in styled(comparison):
        interval, label = comparison.headline_interval(row), row.label
        if row is reference and len(comparison.rows) > 1:
            line, label = interval.mean, f"{label} · reference"
        rows.append(ForestRow(label, interval, with_interval(interval), style))
        if (result := row.differences.get(metric)) is not None:
            text = f"{decimals(result.difference, '+')}, p = {decimals(result.p_value)}"
            differences.append(ForestRow(row.label, Interval(*result[:3]), text, style))
    caption = _EXPLAINED if metric == HEADLINE else ""
    caption += "Means over users with 95% intervals"
    if line is not None:
        caption += ", the leading run on top. The broken line is the mean of the reference: the "
        caption += "run that all others are tested against"
    charts = [forest("intervals", words, f"{caption}.", rows, words, line)]
    if differences:
        caption = "The same users under both runs: paired differences with 95% intervals and "
        caption += "corrected p-values. An interval that crosses the broken line may be chance."
        name, x = f"Difference to {reference.name}", f"{words} minus that of {reference.name}"
        charts.append(forest("differences", name, caption, differences, x, 0.0))
    return charts


def _draw_curves(comparison: Comparison, curves: Curves) -> list[Chart]:
    """Draw NDCG@10 on the validation targets by epoch; nothing if no run has a learning curve."""
    axes, columns = new_axes("epoch", "NDCG@10 on validation"), dict[str, Mapping[int, float]]()
    for row, style in styled(comparison):
        curve = dict(sorted(curves.get(row.run_id, {}).items()))
        if curve and not row.first.model_alone:  # a run with counts has two rows, but one curve
            add_line(axes, row.label, [*curve], [*curve.values()], style)
            columns[row.label] = curve
    if not columns:
        return []
    axes.locator_params("x", integer=True, min_n_ticks=1)
    caption = "NDCG@10 on the validation targets after each pass over the training data (epoch). "
    caption += "The best epoch is kept."
    rows = [
        (str(epoch), *(decimals(c[epoch]) if epoch in c else "" for c in columns.values()))
        for epoch in sorted(set[int]().union(*columns.values()))
    ]
    head = ("epoch", *columns)
    return [chart(axes, "learning_curves", "Learning curves", caption, head, rows)]


def draw_segments(comparison: Comparison) -> list[Chart]:
    """Draw NDCG@10 of the best runs by segment, one chart for each kind.

    Kinds that the rank tables lack, or of which all targets have the same value, have no chart.
    """
    runs, charts = styled(comparison)[:_MOST_RUNS], []
    frames = [row.first.ranks.frame for row, _ in runs]
    for column, name in _SEGMENT_TITLES.items():
        if any(column not in frame.columns for frame in frames):
            continue
        counts = dict(frames[0][column].drop_nulls().value_counts().sort(column).iter_rows())
        segments = [s for s in counts if all((frame[column] == s).any() for frame in frames)]
        if len(segments) < 2:
            continue
        axes = new_axes(heading(HEADLINE), height=45 + len(segments) * (12 + 8 * len(runs)))
        columns = []
        for number, (row, style) in enumerate(runs):
            within = [row.where(column, segment) for segment in segments]
            intervals = [run.intervals_of([HEADLINE])[HEADLINE] for run in within]
            offset = 0.16 * (number - (len(runs) - 1) / 2)
            add_ranges(axes, row.label, intervals, style, offset)
            columns.append([*map(with_interval, intervals)])
        axes.set_yticks(range(len(segments)), [f"{s} ({counts[s]:,})" for s in segments])
        axes.set_ylim(len(segments) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        caption = f"By {SEGMENTS[column]}: means and 95% intervals over the users with such "
        caption += "held-out items. In brackets: the number of targets."
        if len(comparison.rows) > len(runs):
            caption += f" The {len(runs)} runs that lead."
        head = (SEGMENTS[column], *(row.label for row, _ in runs))
        rows = [*zip(map(str, segments), *columns, strict=True)]
        charts.append(chart(axes, f"segment_{column}", name, caption, head, rows))
    return charts


# --- Tables --------------------------------------------------------------------------------------


def every_number(comparison: Comparison) -> Table:
    """Return the table of all figures, the best run first."""
    costs = [cost for cost in COSTS if any(cost in row.costs for row in comparison.rows)]
    rows: list[list[str | Cell]] = []
    for row in comparison.by_merit():
        facts = (f"{row.model}, {row.run_id[:8]}", f"fitted on {row.trained_on}")
        is_reference = len(comparison.rows) > 1 and row is comparison.rows[0]
        cells: list[str | Cell] = [Cell(row.label, facts, "reference" * is_reference)]
        for metric in comparison.metrics:
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
            cells.append(Cell(text, lines, bold=comparison.is_best(row, metric)))
        for amount in map(row.costs.get, costs):
            digits = 2 if amount is not None and amount < 10 else 0
            cells.append("" if amount is None else f"{amount:,.{digits}f}")
        rows.append(cells)
    caption = f"{comparison.dataset}, {comparison.targets:,} targets of {comparison.users:,} "
    caption += f"users: {comparison.protocol}. From top to bottom: the mean over users and its 95% "
    caption += "interval (percentile bootstrap)"
    if len(comparison.rows) > 1:
        reference, test = comparison.rows[0].name, TESTS[comparison.method]
        caption += f"; the difference to {reference} with its interval and p-value ({test} over "
        caption += "users, Holm-corrected for the number of runs). Bold: the highest. *: "
        caption += f"significantly better than {reference}, †: significantly worse (p < .05)"
    head = ["run", *map(heading, comparison.metrics), *(COSTS[cost] for cost in costs)]
    return Table("Every number", head, rows, f"{caption}.")


def _mark(row: ComparedRun, metric: str) -> str:
    """Return * if significantly better than the first run, † if worse."""
    result = row.differences.get(metric)
    if result is None or result.p_value >= ALPHA:
        return ""
    return "*" if result.difference > 0 else "†"


def comparison_latex(comparison: Comparison) -> str:
    """Return the table for a paper: booktabs, the best bold, marked as on the page."""

    def cell(row: ComparedRun, metric: str) -> str:
        text = decimals(row.metrics[metric]) + _mark(row, metric).replace("†", r"$^\dagger$")
        return rf"\textbf{{{text}}}" if comparison.is_best(row, metric) else text

    metrics = comparison.metrics
    lines = [["run", *map(escape_latex, map(title, metrics))]]
    lines += [
        [escape_latex(row.name), *(cell(row, name) for name in metrics)] for row in comparison.rows
    ]
    head, *rows = (" & ".join(cells) + r" \\" for cells in lines)
    about = f"{comparison.dataset}, {comparison.targets:,} targets: {comparison.protocol}"
    return "\n".join(
        [
            f"% {printable(about)}",
            r"% needs \usepackage{booktabs}; * better, † worse than the first run (p < .05, Holm)",
            rf"\begin{{tabular}}{{l{'r' * len(metrics)}}}",
            *(r"\toprule", head, r"\midrule", *rows, r"\bottomrule", r"\end{tabular}", ""),
        ]
    )


def escape_latex(text: str) -> str:
    """Escape a text for LaTeX."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {character: f"{{{character}}}" for character in "[]*"}  # options, after a line's end
    return "".join(special.get(character, character) for character in printable(text))
