"""The interactions of a log in Spark, numbered along the total order of the log."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from recsys.data.on_disk.sorted_log import SortedLog, number_ids, partition_of, session_names
from recsys.data.on_spark.source import column, url_of, url_to_read
from recsys.data.on_spark.staging import StagedRows
from recsys.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FILES = "part-*.parquet"


@dataclass(frozen=True)
class SortedRows:
    """A log in Spark, and the files that its rows are in."""

    frame: DataFrame
    """partition, user_id and item_id (numbers of ids), timestamp, order (the number of each row
    along the total order, from 0), kept columns."""
    log: SortedLog


def sort_rows(
    staged: StagedRows, folder: Path, part_rows: int, origin: str, *, ordered: bool
) -> SortedRows:
    """Number ids and rows, and write the rows in their order.

    Args:
        staged: the rows.
        folder: the work folder.
        part_rows: the number of rows that this process may hold.
        origin: the name of the log in messages.
        ordered: whether the staged columns are known to order all rows.

    Raises:
        InputError: an id is written in two ways, or nothing orders rows of a user at one time.
    """
    from pyspark.sql import Window  # noqa: PLC0415 - only the engine Spark needs it
    from pyspark.sql import functions as F  # noqa: PLC0415

    sizes = _to_polars(staged.frame.groupBy("user_id").count(), folder / "user-ids")
    items = _to_polars(staged.frame.select("item_id").distinct(), folder / "item-ids")
    users, user_ids = number_ids(sizes, "user_id", origin, staged.names)
    items, item_ids = number_ids(items, "item_id", origin, staged.names)
    spans = _spans(users.group_by("user").agg(pl.col("count").sum().alias("rows")), part_rows)
    users = users.drop("count").join(spans.drop("rows"), on="user")
    users_in_spark = _to_spark(users, staged.frame, folder / "users.parquet")
    items_in_spark = _to_spark(items, staged.frame, folder / "items.parquet")
    numbered = staged.frame.join(users_in_spark, "user_id").join(items_in_spark, "item_id")
    if not ordered:
        _check_order(numbered, staged, user_ids, origin)
    place = F.row_number().over(Window.partitionBy("user").orderBy(*staged.order))
    chosen = numbered.select(
        "partition",
        F.col("user").cast("int").alias("user_id"),
        F.col("item").cast("int").alias("item_id"),
        "timestamp",
        (F.col("start") + place - 1).alias("order"),
        *map(column, staged.kept),
    )
    frame, files = write_sorted(chosen, folder / "sorted")
    return SortedRows(frame, SortedLog(files, user_ids, item_ids, staged.rows))


def split_sessions(rows: SortedRows, gap: int, folder: Path, part_rows: int) -> SortedRows:
    """Make each session a separate user; see `recsys.data.sessions.split_sessions`."""
    from pyspark.sql import Window  # noqa: PLC0415
    from pyspark.sql import functions as F  # noqa: PLC0415

    window = Window.partitionBy("user_id").orderBy("order")
    pause = F.col("timestamp") - F.lag("timestamp").over(window)
    begins = F.coalesce(pause > gap, F.lit(False)).cast("int")
    numbered = rows.frame.withColumn("begins", begins)
    numbered = numbered.withColumn("session", F.sum("begins").over(window) + 1).drop("begins")
    counts = numbered.groupBy("user_id", "session").agg(
        F.count("*").alias("rows"), F.min("order").alias("first")
    )
    found = _to_polars(counts, folder / "counted")
    sessions = found.with_columns(session_names(rows.log.user_ids, found))
    sessions = sessions.sort("name").with_row_index("user")
    session_ids = sessions["name"].alias("user_id")
    moved = sessions.join(_spans(sessions.select("user", "rows"), part_rows), on="user").select(
        "user_id",
        "session",
        "user",
        "partition",
        (pl.col("start") - pl.col("first")).alias("shift"),
    )
    joined = numbered.drop("partition").join(
        _to_spark(moved, rows.frame, folder / "sessions.parquet"), ["user_id", "session"]
    )
    kept = [name for name in rows.frame.columns if name not in _NUMBERS]
    chosen = joined.select(
        "partition",
        F.col("user").cast("int").alias("user_id"),
        "item_id",
        "timestamp",
        (F.col("order") + F.col("shift")).alias("order"),
        *map(column, kept),
    )
    frame, files = write_sorted(chosen, folder / "by-session")
    return SortedRows(frame, replace(rows.log, files=files, user_ids=session_ids))


_NUMBERS = ("partition", "user_id", "item_id", "timestamp", "order")


def write_sorted(rows: DataFrame, path: Path) -> tuple[DataFrame, tuple[Path, ...]]:
    """Write rows to a file per partition, in order; return them as they are read, and the files."""
    spread = rows.repartition("partition").sortWithinPartitions("partition", "order")
    spread.write.option("maxRecordsPerFile", 0).partitionBy("partition").parquet(url_of(path))
    names = {int(part.name.partition("=")[2]): part for part in path.glob("partition=*")}
    files = tuple(file for name in sorted(names) for file in sorted(names[name].glob(_FILES)))
    return read_written(rows, path), files


def read_written(rows: DataFrame, path: Path) -> DataFrame:
    """Return a frame as it is read from where it was written; its types are known without a job."""
    return rows.sparkSession.read.schema(rows.schema).parquet(url_to_read(path))


def count_written(path: Path) -> int:
    """Return the number of rows that were written to a folder."""
    return sum(pq.read_metadata(file).num_rows for file in path.glob(_FILES))


def _spans(users: pl.DataFrame, part_rows: int) -> pl.DataFrame:
    """Add the partition of each user, and start: the number of the user's first row."""
    sizes = pl.col("rows").cast(pl.Int64)
    return users.sort("user").with_columns(
        partition_of("user", "rows", part_rows), (sizes.cum_sum() - sizes).alias("start")
    )


def _check_order(rows: DataFrame, staged: StagedRows, user_ids: pl.Series, origin: str) -> None:
    """Check that a user's rows that differ are ordered by the staged columns.

    Raises:
        InputError: some are not.
    """
    from pyspark.sql import functions as F  # noqa: PLC0415

    alike = ["user", *staged.order]
    different = rows.select(*alike, "item", *map(column, staged.kept)).distinct()
    ties = different.groupBy(*alike).count().where("count > 1")
    first = ties.agg(F.min("user")).collect()[0][0]
    if first is not None:
        raise InputError(
            f"{origin}: user {user_ids[int(first)]!r} has several interactions at one time, and "
            "the rows of a Spark frame have no order: name a column that orders them "
            "(data.columns.position), or read the frame from Parquet files, whose rows have one"
        )


def _to_polars(rows: DataFrame, path: Path) -> pl.DataFrame:
    """Return a small table; it goes through files, since Spark bounds what it hands over."""
    rows.write.parquet(url_of(path))
    return pl.concat([pl.read_parquet(file) for file in sorted(path.glob(_FILES))])


def _to_spark(table: pl.DataFrame, like: DataFrame, path: Path) -> DataFrame:
    """Return a table as a frame of the session of another."""
    signed = [name for name, dtype in table.schema.items() if dtype.is_unsigned_integer()]
    table.with_columns(pl.col(signed).cast(pl.Int64)).write_parquet(path)
    return like.sparkSession.read.parquet(url_to_read(path))
