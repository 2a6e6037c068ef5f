"""What the commands print and write: tables for people, JSON for programs, files on request."""

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

from recsys.data.files import new_file
from recsys.errors import InputError

if TYPE_CHECKING:
    from recsys.comparison.compare import Comparison
    from recsys.comparison.significance import PairedResult
    from recsys.evaluation.metrics.intervals import Interval

_COSTS = {"fit_seconds": "fit s", "peak_memory_mib": "peak MiB", "parameters": "parameters"}
"""What a run may have cost, and the head of its column."""


def show_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, hidden: Sequence[str] = ()) -> None:
    """Rows of equal keys; the hidden ones are in the JSON alone."""
    if as_json:
        print(json.dumps(rows, indent=2, default=str))
        return
    if not rows:
        print("no rows")
        return
    table = Table(box=None, pad_edge=False)
    shown = [{name: row[name] for name in row if name not in hidden} for row in rows]
    if len(rows) == 1:  # one thing with many facts reads better downwards
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
    """A frame on the terminal, or as a Parquet or CSV file that appears whole or not at all.

    Raises:
        InputError: the file is of another kind, or cannot be written.
    """
    if out is None:
        show_rows(frame.to_dicts(), as_json)
        return
    if out.suffix not in (".parquet", ".csv"):
        raise InputError(f"{out}: can write .parquet and .csv, not {out.suffix or 'no ending'}")
    with new_file(out) as file:
        frame.write_parquet(file) if out.suffix == ".parquet" else frame.write_csv(file)
    show_rows([{"file": str(out), "rows": frame.height}], as_json)


def show_comparison(comparison: Comparison, as_json: bool) -> None:
    """A table of runs."""
    if as_json:
        show_rows(comparison.frame().to_dicts(), as_json)
    else:
        console = Console()
        console.print(comparison_table(comparison, console.width))


def comparison_table(comparison: Comparison, width: int) -> Table:
    """One line per run: the best of each metric bold, the difference in the last one.

    The fullest of these that a terminal of ``width`` columns has room for: with ids, models and
    costs; without; the intervals below the means; half their width below the means.
    """
    unlimited = Console(width=10_000)
    for full, cell in ((True, _beside), (False, _beside), (False, _below)):
        table = _comparison_table(comparison, full, cell)
        if unlimited.measure(table).maximum <= width:
            return table
    return _comparison_table(comparison, False, _half_below)


def _comparison_table(comparison: Comparison, full: bool, cell: Callable[[Interval], str]) -> Table:
    rows, metrics = comparison.rows, comparison.metrics
    costs = [cost for cost in _COSTS if full and any(cost in row.costs for row in rows)]
    best = {name: max(row.figures[name].mean for row in rows) for name in metrics}
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.caption = Text(_caption(comparison, cell), justify="left")
    for head in ("run", "id", "model") if full else ("run",):
        table.add_column(head, overflow="fold", min_width=8)
    several = ["to the first (p)"] if len(rows) > 1 else []
    for head in [*map(_title, metrics), *several]:
        table.add_column(head, no_wrap=True)
    for cost in costs:
        table.add_column(_COSTS[cost], justify="right", no_wrap=True)
    for place, row in enumerate(rows):
        cells = [Text(row.name + (f" ({row.seeds} seeds)" if row.seeds > 1 else ""))]
        if full:
            cells += [Text(row.run_id[:8], style="dim"), Text(row.model)]
        for name, figure in row.figures.items():
            bold = several and figure.mean == best[name]
            spread = f" s {_decimals(row.spreads[name])}" if name in row.spreads else ""
            cells.append(Text(cell(figure) + spread, style="bold" if bold else ""))
        if several:
            untested = "not tested" if place else "baseline"
            cells.append(_difference(row.differences.get(metrics[-1]), untested))
        cells += [Text(f"{row.costs[c]:,.0f}" if c in row.costs else "") for c in costs]
        table.add_row(*cells)
    return table


def _beside(figure: Interval) -> str:
    return f"{_decimals(figure.mean)} [{_decimals(figure.low)}, {_decimals(figure.high)}]"


def _below(figure: Interval) -> str:
    return _beside(figure).replace(" ", "\n", 1)


def _half_below(figure: Interval) -> str:
    return f"{_decimals(figure.mean)}\n±{_decimals((figure.high - figure.low) / 2)}"


def _caption(comparison: Comparison, cell: Callable[[Interval], str]) -> str:
    """The protocol, what the runs were fitted on, and how to read the figures."""
    users, targets = comparison.users, comparison.targets
    of = f" of {users:,} users" if users != targets else ""
    text = f"{comparison.dataset}, {targets:,} targets{of}: {comparison.protocol}."
    for part in sorted({row.fitted_on for row in comparison.rows}):
        fitted = ", ".join(row.name for row in comparison.rows if row.fitted_on == part)
        text += f" Fitted on {part}: {fitted}."
    text += " ±: half the 95% interval." if cell is _half_below else " [ ]: 95% interval."
    if any(row.seeds > 1 for row in comparison.rows):
        text += " s: standard deviation of the seeds' own means."
    if len(comparison.rows) > 1:
        tested = _title(comparison.metrics[-1])
        text += f" (p): paired randomisation test of {tested}, Holm-corrected; * below .05."
    return text


def _title(metric: str) -> str:
    return metric.replace("_at_", "@")


def _decimals(value: float, sign: str = "-") -> str:
    """Without the zero before the point: 0.19 is .1900."""
    return f"{value:{sign}.4f}".replace("0.", ".", 1)


def _difference(result: PairedResult | None, untested: str) -> Text:
    if result is None:
        return Text(untested, style="dim")
    mark = " *" if result.p_value < 0.05 else ""
    return Text(f"{_decimals(result.difference, sign='+')} ({_decimals(result.p_value)}){mark}")


def ids_like(texts: Sequence[str], ids: pl.Series) -> list[Any]:
    """Ids typed on a command line, as the numbers they are where the ids are numbers.

    Raises:
        InputError: the ids are numbers and a text is none.
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
    if isinstance(value, int) and not name.endswith("_id"):  # an id is there to be typed again
        return f"{value:,}"
    return str(value)
