"""A comparison as a self-contained page, with pictures, CSV and LaTeX."""

from __future__ import annotations

import base64
import math
import os
from collections.abc import Mapping, Sequence
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

import pandas as pd
import polars as pl
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from recsys.comparison.effect import Effect
from recsys.comparison.figures import (
    Curves,
    draw_by_k,
    draw_costs,
    draw_curves,
    draw_differences,
    draw_segments,
)
from recsys.comparison.formats import TESTS, decimals, title
from recsys.comparison.table import ComparedRun, Comparison
from recsys.data.audit import Finding
from recsys.data.files import file_sha256, new_folder
from recsys.data.manifest import FolderManifest
from recsys.evaluation.metrics.registry import find_metric
from recsys.evaluation.segments import SEGMENTS
from recsys.tracking.artifacts import FIT_SECONDS, PARAMETERS, PEAK_MEMORY

PAGE = "comparison.html"
_ALPHA = 0.05


class ComparisonReportManifest(FolderManifest):
    """The manifest of the folder of a comparison."""

    noun: ClassVar[str] = "a comparison report"
    remedy: ClassVar[str] = "compare the runs again"
    current_version: ClassVar[int] = 2

    format: Literal["recsys.comparison"] = "recsys.comparison"
    format_version: int = current_version


class _Picture(NamedTuple):
    """A picture of the page."""

    name: str
    title: str
    caption: str
    png: bytes


