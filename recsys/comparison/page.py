"""A comparison as a page that needs nothing else, and as pictures, CSV and LaTeX."""

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
from jinja2 import Environment, StrictUndefined
from matplotlib.figure import Figure

from recsys.comparison.compare import ComparedRun, Comparison
from recsys.comparison.effect import Effect
from recsys.comparison.figures import (
    Curves,
    draw_by_k,
    draw_costs,
    draw_curves,
    draw_differences,
    draw_segments,
)
from recsys.data.audit import Finding
from recsys.data.files import file_sha256, new_folder
from recsys.data.manifest import FolderManifest

PAGE = "comparison.html"
_ALPHA = 0.05


class ComparisonReportManifest(FolderManifest):
    """What a folder of a comparison holds."""

    noun: ClassVar[str] = "a comparison report"
    remedy: ClassVar[str] = "compare the runs again"
    current_version: ClassVar[int] = 1

    format: Literal["recsys.comparison"] = "recsys.comparison"
    format_version: int = current_version


class _Picture(NamedTuple):
    """A picture of the report."""

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
    """Write a folder, whole or not at all: `PAGE`, its pictures as PNG, and the table.

    The table is comparison.csv (every number) and comparison.tex (booktabs). A report that is
    already there is replaced. The same arguments give the same bytes.

    Args:
        path: the folder.
        comparison: the runs.
        curves: of the runs that were trained.
        findings: of the audit of the data.

    Returns:
        The page.

    Raises:
        InputError: something else is at the path, or it cannot be written.
    """
    path = Path(path)
    ComparisonReportManifest.previous(path)
    pictures = _pictures(comparison, curves)
    with new_folder(path) as folder:
        for picture in pictures:
            (folder / f"{picture.name}.png").write_bytes(picture.png)
        comparison.frame().write_csv(folder / "comparison.csv")
        (folder / "comparison.tex").write_text(comparison_latex(comparison), encoding="utf-8")
        (folder / PAGE).write_text(_page(comparison, pictures, findings), encoding="utf-8")
        checksums = {file.name: file_sha256(file) for file in sorted(folder.iterdir())}
        ComparisonReportManifest(files=checksums).write(folder)
    return path / PAGE


def comparison_latex(comparison: Comparison) -> str:
    """The table for a paper: booktabs, the best of each metric bold, * and † where it differs.

    ``*`` marks a run that is better than the first, ``†`` one that is worse, by the corrected
    p-value of the paired test.
    """
    rows = [
        {"run": _escape(row.name)}
        | {_escape(_title(m)): _latex_cell(comparison, row, m) for m in comparison.metrics}
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
    text = _decimals(row.figures[metric].mean) + _mark(row, metric).replace("†", r"$^\dagger$")
    return rf"\textbf{{{text}}}" if _is_best(comparison, row, metric) else text


def _pictures(comparison: Comparison, curves: Curves) -> list[_Picture]:
    several = len(comparison.rows) > 1
    drawn = [
        (
            "ndcg_by_k",
            "NDCG by k",
            "One k is a choice; here are the others. Bands: 95% intervals over users.",
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
                "A small mean difference may hide large ones. At zero both serve a user alike.",
                draw_differences(comparison),
            )
        )
    if (segments := draw_segments(comparison)) is not None:
        drawn.append(
            (
                "segments",
                "By kinds of targets and users",
                "Of each kind the same figure over the users that have such targets.",
                segments,
            )
        )
    if any(row.run_id in curves for row in comparison.rows):
        drawn.append(
            (
                "learning_curves",
                "Learning curves",
                "On the validation targets, which the epoch is chosen by.",
                draw_curves(comparison, curves),
            )
        )
    if several and any("fit_seconds" in row.costs for row in comparison.rows):
        drawn.append(
            (
                "costs",
                "Quality and cost",
                "Seconds as they were on the machine of each run, whatever else it did.",
                draw_costs(comparison),
            )
        )
    return [_Picture(name, title, caption, _png(figure)) for name, title, caption, figure in drawn]


def _page(comparison: Comparison, pictures: list[_Picture], findings: Sequence[Finding]) -> str:
    template = files("recsys.comparison").joinpath("page.html").read_text(encoding="utf-8")
    costs = {"fit_seconds": "seconds", "peak_memory_mib": "peak MiB", "parameters": "parameters"}
    shown = {c: head for c, head in costs.items() if any(c in row.costs for row in comparison.rows)}
    return (
        Environment(autoescape=True, undefined=StrictUndefined)
        .from_string(template)
        .render(
            title=f"{len(comparison.rows)} runs on {comparison.dataset}",
            about=_about(comparison),
            metrics=[_title(metric) for metric in comparison.metrics],
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
        "judged on": f"{targets} targets of {users} users",
        "intervals": "95%, percentile bootstrap over users",
        "tests": "paired randomisation of users against the first run, Holm-corrected",
    }


def _row(comparison: Comparison, row: ComparedRun, costs: list[str]) -> Mapping[str, object]:
    cells = []
    for metric in comparison.metrics:
        mean, low, high = row.figures[metric]
        found = row.differences.get(metric)
        cells.append(
            {
                "mean": _decimals(mean),
                "best": _is_best(comparison, row, metric),
                "interval": f"[{_decimals(low)}, {_decimals(high)}]",
                "effect": _effect(row.effects.get(metric)),
                "spread": row.spreads.get(metric) and _decimals(row.spreads[metric]),
                "mark": _mark(row, metric),
                "difference": found
                and f"{_decimals(found.difference, '+')} [{_decimals(found.low, '+')}, "
                f"{_decimals(found.high, '+')}], p = {_decimals(found.p_value)}",
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
    best = max(other.figures[metric].mean for other in comparison.rows)
    return len(comparison.rows) > 1 and row.figures[metric].mean == best


def _mark(row: ComparedRun, metric: str) -> str:
    """* for significantly better than the first run, † for worse."""
    found = row.differences.get(metric)
    if found is None or found.p_value >= _ALPHA:
        return ""
    return "*" if found.difference > 0 else "†"


def _effect(effect: Effect | None) -> str:
    """Nothing where there is no difference that users could tell."""
    if effect is None or not math.isfinite(effect.users_needed):
        return ""
    return f"d = {effect.d_z:+.3f}, seen with {effect.users_needed:,.0f} users"


def _amount(cost: float | None) -> str:
    if cost is None:
        return ""
    return f"{cost:,.0f}" if cost >= 10 else f"{cost:.2f}"


def _png(figure: Figure) -> bytes:
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _title(metric: str) -> str:
    return metric.replace("_at_", "@")


def _decimals(value: float, sign: str = "-") -> str:
    """Without the zero before the point."""
    return f"{value:{sign}.4f}".replace("0.", ".", 1)


def _escape(text: str) -> str:
    """What users named, as LaTeX prints it."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    return "".join(special.get(character, character) for character in text)
