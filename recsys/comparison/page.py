"""A comparison as a self-contained page, with pictures, CSV and LaTeX."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from recsys.comparison.figures import (
    Curves,
    draw_by_k,
    draw_costs,
    draw_curves,
    draw_differences,
    draw_intervals,
    draw_users,
)
from recsys.comparison.formats import TESTS, decimals, heading, with_interval
from recsys.comparison.latex import comparison_latex
from recsys.comparison.merit import by_merit, headline
from recsys.comparison.page_table import page_table
from recsys.comparison.segment_figures import MOST_RUNS, draw_segments
from recsys.comparison.significance import ALPHA
from recsys.comparison.table import Comparison
from recsys.data.audit import Finding
from recsys.data.csv_cells import write_csv
from recsys.drawing.page import render
from recsys.drawing.picture import Picture
from recsys.errors import InputError
from recsys.evaluation.metrics.registry import find_metric
from recsys.evaluation.segments import SEGMENTS
from recsys.folders.atomic import new_folder

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
        "comparison/page.html",
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
