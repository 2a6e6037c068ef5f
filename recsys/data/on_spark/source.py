"""The log that Spark reads: its columns, its first rows, and the numbers of its rows."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote, urlparse

import polars as pl

from recsys.data.bytes_columns import with_utf8_as_text
from recsys.data.log import ROW
from recsys.data.on_spark.session import is_spark_frame
from recsys.data.parts import SchemaGroup
from recsys.data.source_files import find_files, is_pattern
from recsys.data.sources import find_named_dataset
from recsys.data.tables import OpenTable, TableSource
from recsys.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession

_FILE, _INDEX, _BEFORE = "file of the row", "number in the file", "rows of earlier files"
_CASTS = {pl.Int64(): "bigint", pl.Float64(): "double", pl.String(): "string"}
"""The types that differing columns are brought to, in Spark's words."""


@dataclass(frozen=True)
class SparkSource:
    """A log in Spark, whose rows are numbered if they come from Parquet files."""

    frame: DataFrame
    table: OpenTable
    """The same log, for the names of its columns."""
    files: tuple[Path, ...] = ()
    """The files, in their order, if the log was named by its path."""

    @property
    def origin(self) -> str:
        """The name of the log in messages."""
        return self.table.origin

    def first_rows(self, rows: int, columns: Sequence[str] = ()) -> pl.DataFrame:
        """Return some rows, not always the same ones, for the names and types of columns."""
        chosen = self.frame.select(*map(column, self.table.present(columns))).limit(rows)
        return to_polars(chosen)

    @cached_property
    def has_numbers(self) -> bool:
        """Whether each row knows its file and its place there."""
        from pyspark.errors import AnalysisException  # noqa: PLC0415

        if _FILE in self.frame.columns:
            return True
        try:
            return bool(self.frame.select("_metadata.file_path", "_metadata.row_index").schema)
        except AnalysisException:
            return False

    def numbered(self, columns: Sequence[str], folder: Path) -> DataFrame:
        """Return columns with `ROW`: the number of each row, from 1, in the order of the files.

        The files of a frame are in the order of their paths. Without numbers `ROW` is null.

        Args:
            columns: the names of the columns.
            folder: an empty folder for a table of the files.
        """
        from pyspark.sql import functions as F  # noqa: PLC0415

        chosen = [column(name) for name in self.table.present(columns)]
        if not self.has_numbers:
            return self.frame.select(F.lit(None).cast("bigint").alias(ROW), *chosen)
        known = _FILE in self.frame.columns
        place = [column(_FILE), column(_INDEX)] if known else _places_of_rows()
        placed = self.frame.select(*place, *chosen)
        sizes = placed.groupBy(_FILE).agg(F.max(_INDEX).alias("last"))
        places = {file: number for number, file in enumerate(self.files)}
        rows = sorted(
            to_polars(sizes).rows(),
            key=lambda row: (places.get(_path_of(row[0]), 0), _path_of(row[0])),
        )
        files = pl.DataFrame(rows, {_FILE: pl.String, "last": pl.Int64}, orient="row")
        before = (pl.col("last") + 1).cum_sum().shift(1, fill_value=0)
        files.select(_FILE, before.alias(_BEFORE)).write_parquet(folder / "files.parquet")
        starts = self.frame.sparkSession.read.parquet(url_to_read(folder / "files.parquet"))
        number = column(_BEFORE) + column(_INDEX) + 1
        return placed.join(F.broadcast(starts), _FILE).select(
            number.cast("bigint").alias(ROW), *map(column, columns)
        )


def open_source(
    source: TableSource, table: OpenTable, session: SparkSession | None = None
) -> SparkSource:
    """Open a frame of Spark, or, with a session, Parquet files by their path.

    Args:
        source: the frame, or a path that `check_path` has passed.
        table: the same, opened.
        session: the session that reads a path.

    Raises:
        InputError: a file has UUIDs, because of which Spark reads none of its columns.
    """
    if is_spark_frame(source):
        return SparkSource(source, table)
    if session is None or not isinstance(source, str | os.PathLike):
        raise TypeError("a path needs a session")
    reader = session.read
    if not Path(source).is_file():  # folders such as day=2024-01-05 hold a column
        reader = reader.option("basePath", url_of(_fixed_part(source)))
    _refuse_uuids(table)
    files = tuple(file.path.resolve() for file in find_files(source))
    if len(table.groups) > 1:
        return SparkSource(*_joined(reader, table), files)
    return SparkSource(reader.parquet(*map(url_to_read, files)), table, files)


