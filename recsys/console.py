"""The output of the commands: tables on the terminal, JSON for programs, and files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recsys.comparison.formats import TESTS, decimals, title
from recsys.data.files import new_file
from recsys.errors import InputError
from recsys.tracking.artifacts import FIT_SECONDS, PARAMETERS, PEAK_MEMORY

if TYPE_CHECKING:
    from recsys.comparison.significance import PairedResult
    from recsys.comparison.table import ComparedRun, Comparison
    from recsys.evaluation.metrics.intervals import Interval

MOST_ROWS = 20
"""Rows of a table that a person reads on a terminal."""
_COSTS = {FIT_SECONDS: "fit s", PEAK_MEMORY: "peak MiB", PARAMETERS: "parameters"}
"""The logged costs of a run, with the heads of their columns."""


def show_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, hidden: Sequence[str] = ()) -> None:
    """Print rows of equal keys; hidden keys appear in the JSON only."""
    if as_json:
        print(json.dumps(rows, indent=2, default=str))
        return
    if not rows:
        print("no rows")
        return
    table = Table(box=None, pad_edge=False)
    shown = [{name: row[name] for name in row if name not in hidden} for row in rows]
    if len(rows) == 1:  # one row reads better downwards
        table.show_header = False
        for name, value in shown[0].items():
            table.add_row(name.replace("_", " "), Text(_cell(name, value), overflow="fold"))
    else:
        for name, value in shown[0].items():
            number = isinstance(value, int | float)
            table.add_column(name.replace("_", " "), justify="right" if number else "left")
        for row in shown:
            table.add_row(*(Text(_cell(name, value)) for name, value in row.items()))
    Console().print(table)


def show_frame(frame: pl.DataFrame, out: Path | None, as_json: bool) -> None:
    """Print a frame, or write it atomically to a Parquet or CSV file.

    A table is cut after `MOST_ROWS` rows, or after those of the first user if they are more.

    Raises:
        InputError: the file has another extension, or cannot be written.
    """
    if out is None:
        most = MOST_ROWS
        if "user_id" in frame.columns and len(frame):
            most = max(most, int(frame["user_id"].rle_id().eq(0).sum()))
        show_rows((frame if as_json else frame.head(most)).to_dicts(), as_json)
        if len(frame) > most and not as_json:
            print(f"… {len(frame) - most:,} more rows: --out FILE")
        return
    if out.suffix not in (".parquet", ".csv"):
        raise InputError(f"{out}: can write .parquet and .csv, not {out.suffix or 'no extension'}")
    with new_file(out) as file:
        frame.write_parquet(file) if out.suffix == ".parquet" else frame.write_csv(file)
    show_rows([{"file": str(out), "rows": frame.height}], as_json)


def show_comparison(comparison: Comparison, as_json: bool) -> None:
    """Print a table of runs."""
    if as_json:
        show_rows(comparison.frame().to_dicts(), as_json)
    else:
        console = Console()
        console.print(comparison_table(comparison, console.width))


def show_segments(comparison: Comparison, column: str, as_json: bool) -> None:
    """Print a table with one line per segment and run; see `Comparison.by_segment`."""
    frame = comparison.by_segment(column)
    rows = frame.to_dicts()
    if as_json:
        show_rows(rows, as_json)
        return
    metrics = [name.removesuffix("_low") for name in frame.columns if name.endswith("_low")]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.caption = Text(_caption(comparison, _beside, None), justify="left")
    for head in (column.replace("_", " "), "run", "users", "targets", *map(title, metrics)):
        table.add_column(head, justify="right" if head in ("users", "targets") else "left")
    for row in rows:
        cells = ["unknown" if row[column] is None else str(row[column]), row["name"]]
        cells += [f"{row[name]:,}" for name in ("users", "targets")]
        for name in metrics:
            low, high = (decimals(row[f"{name}_{end}"]) for end in ("low", "high"))
            cells.append(f"{decimals(row[name])} [{low}, {high}]")
        table.add_row(*map(Text, cells))
    Console().print(table)


def comparison_table(comparison: Comparison, width: int) -> Table:
    """Return one line per run: the best of each metric bold, the difference in the last one.

    The table is the widest of these that fits ``width`` columns: with ids, models and costs;
    without them; with the intervals below the means; with half their width below the means.
    """
    unlimited = Console(width=10_000)
    for full, cell in ((True, _beside), (False, _beside), (False, _below)):
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
    table.caption = Text(_caption(comparison, cell, tested), justify="left")
    for head in ("run", "id", "model") if full else ("run",):
        table.add_column(head, overflow="fold", min_width=8)
    several = ["to the first (p)"] if tested else []
    for head in [*map(title, metrics), *several]:
        table.add_column(head, no_wrap=True)
    for cost in costs:
        table.add_column(_COSTS[cost], justify="right", no_wrap=True)
    for number, row in enumerate(rows):
        cells = [Text(row.name + (f" ({row.seeds} seeds)" if row.seeds > 1 else ""))]
        if full:
            cells += [Text(row.run_id[:8], style="dim"), Text(row.model)]
        for name in metrics:
            # More coverage or novelty is not better by itself: nothing is bold.
            bold = len(rows) > 1 and name in row.intervals and row.metrics[name] == best[name]
            cells.append(Text(_cell_of(row, name, cell), style="bold" if bold else ""))
        if tested:
            untested = "not tested" if number else "baseline"
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


def _beside(interval: Interval) -> str:
    return f"{decimals(interval.mean)} [{decimals(interval.low)}, {decimals(interval.high)}]"


def _below(interval: Interval) -> str:
    return _beside(interval).replace(" ", "\n", 1)


def _half_below(interval: Interval) -> str:
    return f"{decimals(interval.mean)}\n±{decimals((interval.high - interval.low) / 2)}"


def _caption(comparison: Comparison, cell: Callable[[Interval], str], tested: str | None) -> str:
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


def ids_like(texts: Sequence[str], ids: pl.Series) -> list[Any]:
    """Convert ids typed on a command line to numbers if the ids of the dataset are numbers.

    Raises:
        InputError: the ids are numbers and a text is not.
    """
    if not ids.dtype.is_integer():
        return list(texts)
    for text in texts:
        if not text.lstrip("-").isdigit():
            raise InputError(f"{text!r}: ids of this dataset are whole numbers")
    return [int(text) for text in texts]


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and not name.endswith("_id"):  # an id is shown to be copied
        return f"{value:,}"
    return str(value)
