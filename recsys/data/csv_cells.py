"""CSV files, whose texts a spreadsheet would take for formulas unless it is told not to."""

from __future__ import annotations

from contextvars import ContextVar
from pathlib import Path
from typing import IO

import polars as pl

FOR_SPREADSHEETS = ContextVar("FOR_SPREADSHEETS", default=False)
"""Whether CSV files are written for spreadsheets: see `for_spreadsheets`."""


def write_csv(frame: pl.DataFrame, file: Path | IO[bytes], *, header: bool = True) -> None:
    """Write a frame as CSV."""
    frame = for_spreadsheets(frame) if FOR_SPREADSHEETS.get() else frame
    frame.write_csv(file, include_header=header)


def for_spreadsheets(frame: pl.DataFrame) -> pl.DataFrame:
    """Put an apostrophe before each text that a spreadsheet would run as a formula.

    The texts begin with ``= + - @``, a tab or a line's end. Source: OWASP, CSV injection.

    >>> for_spreadsheets(pl.DataFrame({"item_id": ["=1+1", "hat"]}))["item_id"].to_list()
    ["'=1+1", 'hat']
    """
    texts = pl.col(pl.String)
    formula = texts.str.contains(r"^[=+\-@\t\r\n]")
    return frame.with_columns(pl.when(formula).then("'" + texts).otherwise(texts).name.keep())
