"""The output of the commands: tables on the terminal, JSON for programs, and files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from rich.console import Console
from rich.table import Table
from rich.text import Text

from recsys.errors import printable
from recsys.folders import new_file

if TYPE_CHECKING:
    from recsys.reports.comparison import Comparison

AS_JSON = ContextVar("AS_JSON", default=False)
MOST_ROWS = 20  # that a person reads on a terminal


def say(text: str) -> None:
    """Print a text for people; programs get none."""
    if not AS_JSON.get():
        print(text)


def show_rows(rows: Sequence[Mapping[str, Any]], hidden: Sequence[str] = ()) -> None:
    """Print rows of equal keys; hidden keys appear in the JSON only."""
    if AS_JSON.get():
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
            table.add_row(_in_words(name), Text(_cell(name, value), overflow="fold"))
    else:
        for column, (name, value) in enumerate(shown[0].items()):
            side: Any = "right" if isinstance(value, int | float) else "left"
            copied = column == 0  # it names the row
            table.add_column(_in_words(name), justify=side, overflow="fold", no_wrap=copied)
        for row in shown:
            table.add_row(*(Text(_cell(name, value)) for name, value in row.items()))
    Console().print(table)


def show_frame(frame: pl.DataFrame, out: Path | None = None) -> None:
    """Print a frame, or write it atomically to a Parquet or CSV file.

    A table is cut after `MOST_ROWS` rows, or after those of the first user if they are more.
    """
    if out is not None:
        show_rows([{"file": str(out), "rows": write_frames([frame], out)}])
        return
    most = MOST_ROWS
    if "user_id" in frame.columns and len(frame):
        most = max(most, int(frame["user_id"].rle_id().eq(0).sum()))
    show_rows((frame if AS_JSON.get() else frame.head(most)).to_dicts())
    if len(frame) > most:
        say(f"… {len(frame) - most:,} more rows: --out FILE")


def show_comparison(comparison: Comparison) -> None:
    """Print a table of runs."""
    from recsys.reports.comparison import comparison_table  # noqa: PLC0415 - scipy takes seconds

    if AS_JSON.get():
        show_rows(comparison.frame().to_dicts())
    else:
        Console().print(comparison_table(comparison))


def _in_words(name: str) -> str:
    return name.replace("_at_", "@").replace("_", " ")


def _cell(name: str, value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4f}"
    if isinstance(value, int) and not name.endswith("_id"):  # an id is shown to be copied
        return f"{value:,}"
    return printable(str(value))


# --- Files ----------------------------------------------------------------------------------------


def write_frames(frames: Iterable[pl.DataFrame], out: Path) -> int:
    """Write frames of the same columns to a Parquet or CSV file, atomically; return their rows."""
    rows = 0
    with new_file(out) as file, file.open("wb") as stream, ExitStack() as stack:
        writer: pq.ParquetWriter | None = None
        for number, frame in enumerate(frames):
            rows += len(frame)
            if out.suffix == ".csv":
                frame.write_csv(stream, include_header=number == 0)
                continue
            table = frame.to_arrow()
            if writer is None:
                writer = pq.ParquetWriter(stream, table.schema, compression="zstd")
                stack.enter_context(writer)
            writer.write_table(table)
    return rows
