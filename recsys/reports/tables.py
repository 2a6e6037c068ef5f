"""The table of a comparison: its numbers, as a frame, on a terminal, and in a notebook.

Commands print with it, hence it loads neither torch nor scipy.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recsys.errors import InputError, printable
from recsys.tracking.artifacts import COSTS, FIT_SECONDS, PARAMETERS, PEAK_MEMORY

if TYPE_CHECKING:
    from recsys.evaluation.metrics import Interval
    from recsys.reports.statistics import Method, ModelRuns, PairedResult

TESTS: dict[Method, str] = {
    "randomisation": "paired randomisation test",
    "t": "paired t-test",
}
"""The tests that p-values come from, in words."""
_FITTED_ON = {"train": "the training part only", "train, valid": "all but the test targets"}
"""The parts of the split that a run was fitted on, in words."""
_COSTS = {FIT_SECONDS: "fit s", PEAK_MEMORY: "peak MiB", PARAMETERS: "parameters"}
"""The logged costs of a run, with the heads of their columns."""
_NUMBERS = (
    *("", "_low", "_high", "_difference", "_difference_low", "_difference_high"),
    *("_p_value", "_spread"),
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
    def label(self) -> str:
        """Its name, with the number of its seeds if there are several."""
        return self.name + (f" ({self.seeds} seeds)" if self.seeds > 1 else "")

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
        width = Console().width
        console = Console(file=io.StringIO(), width=width, color_system=None)
        with console.capture() as capture:
            console.print(comparison_table(self, width))
        return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        console = Console(file=io.StringIO(), width=120, record=True)
        console.print(comparison_table(self, console.width))
        page = '<pre style="line-height: 1.2; overflow-x: auto">{code}</pre>'
        return console.export_html(code_format=page, inline_styles=True)

    def is_best(self, row: ComparedRun, metric: str) -> bool:
        """Is it the best of several? More coverage or novelty is not better: none is best."""
        best = max(other.metrics[metric] for other in self.rows)
        return len(self.rows) > 1 and metric in row.intervals and row.metrics[metric] == best

    @property
    def tested(self) -> str | None:
        """The metric whose test is shown on a terminal: the last one that has a value per user."""
        metrics = [name for name in self.metrics if name in self.rows[0].intervals]
        return metrics[-1] if metrics and len(self.rows) > 1 else None

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
                difference = row.differences.get(metric, [None] * 4)
                numbers = [row.metrics[metric], *bounds, *difference, row.spreads.get(metric)]
                cells |= {metric + end: value for end, value in zip(_NUMBERS, numbers, strict=True)}
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
        metrics = self.models[0].rank_metrics(self.metrics)
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
                in_segment = model.where(column, segment)
                if (targets := len(frame := in_segment.first.ranks.frame)) == 0:
                    continue  # a run of other targets
                cells = {column: segment, "name": row.name}
                cells |= {"users": frame["user"].n_unique(), "targets": targets}
                for name, interval in in_segment.intervals(metrics).items():
                    ends = (name, f"{name}_low", f"{name}_high")
                    cells |= dict(zip(ends, interval, strict=True))
                rows.append(cells)
        return pl.DataFrame(rows, infer_schema_length=None)


# --- On a terminal -------------------------------------------------------------------------------


def comparison_table(comparison: Comparison, width: int) -> Table:
    """Return one line per run: the best of each metric bold, the difference in the last one.

    The table is the widest of these that fits ``width`` columns: with ids, models and costs;
    without them; with the intervals below the means; with half their width below the means.
    """
    unlimited = Console(width=10_000)
    for full, cell in ((True, with_interval), (False, with_interval), (False, _below)):
        table = _table(comparison, full, cell)
        if unlimited.measure(table).maximum <= width:
            return table
    return _table(comparison, False, _half_below)


def _table(comparison: Comparison, full: bool, cell: Callable[[Interval], str]) -> Table:
    rows, metrics, tested = comparison.rows, comparison.metrics, comparison.tested
    costs = [cost for cost in _COSTS if full and any(cost in row.costs for row in rows)]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.caption = Text(printable(caption(comparison, cell, tested)), justify="left")
    for head in ("run", "id", "model") if full else ("run",):
        table.add_column(head, overflow="fold", min_width=8)
    for head in [*map(title, metrics), *(["to the first (p)"] if tested else [])]:
        table.add_column(head, no_wrap=True)
    for cost in costs:
        table.add_column(_COSTS[cost], justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        cells = [Text(printable(row.label))]
        if full:
            cells += [Text(row.run_id[:8], style="dim"), Text(printable(row.model))]
        for name in metrics:
            interval = row.intervals.get(name)
            text = decimals(row.metrics[name]) if interval is None else cell(interval)
            text += f" s {decimals(row.spreads[name])}" if name in row.spreads else ""
            cells.append(Text(text, style="bold" if comparison.is_best(row, name) else ""))
        if tested:
            untested = "not tested" if number else "reference"
            cells.append(_difference(row.differences.get(tested), untested))
        cells += [Text(f"{row.costs[c]:,.0f}" if c in row.costs else "") for c in costs]
        table.add_row(*cells)
    return table


def _difference(result: PairedResult | None, untested: str) -> Text:
    if result is None:
        return Text(untested, style="dim")
    mark = " *" if result.p_value < 0.05 else ""
    return Text(f"{decimals(result.difference, sign='+')} ({decimals(result.p_value)}){mark}")


def _below(interval: Interval) -> str:
    return with_interval(interval).replace(" ", "\n", 1)


def _half_below(interval: Interval) -> str:
    return f"{decimals(interval.mean)}\n±{decimals((interval.high - interval.low) / 2)}"


# --- Numbers and names as texts ------------------------------------------------------------------


def with_interval(interval: Interval) -> str:
    """Format a mean and its interval.

    >>> from recsys.evaluation.metrics import Interval
    >>> with_interval(Interval(0.2, 0.1, 0.25))
    '.2000 [.1000, .2500]'
    """
    return f"{decimals(interval.mean)} {in_brackets(interval.low, interval.high)}"


def in_brackets(low: float, high: float, sign: str = "-") -> str:
    """Format the ends of an interval.

    >>> in_brackets(0.1, 0.25), in_brackets(-0.5, 0.5, sign="+")
    ('[.1000, .2500]', '[-.5000, +.5000]')
    """
    return f"[{decimals(low, sign)}, {decimals(high, sign)}]"


def decimals(value: float, sign: str = "-") -> str:
    """Format a number with four decimals and without the zero before the point.

    >>> decimals(0.19), decimals(-0.5), decimals(0.5, sign="+"), decimals(10.25)
    ('.1900', '-.5000', '+.5000', '10.2500')
    """
    return re.sub(r"^([+-]?)0\.", r"\1.", f"{value:{sign}.4f}")


def title(metric: str) -> str:
    """Return the name of a metric as text.

    >>> title("ndcg_at_10")
    'ndcg@10'
    """
    return metric.replace("_at_", "@")


def heading(metric: str) -> str:
    """Return the name of a metric as it stands over a chart.

    >>> heading("ndcg_at_10"), heading("recall_at_k")
    ('NDCG@10', 'Recall@k')
    """
    text = title(metric).replace("_", " ").replace("ndcg", "NDCG").replace("mrr", "MRR")
    return text[:1].upper() + text[1:]


def caption(
    comparison: Comparison,
    cell: Callable[[Interval], str] = with_interval,
    tested: str | None = None,
) -> str:
    """Describe the protocol, the parts that runs were fitted on, and how to read the numbers."""
    users, targets = comparison.users, comparison.targets
    of = f" of {users:,} users" if users != targets else ""
    text = f"{comparison.dataset}, {targets:,} targets{of}: {comparison.protocol}."
    for parts in sorted({row.fitted_on for row in comparison.rows}):
        fitted = "; ".join(row.name for row in comparison.rows if row.fitted_on == parts)
        text += f" Fitted on {parts}: {fitted}."
    if comparison.rows[0].intervals:
        text += " ±: half the 95% interval." if cell is _half_below else " [ ]: 95% interval."
    if any(row.seeds > 1 for row in comparison.rows):
        text += " s: standard deviation of the seeds' own means."
    if tested is not None:
        test = TESTS[comparison.method]
        text += f" (p): {test} of {title(tested)}, Holm-corrected; * below .05."
    return text
