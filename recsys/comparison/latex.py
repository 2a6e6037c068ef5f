"""The table of a comparison for a paper."""

from __future__ import annotations

import pandas as pd

from recsys.comparison.formats import decimals, title
from recsys.comparison.page_table import is_best, mark
from recsys.comparison.table import ComparedRun, Comparison
from recsys.errors import printable


def comparison_latex(comparison: Comparison) -> str:
    """Return the table for a paper: booktabs, the best of each metric bold, * and † if different.

    ``*`` marks a run that is better than the first, ``†`` one that is worse, by the corrected
    p-value of the paired test.
    """
    rows = [
        {"run": _escape(row.name)}
        | {_escape(title(m)): _cell(comparison, row, m) for m in comparison.metrics}
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


def _cell(comparison: Comparison, row: ComparedRun, metric: str) -> str:
    text = decimals(row.metrics[metric]) + mark(row, metric).replace("†", r"$^\dagger$")
    return rf"\textbf{{{text}}}" if is_best(comparison, row, metric) else text


def _escape(text: str) -> str:
    """Escape a text for LaTeX."""
    special = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {character: f"\\{character}" for character in "&%$#_{}"}
    special |= {character: f"{{{character}}}" for character in "[]*"}  # options, after a line's end
    return "".join(special.get(character, character) for character in printable(text))
