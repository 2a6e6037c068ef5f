"""Divide tables larger than the memory into parts that hold all rows of their users.

A table is read twice, in batches: once to find ranges of user ids with about equally many rows, and
once to write the rows of each range into a Parquet file.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from recsys.data.tables import OpenTable
from recsys.data.text_types import likely_integers

ROWS_PER_PART = 1 << 21
"""How many rows of a table are read into the memory at once."""
_BATCH = 1 << 18
_SAMPLED = 1 << 7
_MOST_PARTS = 500
"""Each is a file that is open while the table is divided."""
ROW = "__row"
"""The column that numbers the rows of a divided table, from 0."""


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """What the first reading of a table tells."""

    rows: int
    users: pl.Series
    """A sample of the user ids, one of every 128 rows; integers or text."""
    integers: frozenset[str]
    """The columns of text in which every value is an integer."""


def survey(table: OpenTable, user: str) -> Survey:
    """Count the rows of a table, sample its users, and find the types of its columns.

    Raises:
        InputError: the table is broken.
    """
    rows, users, sure = 0, [], set(table.names) if table.texts else set()
    any_value: set[str] = set()
    for batch in table.batches(_BATCH):
        if table.texts:
            likely, valued = likely_integers(batch)
            sure &= likely
            any_value |= valued
        first = -rows % _SAMPLED
        users.append(batch[user].gather_every(_SAMPLED, first))
        rows += len(batch)
    integers = frozenset(sure & any_value)
    sample = pl.concat(users) if users else pl.Series(user, [], dtype=pl.String)
    kind = pl.Int64() if sample.dtype.is_integer() or user in integers else pl.String()
    return Survey(rows, user_ids(sample, kind), integers)


def user_ids(values: pl.Series, kind: pl.DataType) -> pl.Series:
    """Return user ids as integers, or as text without blanks around it."""
    ids = values.cast(kind, strict=False)
    return ids.str.strip_chars() if kind == pl.String else ids


def range_bounds(users: pl.Series, parts: int) -> pl.Series:
    """Return the first user ids of all ranges but the first, so that ranges hold equally many rows.

    Args:
        users: a sample.
        parts: the number of ranges; there may be fewer, at least one.

    >>> range_bounds(pl.Series(["b", "a", "a", "a", "c", "d"]), 3).to_list()
    ['c']
    """
    ordered = users.drop_nulls().sort()
    parts = min(parts, _MOST_PARTS, max(len(ordered), 1))
    places = [len(ordered) * part // parts for part in range(1, parts)]
    bounds = ordered.gather(places).unique().sort()
    return bounds.filter(bounds > ordered[0]) if len(bounds) else bounds


def divide(
    table: OpenTable, user: str, found: Survey, bounds: pl.Series, folder: Path, name: str
) -> None:
    """Write the rows of each range of users to ``folder/NAME-00000.parquet`` and so on, in order.

    A column `ROW` numbers them. Columns of text are integers where all of their values are, as in
    `OpenTable.read`.

    Raises:
        InputError: the table is broken, or a file cannot be written.
    """
    rows = 0
    with ExitStack() as files:
        writers: dict[int, pq.ParquetWriter] = {}
        for batch in table.batches(_BATCH):
            plain = batch.select(pl.all().str.strip_chars()) if table.texts else batch
            typed = plain.with_columns(
                pl.col(column).cast(pl.Int64, strict=False) for column in found.integers
            )
            numbered = typed.with_row_index(ROW, offset=rows).cast({ROW: pl.Int64})
            rows += len(batch)
            ids = user_ids(batch[user], bounds.dtype)
            places = bounds.search_sorted(ids.fill_null(ids.min()), side="right")
            part = pl.Series("__part", places, dtype=pl.Int64)
            for (number,), own in (
                numbered.with_columns(part)
                .partition_by("__part", as_dict=True, include_key=False)
                .items()
            ):
                data = own.to_arrow()
                if number not in writers:
                    path = part_file(folder, name, number)
                    writer = pq.ParquetWriter(path, data.schema, compression="zstd")
                    writers[number] = files.enter_context(writer)
                writers[number].write_table(data)
        empty = typed_schema(table, found)
        for number in range(len(bounds) + 1):
            if number not in writers:
                empty.write_parquet(part_file(folder, name, number))


def typed_schema(table: OpenTable, found: Survey) -> pl.DataFrame:
    """Return a table without rows, with the columns that `divide` writes."""
    native = cast("pl.LazyFrame", table.frame.to_native())
    schema = dict(native.collect_schema())
    schema |= dict.fromkeys(found.integers, pl.Int64())
    return pl.DataFrame(schema={ROW: pl.Int64(), **schema})


def part_file(folder: Path, name: str, number: int) -> Path:
    """Return the file of a part."""
    return folder / f"{name}-{number:05}.parquet"