def write_comparison_report(
    path: str | os.PathLike[str],
    comparison: Comparison,
    curves: Curves,
    findings: Sequence[Finding] = (),
) -> Path:
    """Write a folder atomically: `PAGE`, its pictures as PNG, and the table.

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
    ComparisonReportManifest.previous(path)
    pictures = _pictures(comparison, curves)
    with new_folder(path) as folder:
        for picture in pictures:
            (folder / f"{picture.name}.png").write_bytes(picture.png)
        comparison.frame().write_csv(folder / "comparison.csv")
        if (segments := _segments(comparison)) is not None:
            segments.write_csv(folder / "segments.csv")
        (folder / "comparison.tex").write_text(comparison_latex(comparison), encoding="utf-8")
        (folder / PAGE).write_text(_page(comparison, pictures, findings), encoding="utf-8")
        checksums = {file.name: file_sha256(file) for file in sorted(folder.iterdir())}
        ComparisonReportManifest(files=checksums).write(folder)
    return path / PAGE


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
        f"% {comparison.dataset}: {comparison.protocol}\n"
        "% needs \\usepackage{booktabs}; * better, † worse than the first run (p < .05, Holm)\n"
    ) + table.style.hide(axis="index").to_latex(
        hrules=True,
        column_format="l" + "r" * len(comparison.metrics),
        caption=protocol + _escape(comparison.protocol) + ".",
    )


def _latex_cell(comparison: Comparison, row: ComparedRun, metric: str) -> str:
    text = decimals(row.metrics[metric]) + _mark(row, metric).replace("†", r"$^\dagger$")
    return rf"\textbf{{{text}}}" if _is_best(comparison, row, metric) else text


def _pictures(comparison: Comparison, curves: Curves) -> list[_Picture]:
    several = len(comparison.rows) > 1
    drawn = [
        (
            "ndcg_by_k",
            "NDCG by k",
            "Bands: 95% intervals over users.",
            draw_by_k(comparison, "ndcg"),
        ),
        (
            "recall_by_k",
            "Recall by k",
            "The share of targets among the k best. Bands: 95% intervals over users.",
            draw_by_k(comparison, "recall"),
        ),
    ]
    if any(row.differences for row in comparison.rows):
        drawn.append(
            (
                "differences",
                "User by user",
                "A small mean difference may hide large ones. At zero both runs are equally good.",
                draw_differences(comparison),
            )
        )
    if (segments := draw_segments(comparison)) is not None:
        drawn.append(
            (
                "segments",
                "By segment",
                "The metric of the targets of each segment, over the users with such targets.",
                segments,
            )
        )
    if any(row.run_id in curves for row in comparison.rows):
        drawn.append(
            (
                "learning_curves",
                "Learning curves",
                "On the validation targets, on which the epoch is chosen.",
                draw_curves(comparison, curves),
            )
        )
    if several and any(FIT_SECONDS in row.costs for row in comparison.rows):
        drawn.append(
            (
                "costs",
                "Quality and cost",
                "Seconds as measured on the machine of each run, which may have run other jobs.",
                draw_costs(comparison),
            )
        )
    return [_Picture(name, title, caption, _png(figure)) for name, title, caption, figure in drawn]


def _page(comparison: Comparison, pictures: list[_Picture], findings: Sequence[Finding]) -> str:
    template = files("recsys.comparison").joinpath("page.html").read_text(encoding="utf-8")
    costs = {FIT_SECONDS: "seconds", PEAK_MEMORY: "peak MiB", PARAMETERS: "parameters"}
    several = len(comparison.rows) > 1
    shown = {c: head for c, head in costs.items() if any(c in row.costs for row in comparison.rows)}
    return (
        Environment(autoescape=True, undefined=StrictUndefined)
        .from_string(template)
        .render(
            title=f"{len(comparison.rows)} run{'s' * several} on {comparison.dataset}",
            about=_about(comparison),
            metrics=[title(metric) for metric in comparison.metrics],
            pooled_lists=any(set(row.metrics) - set(row.intervals) for row in comparison.rows),
            costs=list(shown.values()),
            rows=[_row(comparison, row, list(shown)) for row in comparison.rows],
            findings=findings,
            pictures=[{**p._asdict(), "data": base64.b64encode(p.png).decode()} for p in pictures],
        )
    )


def _about(comparison: Comparison) -> Mapping[str, str]:
    users, targets = f"{comparison.users:,}", f"{comparison.targets:,}"
    return {
        "data": comparison.dataset,
        "protocol": comparison.protocol,
        "evaluated on": f"{targets} targets of {users} users",
        "intervals": "95%, percentile bootstrap over users",
        "tests": f"{TESTS[comparison.method]} over users against the first run, Holm-corrected",
    }


def _row(comparison: Comparison, row: ComparedRun, costs: list[str]) -> Mapping[str, object]:
    cells = []
    for metric in comparison.metrics:
        interval, found = row.intervals.get(metric), row.differences.get(metric)
        cells.append(
            {
                "mean": decimals(row.metrics[metric]),
                "best": _is_best(comparison, row, metric),
                "interval": interval and f"[{decimals(interval.low)}, {decimals(interval.high)}]",
                "effect": _effect(row.effects.get(metric)),
                "spread": row.spreads.get(metric) and decimals(row.spreads[metric]),
                "mark": _mark(row, metric),
                "difference": found
                and f"{decimals(found.difference, '+')} [{decimals(found.low, '+')}, "
                f"{decimals(found.high, '+')}], p = {decimals(found.p_value)}",
            }
        )
    return {
        "name": row.name,
        "run_id": row.run_id,
        "model": row.model,
        "seeds": row.seeds,
        "fitted_on": row.fitted_on,
        "cells": cells,
        "costs": [_amount(row.costs.get(cost)) for cost in costs],
    }


def _is_best(comparison: Comparison, row: ComparedRun, metric: str) -> bool:
    """Is it the best of several? More coverage or novelty is not better by itself: none is best."""
    best = max(other.metrics[metric] for other in comparison.rows)
    several = len(comparison.rows) > 1
    return several and metric in row.intervals and row.metrics[metric] == best


def _mark(row: ComparedRun, metric: str) -> str:
    """Return * if significantly better than the first run, † if worse."""
    found = row.differences.get(metric)
    if found is None or found.p_value >= _ALPHA:
        return ""
    return "*" if found.difference > 0 else "†"


def _effect(effect: Effect | None) -> str:
    """Describe the effect; empty if there is no difference to detect."""
    if effect is None or not math.isfinite(effect.users_needed):
        return ""
    return f"d = {effect.d_z:+.3f}, needs {effect.users_needed:,.0f} users"


def _amount(cost: float | None) -> str:
    if cost is None:
        return ""
    return f"{cost:,.0f}" if cost >= 10 else f"{cost:.2f}"


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _escape(text: str) -> str:
    """Escape a text for LaTeX."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)
