"""A comparison as a page, with charts, CSV and LaTeX: the leading run first."""

import os
from itertools import cycle
from pathlib import Path

import pandas as pd

from recsys.errors import InputError, printable
from recsys.evaluation.metrics import Interval
from recsys.folders import new_folder
from recsys.reports.charts import STYLES, Chart, ForestRow, forest
from recsys.reports.comparison import (
    HEADLINE,
    ComparedRun,
    Comparison,
    decimals,
    how_measured,
    in_brackets,
    title,
    verdict,
    with_interval,
)
from recsys.reports.pages import Cell, Section, Table, render
from recsys.reports.statistics import ALPHA
from recsys.tracking.artifacts import COSTS

PAGE = "comparison.html"
_FILES = {PAGE, "comparison.csv", "comparison.tex", "intervals.svg", "differences.svg"}
"""The files of a report; a folder with any other is left alone."""
_EXPLAINED = (
    "NDCG@10 is 1 where the held-out item is the first of the list, less the lower it stands (.63 "
    "for the second, .39 for the fifth), and 0 where it is not among the first 10. "
)


def write_comparison_report(path: str | os.PathLike[str], comparison: Comparison) -> Path:
    """Write a folder atomically: `PAGE`, its charts as SVG, and the table; return the page.

    The table is comparison.csv (every number) and comparison.tex (booktabs). An existing report is
    replaced, another folder refused. The same comparison gives the same bytes.
    """
    path = Path(path)
    foreign = {file.name for file in path.iterdir()} - _FILES if path.is_dir() else {path.name}
    if path.exists() and foreign:
        raise InputError(
            f"{path}: exists and is left alone: {min(foreign)} is not part of a comparison report: "
            "choose another folder, or move it away"
        )
    charts = forests(comparison)
    sections = [
        Section("At a glance", charts),
        Section("Every number", tables=[every_number(comparison)]),
    ]
    count = len(comparison.rows)
    headline = f"{count} run{'s' * (count > 1)} on {comparison.dataset}"
    page = render(headline, _lead(comparison), sections)
    with new_folder(path) as folder:
        for chart in charts:
            (folder / f"{chart.name}.svg").write_text(chart.svg, encoding="utf-8")
        comparison.frame().write_csv(folder / "comparison.csv")
        (folder / "comparison.tex").write_text(comparison_latex(comparison), encoding="utf-8")
        (folder / PAGE).write_text(page, encoding="utf-8")
    return path / PAGE


def _lead(comparison: Comparison) -> str:
    """Say which run leads, and how it compares with the reference, or the reference with others."""
    leader, *others = comparison.by_merit()
    if not others:
        return ""
    figures = with_interval(comparison.headline_interval(leader))
    text = f"{leader.label} leads: {title(comparison.headline)} {figures}"
    rival = others[0] if leader is comparison.rows[0] else comparison.rows[0]
    if (difference := comparison.difference(leader, rival)) is not None:
        mean = comparison.headline_interval(rival).mean
        text += f", {verdict(difference, mean, f'{rival.label} ({decimals(mean)})')}"
    return f"{text}."


def forests(comparison: Comparison) -> list[Chart]:
    """Draw the headline metric of every run, and its difference to the first if it was tested."""
    metric, reference = title(comparison.headline), comparison.rows[0]
    line = comparison.headline_interval(reference).mean if len(comparison.rows) > 1 else None
    rows, differences = list[ForestRow](), list[ForestRow]()
    for row, style in zip(comparison.by_merit(), cycle(STYLES), strict=False):
        interval, is_reference = comparison.headline_interval(row), row is reference
        label = row.label + " · reference" * (is_reference and line is not None)
        rows.append((label, interval, with_interval(interval), style))
        if (result := row.differences.get(comparison.headline)) is not None:
            text = f"{decimals(result.difference, '+')}, p = {decimals(result.p_value)}"
            differences.append((row.label, Interval(*result[:3]), text, style))
    caption = _EXPLAINED if comparison.headline == HEADLINE else ""
    caption += "Means over users with 95% intervals."
    if line is not None:
        caption += " The broken line is the mean of the reference, which others are tested against."
    charts = [forest("intervals", metric, caption, rows, metric, line)]
    if differences:
        caption = "The same users under both runs: paired differences with 95% intervals and "
        caption += "corrected p-values. An interval that crosses the broken line may be chance."
        name, x = f"Difference to {reference.name}", f"{metric} minus that of {reference.name}"
        charts.append(forest("differences", name, caption, differences, x, 0.0))
    return charts


def every_number(comparison: Comparison) -> Table:
    """Return the table of all figures, the best run first."""
    reference, several = comparison.rows[0], len(comparison.rows) > 1
    costs = [cost for cost in COSTS if any(cost in row.costs for row in comparison.rows)]
    rows: list[list[str | Cell]] = []
    for row in comparison.by_merit():
        facts = (f"{row.model}, {row.run_id[:8]}", f"fitted on {row.trained_on}")
        tag = "reference" * (several and row is reference)
        cells: list[str | Cell] = [Cell(row.label, facts, tag)]
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
    caption = how_measured(comparison)
    if several:
        caption += f" Below it: the difference to {reference.name} (paired randomisation test over "
        caption += "users, Holm-corrected). Bold: the highest. * significantly better than "
        caption += f"{reference.name}, † worse (p < .05)."
    head = ["run", *map(title, comparison.metrics), *(COSTS[cost] for cost in costs)]
    return Table("Every number", head, rows, caption)


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

    names = [printable(row.name) for row in comparison.rows]
    metrics = {
        title(name): [cell(row, name) for row in comparison.rows] for name in comparison.metrics
    }
    style = pd.DataFrame({"run": names, **metrics}).style.hide(axis="index")
    style = style.format(escape="latex", subset=["run"]).format_index(
        escape="latex", axis="columns"
    )
    about = f"{comparison.dataset}, {comparison.targets:,} targets: {comparison.protocol}"
    needs = r"% needs \usepackage{booktabs}; * better, † worse than the first run (p < .05, Holm)"
    text = style.to_latex(hrules=True, column_format=f"l{'r' * len(metrics)}")
    text = text.replace("\n[", "\n{}[").replace("\n*", "\n{}*")  # no options of the line before
    return f"% {printable(about)}\n{needs}\n{text}"
