"""Columns of bytes that are text: UTF-8 as Hive and Spark write it, and UUIDs."""

from __future__ import annotations

from collections.abc import Collection
from io import BytesIO
from pathlib import Path
from uuid import UUID

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

_UUID_BYTES = 16
_GROUPS = ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))
"""Where the groups of a UUID's digits start, and how long they are."""


def with_utf8_as_text(table: pl.DataFrame, columns: Collection[str] | None = None) -> pl.DataFrame:
    """Return a table with text for columns of bytes that are all text; see `text_of_bytes`.

    Args:
        table: the table, or a part of it.
        columns: the names of these columns, where all rows tell; those that the table's own rows
            tell if None.

    >>> with_utf8_as_text(pl.DataFrame({"a": [b"u1", None], "b": [b"u1", bytes([255])]})).dtypes
    [String, Binary]
    """
    found = (
        text_of_bytes(column)
        for column in table
        if column.dtype == pl.Binary and (columns is None or column.name in columns)
    )
    return table.with_columns(text for text in found if text is not None)


def utf8_columns(rows: pl.LazyFrame, part: int) -> set[str]:
    """Return the columns of bytes whose values are text in all rows, which are read part by part.

    Args:
        rows: the table.
        part: the number of rows of a part.
    """
    names = {name for name, kind in rows.collect_schema().items() if kind == pl.Binary}
    if names:
        for found in rows.select(sorted(names)).collect_batches(chunk_size=part):
            names &= {each.name for each in found if text_of_bytes(each) is not None}
    return names


def text_of_bytes(column: pl.Series) -> pl.Series | None:
    """Return bytes as text; None if a value is no text: not UTF-8, or 16 bytes with a zero.

    Those are a UUID such as 00000000-0000-0000-0000-000000000007.
    """
    uuids = (column.bin.size() == _UUID_BYTES) & column.bin.contains(b"\0")
    if uuids.any():
        return None
    try:
        return column.cast(pl.String)
    except pl.exceptions.ComputeError:  # strict or not, polars raises
        return None


def no_text(column: pl.Series) -> pl.Series:
    """Return which of the bytes are neither text nor missing; see `text_of_bytes`.

    >>> no_text(pl.Series([b"u1", bytes([255]), bytes(16), None])).to_list()
    [False, True, True, False]
    """
    values = (pl.Series([value], dtype=pl.Binary) for value in column)
    return pl.Series([text_of_bytes(value) is None for value in values], dtype=pl.Boolean)


def how_to_write(value: bytes) -> str:
    """Return how bytes that are no text may be written as text, for a message.

    >>> how_to_write(bytes(range(16)))[:75]
    "write them as text, such as '00010203-0405-0607-0809-0a0b0c0d0e0f' for a UU"
    """
    if len(value) != _UUID_BYTES:
        return "write them as text"
    text = f"write them as text, such as '{UUID(bytes=value)}' for a UUID"
    return f"{text}, which is read so from the path of a Parquet file that has its type"


def with_uuids_as_text(table: pa.Table) -> pa.Table:
    """Return a table of Arrow with text for columns of UUIDs."""
    for name in uuid_fields(table.schema):
        text = pl.DataFrame({name: table[name].cast(pa.binary(_UUID_BYTES))}).select(
            uuid_text(name)
        )
        table = table.set_column(table.schema.names.index(name), name, text.to_arrow()[name])
    return table


def uuid_fields(schema: pa.Schema) -> list[str]:
    """Return the columns of an Arrow schema that are UUIDs, of which polars sees the bytes."""
    return [field.name for field in schema if str(field.type) == "extension<arrow.uuid>"]


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
