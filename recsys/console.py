"""What the commands print and write: tables for people, JSON for programs, files on request."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from rich.console import Console
from rich.table import Table

from recsys.errors import InputError

if TYPE_CHECKING:
    from recsys.evaluation.compare import Comparison


def show_rows(rows: Sequence[Mapping[str, Any]], as_json: bool, hidden: Sequence[str] = ()) -> None:
    """Rows of equal keys; the hidden ones are in the JSON alone."""
    if as_json:
        print(json.dumps(rows, indent=2, default=str))
        return
    table = Table(box=None, pad_edge=False)
    names = [name for name in rows[0] if name not in hidden]
    for name in names:
        number = isinstance(rows[0][name], int | float)
        table.add_column(name.replace("_", " "), justify="right" if number else "left")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in names))
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
    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    try:
        frame.write_parquet(partial) if out.suffix == ".parquet" else frame.write_csv(partial)
        partial.replace(out)
    except OSError as error:
        raise InputError(f"{out}: cannot be written: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)
    show_rows([{"file": str(out), "rows": frame.height}], as_json)


def show_comparison(comparison: Comparison, as_json: bool) -> None:
    """A table of runs."""
    if as_json:
        show_rows(comparison.frame().to_dicts(), as_json)
    else:
        console = Console()
        console.print(comparison.table(console.width))


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


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
