"""A comparison as a table on a terminal, as text, and as HTML of the same table."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recsys.comparison.formats import TESTS, decimals, title, with_interval
from recsys.errors import printable
from recsys.tracking.artifacts import FIT_SECONDS, PARAMETERS, PEAK_MEMORY

if TYPE_CHECKING:
    from recsys.comparison.significance import PairedResult
    from recsys.comparison.table import ComparedRun, Comparison
    from recsys.evaluation.metrics.intervals import Interval

_COSTS = {FIT_SECONDS: "fit s", PEAK_MEMORY: "peak MiB", PARAMETERS: "parameters"}
"""The logged costs of a run, with the heads of their columns."""

_PAGE = '<pre style="line-height: 1.2; overflow-x: auto">{code}</pre>'


def comparison_text(comparison: Comparison) -> str:
    """Return the table as text of the width of the terminal."""
    width = Console().width
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as capture:
        console.print(comparison_table(comparison, width))
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")


def comparison_html(comparison: Comparison, width: int = 120) -> str:
    """Return the table as HTML for a notebook."""
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(comparison_table(comparison, width))
    return console.export_html(code_format=_PAGE, inline_styles=True)


def comparison_table(comparison: Comparison, width: int) -> Table:
    """Return one line per run: the best of each metric bold, the difference in the last one.

    The table is the widest of these that fits ``width`` columns: with ids, models and costs;
    without them; with the intervals below the means; with half their width below the means.
    """
    unlimited = Console(width=10_000)
    for full, cell in ((True, with_interval), (False, with_interval), (False, _below)):
        table = _comparison_table(comparison, full, cell)
        if unlimited.measure(table).maximum <= width:
            return table
    return _comparison_table(comparison, False, _half_below)


def _comparison_table(comparison: Comparison, full: bool, cell: Callable[[Interval], str]) -> Table:
    rows, metrics = comparison.rows, comparison.metrics
    tested = _tested(comparison)
    costs = [cost for cost in _COSTS if full and any(cost in row.costs for row in rows)]
    best = {name: max(row.metrics[name] for row in rows) for name in metrics}
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.caption = Text(printable(caption(comparison, cell, tested)), justify="left")
    for head in ("run", "id", "model") if full else ("run",):
        table.add_column(head, overflow="fold", min_width=8)
    several = ["to the first (p)"] if tested else []
    for head in [*map(title, metrics), *several]:
        table.add_column(head, no_wrap=True)
    for cost in costs:
        table.add_column(_COSTS[cost], justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        cells = [Text(printable(row.name) + (f" ({row.seeds} seeds)" if row.seeds > 1 else ""))]
        if full:
            cells += [Text(row.run_id[:8], style="dim"), Text(printable(row.model))]
        for name in metrics:
            # More coverage or novelty is not better by itself: nothing is bold.
            bold = len(rows) > 1 and name in row.intervals and row.metrics[name] == best[name]
            cells.append(Text(_cell_of(row, name, cell), style="bold" if bold else ""))
        if tested:
            untested = "not tested" if number else "reference"
            cells.append(_difference(row.differences.get(tested), untested))
        cells += [Text(f"{row.costs[c]:,.0f}" if c in row.costs else "") for c in costs]
        table.add_row(*cells)
    return table


def _tested(comparison: Comparison) -> str | None:
    """Return the metric whose test is shown: the last that has a value per user; None if none."""
    tested = [name for name in comparison.metrics if name in comparison.rows[0].intervals]
    return tested[-1] if tested and len(comparison.rows) > 1 else None


def _cell_of(row: ComparedRun, metric: str, cell: Callable[[Interval], str]) -> str:
    """Format a metric of a run; ``cell`` formats its interval, if it has one."""
    interval = row.intervals.get(metric)
    text = decimals(row.metrics[metric]) if interval is None else cell(interval)
    return text + (f" s {decimals(row.spreads[metric])}" if metric in row.spreads else "")


def _below(interval: Interval) -> str:
    return with_interval(interval).replace(" ", "\n", 1)


def _half_below(interval: Interval) -> str:
    return f"{decimals(interval.mean)}\n±{decimals((interval.high - interval.low) / 2)}"


def caption(
    comparison: Comparison,
    cell: Callable[[Interval], str] = with_interval,
    tested: str | None = None,
) -> str:
    """Describe the protocol, the parts that runs were fitted on, and how to read the numbers."""
    users, targets = comparison.users, comparison.targets
    of = f" of {users:,} users" if users != targets else ""
    text = f"{comparison.dataset}, {targets:,} targets{of}: {comparison.protocol}."
    for part in sorted({row.fitted_on for row in comparison.rows}):
        fitted = "; ".join(row.name for row in comparison.rows if row.fitted_on == part)
        text += f" Fitted on {part}: {fitted}."
    if comparison.rows[0].intervals:
        text += " ±: half the 95% interval." if cell is _half_below else " [ ]: 95% interval."
    if any(row.seeds > 1 for row in comparison.rows):
        text += " s: standard deviation of the seeds' own means."
    if tested is not None:
        test = TESTS[comparison.method]
        text += f" (p): {test} of {title(tested)}, Holm-corrected; * below .05."
    return text


def _difference(result: PairedResult | None, untested: str) -> Text:
    if result is None:
        return Text(untested, style="dim")
    mark = " *" if result.p_value < 0.05 else ""
    return Text(f"{decimals(result.difference, sign='+')} ({decimals(result.p_value)}){mark}")