def _refuse_uuids(table: OpenTable) -> None:
    for part in (part for group in table.groups for part in group.parts if part.uuids):
        raise InputError(
            f"{part.name}: column {min(part.uuids)!r}: Spark reads no file with the type of UUIDs: "
            "write them as text, or use engine='disk'"
        )


def check_path(source: TableSource) -> None:
    """Check that a source is what Spark can read with numbered rows: Parquet files by their path.

    Raises:
        InputError: it is not.
    """
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            "engine='spark': prepares Spark frames and Parquet files: write this frame to Parquet"
        )
    if isinstance(source, str) and find_named_dataset(source) is not None:
        raise InputError(f"{source}: a named dataset fits in memory: leave out engine='spark'")
    first = find_files(source)[0]
    if first.kind != "Parquet" or first.compression is not None:
        kind = f"compressed {first.kind}" if first.compression else first.kind
        raise InputError(
            f"{source}: engine='spark' reads Parquet, whose rows have numbers, not {kind}: write "
            "it to Parquet, or use engine='disk'"
        )


def url_of(path: Path) -> str:
    """Return a path in Spark's words: of this file system, whatever the default one is."""
    return f"file://{path.resolve()}"


def url_to_read(path: Path) -> str:
    r"""Return the `url_of` a path to read, with no character of it taken for a pattern.

    >>> url_to_read(Path("/logs/day [1].parquet"))
    'file:///logs/day \\[1\\].parquet'
    """
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", url_of(path))


def column(name: str) -> Column:
    """Return the column of a name, whatever characters it has."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    return F.col("`" + name.replace("`", "``") + "`")


def to_polars(rows: DataFrame) -> pl.DataFrame:
    """Return a few rows."""
    return from_spark(cast("pl.DataFrame", pl.from_arrow(rows.toArrow())))


def from_spark(rows: pl.DataFrame) -> pl.DataFrame:
    """Convert times to UTC, since their zone is that of the session, and UTF-8 to text."""
    rows = with_utf8_as_text(rows)
    zoned = [
        name
        for name, kind in rows.schema.items()
        if isinstance(kind, pl.Datetime) and kind.time_zone is not None
    ]
    return rows.with_columns(pl.col(zoned).dt.convert_time_zone("UTC")) if zoned else rows


def _path_of(url: str) -> Path:
    return Path(unquote(urlparse(url).path))


def _fixed_part(source: str | os.PathLike[str]) -> Path:
    """Return the folder above the first wildcard of a pattern; a folder as it is."""
    path = Path(source)
    while is_pattern(path) or not path.is_dir():
        path = path.parent
    return path


def _places_of_rows() -> list[Column]:
    """Return the columns of each row's file and of its number there."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    file, index = F.col("_metadata.file_path"), F.col("_metadata.row_index")
    return [file.alias(_FILE), index.alias(_INDEX)]


def _joined(reader: DataFrameReader, table: OpenTable) -> tuple[DataFrame, OpenTable]:
    """Return Parquet files whose columns differ as one frame, with the places of its rows.

    Returns:
        The frame, and the table without the columns that Spark does not bring to the same values
        as `recsys.data.parts` does, such as days in one file and times in another.
    """
    target = table.frame.to_native().collect_schema()
    readable, unlike = dict[str, pl.DataType](), dict(table.unreadable)
    for name, kind in target.items():
        found = {group.schema[name] for group in table.groups if name in group.schema} - {pl.Null()}
        numbers = all(each.is_numeric() or each == pl.String for each in found)
        if len(found) > 1 and not (numbers and kind in _CASTS):
            types = " and ".join(sorted(map(str, found)))
            unlike[name] = f"is {types}: write it as one type, or use engine='disk'"
        else:
            readable[name] = kind
    rows = [
        reader.parquet(*(url_to_read(Path(str(part.source))) for part in group.parts)).select(
            *_places_of_rows(),
            *(
                _converted(name, group, kind)
                for name, kind in readable.items()
                if name in group.schema
            ),
        )
        for group in table.groups
    ]
    joined = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), rows)
    return joined, replace(table, unreadable=unlike)


def _converted(name: str, group: SchemaGroup, kind: pl.DataType) -> Column:
    """Return a column of some files in its type for all files; see `part_types.converted`."""
    from pyspark.sql import functions as F  # noqa: PLC0415

    values = column(name)
    if name in group.whole:
        if group.schema[name].is_float():
            values = F.when(~F.isnan(values), values)
        values = values.cast("bigint")
    return (values.cast(_CASTS[kind]) if kind in _CASTS else values).alias(name)
