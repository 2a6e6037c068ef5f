"""A comparison as a self-contained page, with charts, CSV and LaTeX: the leading run first."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from recsys.data.audit import Finding
from recsys.data.csv_cells import write_csv
from recsys.errors import InputError, printable
from recsys.evaluation.segments import SEGMENTS
from recsys.folders.atomic import new_folder
from recsys.reports.comparison_charts import (
    Curves,
    by_merit,
    draw_by_k,
    draw_costs,
    draw_curves,
    draw_differences,
    draw_intervals,
    draw_segments,
    draw_users,
    drawn,
    headline,
)
from recsys.reports.pages import Cell, render
from recsys.reports.statistics import ALPHA
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
_COSTS = {FIT_SECONDS: "seconds to fit", PEAK_MEMORY: "peak MiB", PARAMETERS: "parameters"}


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
