"""Columns of bytes that are text: UTF-8 as Hive and Spark write it, and UUIDs."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

_GROUPS = ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))
"""Where the groups of a UUID's digits start, and how long they are."""


def with_utf8_as_text(table: pl.DataFrame) -> pl.DataFrame:
    """Return a table with text for columns of bytes that are all valid UTF-8.

    >>> with_utf8_as_text(pl.DataFrame({"a": [b"u1", None], "b": [b"u1", bytes([255])]})).dtypes
    [String, Binary]
    """
    found = (_text_of(column) for column in table if column.dtype == pl.Binary)
    return table.with_columns(text for text in found if text is not None)


def _text_of(column: pl.Series) -> pl.Series | None:
    try:
        return column.cast(pl.String)
    except pl.exceptions.ComputeError:  # strict or not, polars raises
        return None


def uuids_in(file: Path | BytesIO) -> frozenset[str]:
    """Return the columns of a Parquet file that are UUIDs, of which polars sees the bytes alone."""
    try:
        with pq.ParquetFile(file) as opened:
            columns = [opened.schema.column(number) for number in range(len(opened.schema))]
    except (pa.ArrowException, OSError):  # polars says what is wrong with the file
        return frozenset()
    outer = (each for each in columns if each.path == each.name)
    return frozenset(each.name for each in outer if each.logical_type.type == "UUID")


def uuid_text(name: str) -> pl.Expr:
    """Return a column of 16 bytes as the text of UUIDs.

    >>> table = pl.DataFrame({"id": [bytes(range(16)), None]})
    >>> table.select(uuid_text("id")).to_series().to_list()
    ['00010203-0405-0607-0809-0a0b0c0d0e0f', None]
    """
    digits = pl.col(name).bin.encode("hex")
    groups = (digits.str.slice(start, length) for start, length in _GROUPS)
    return pl.concat_str(list(groups), separator="-").alias(name)
