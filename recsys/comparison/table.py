"""The table of a comparison: one row per run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import polars as pl

from recsys.comparison.seeds import ModelRuns
from recsys.comparison.significance import Method, PairedResult
from recsys.comparison.terminal import comparison_html, comparison_text
from recsys.errors import InputError
from recsys.evaluation.metrics.intervals import Interval
from recsys.evaluation.metrics.registry import find_metric
from recsys.tracking.artifacts import COSTS

_FITTED_ON = {"train": "the training part only", "train, valid": "all but the test targets"}
"""The parts of the split that a run was fitted on, in words."""

_COLUMNS = (
    *("", "_low", "_high", "_difference", "_difference_low", "_difference_high", "_p_value"),
    "_spread",
)
"""The endings of the columns of one metric."""


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """One row of a comparison."""

    name: str
    run_id: str
    model: str
    trained_on: str
    """The parts of the split it was fitted on: ``train``, or ``train, valid`` after a refit."""
    seeds: int
    """The number of runs it is the mean of: seeds of one model, or 1."""
    metrics: Mapping[str, float]
    """The value of each metric, by its name."""
    intervals: Mapping[str, Interval]
    """The 95% intervals over users, of the metrics with a value per user."""
    spreads: Mapping[str, float]
    """The standard deviation of the seeds' own values of each metric; empty for a single run."""
    differences: Mapping[str, PairedResult]
    """The differences to the first run, of the metrics with a value per user; p-values are
    Holm-corrected. Empty for the first run."""
    costs: Mapping[str, float]
    """The logged ones of fit_seconds, peak_memory_mib and parameters; means over the seeds."""

    @property
    def fitted_on(self) -> str:
        """The parts of the split that it was fitted on, in words."""
        return _FITTED_ON.get(self.trained_on, self.trained_on)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs evaluated on the same targets under the same protocol. The first is the baseline."""

    rows: tuple[ComparedRun, ...]
    metrics: tuple[str, ...]
    dataset: str
    protocol: str
    users: int
    """The number of users that metrics are averaged over, U."""
    targets: int
    """The number of targets of these users, Q."""
    models: tuple[ModelRuns, ...]
    """The runs of each row, with the tables that its metrics were computed from."""
    method: Method = "randomisation"
    """The test that p-values come from."""

    def __repr__(self) -> str:
        """Return the table, as `recsys compare` prints it."""
        return comparison_text(self)

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        return comparison_html(self)

    def frame(self) -> pl.DataFrame:
        """Return one row per run with one column per number; null if there is none.

        The columns are name, run_id, model, trained_on, seeds; for each metric ``M``: ``M, M_low,
        M_high, M_difference, M_difference_low, M_difference_high, M_p_value, M_spread``; and
        fit_seconds, peak_memory_mib, parameters.
        """
        rows: list[dict[str, object]] = []
        for row in self.rows:
            cells: dict[str, object] = {
                name: getattr(row, name)
                for name in ("name", "run_id", "model", "trained_on", "seeds")
            }
            for metric in self.metrics:
                bounds = row.intervals[metric][1:] if metric in row.intervals else [None] * 2
                numbers = [row.metrics[metric], *bounds]
                numbers += row.differences.get(metric, [None] * 4)
                numbers.append(row.spreads.get(metric))
                cells |= {metric + end: value for end, value in zip(_COLUMNS, numbers, strict=True)}
            rows.append(cells | {cost: row.costs.get(cost) for cost in COSTS})
        frame = pl.DataFrame(rows, infer_schema_length=None)
        return frame.cast({pl.Null: pl.Float64}).cast({"parameters": pl.Int64})

    def by_segment(self, column: str) -> pl.DataFrame:
        """Return one row per segment of targets and run; see `recsys.evaluation.segments`.

        The columns are the segment, name, users, targets and, for each metric ``M`` of ranks: ``M,
        M_low, M_high``, over the users with targets in the segment.

        Args:
            column: a segment column of the rank tables, e.g. ``history``.

        Raises:
            InputError: a run has no such column, or no metric is one of ranks.
        """
        metrics = [name for name in self.metrics if find_metric(name).source == "ranks"]
        if not metrics:
            raise InputError(f"metrics {', '.join(self.metrics)}: only rank metrics have segments")
        for row, model in zip(self.rows, self.models, strict=True):
            if column not in (known := model.first.ranks.segments):
                raise InputError(
                    f"segment {column!r}: must be a column of the rank table of {row.name}: "
                    + ", ".join(known)
                )
        segments = self.models[0].first.ranks.frame[column].unique().sort(nulls_last=True)
        rows = []
        for segment in segments:
            for row, model in zip(self.rows, self.models, strict=True):
                part = model.where(column, segment)
                if (targets := len(frame := part.first.ranks.frame)) == 0:
                    continue  # a run of other targets
                cells = {column: segment, "name": row.name}
                cells |= {"users": frame["user"].n_unique(), "targets": targets}
                for name, interval in part.intervals(metrics).items():
                    ends = (name, f"{name}_low", f"{name}_high")
                    cells |= dict(zip(ends, interval, strict=True))
                rows.append(cells)
        return pl.DataFrame(rows, infer_schema_length=None)
