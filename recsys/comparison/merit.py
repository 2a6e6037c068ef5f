"""The order of merit: which run of a comparison is best, and how each is drawn."""

from __future__ import annotations

from dataclasses import dataclass

from recsys.comparison.seeds import ModelRuns
from recsys.comparison.table import ComparedRun, Comparison
from recsys.drawing.marks import Style, styles_by_merit
from recsys.evaluation.metrics.intervals import Interval

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
