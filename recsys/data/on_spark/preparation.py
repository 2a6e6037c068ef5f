"""How a log in Spark becomes the arrays of a dataset: Spark sorts and filters, this process writes.

The rules for rows are those of `recsys.data.row_rules`, run by the workers of Spark on parts of the
log, and the rules for times, duplicates and counts are the Narwhals expressions of
`recsys.data.log`. Tokens come from tables of the distinct ids, which this process numbers.
"""

from __future__ import annotations

import logging
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import narwhals as nw
import polars as pl

from recsys.config import DataConfig
from recsys.data.arrays import PreparedLog
from recsys.data.log import InteractionLog
from recsys.data.on_disk.arrays import write_parts
from recsys.data.on_disk.preparation import row_size
from recsys.data.on_spark.filters import filter_rows
from recsys.data.on_spark.session import is_spark_frame, spark_errors, spark_session
from recsys.data.on_spark.sorted_rows import sort_rows, split_sessions
from recsys.data.on_spark.source import SparkSource, check_path, open_source
from recsys.data.on_spark.staging import stage_rows
from recsys.data.reading import note_padded_ids, settle_by, sum_counts
from recsys.data.splits import SplitChoice
from recsys.data.tables import TableSource, open_table
from recsys.data.where import reads_rows_alone
from recsys.errors import InputError
from recsys.progress import stage

logger = logging.getLogger(__name__)

_AT_ONCE = 4
"""How many parts of the log may be in the memory of this process at once."""
_MOST_ROWS = 1 << 22
"""Rows of a part: more would leave machines of a cluster idle."""
_STEPS = 5


def prepare_on_spark(
    source: TableSource | InteractionLog,
    config: DataConfig,
    folder: Path,
    memory: int,
    items: pl.DataFrame | None = None,
    users: pl.DataFrame | None = None,
    choose_split: SplitChoice | None = None,
) -> PreparedLog:
    """Prepare a log in Spark, to the bytes that it would have in memory.

    Beside parts of the log, the memory of this process holds the ids of all users, or sessions, and
    items, and ten numbers per user.

    Args:
        source: a frame of Spark, or the path of Parquet files, for which the active session is
            taken, or one started.
        config: how to read and prepare it.
        folder: an empty folder beside the dataset for intermediate files and the arrays, which all
            machines of Spark share.
        memory: bytes.
        items: item_id and features, if there are any.
        users: user_id and features, if there are any.
        choose_split: see `recsys.data.arrays.build_arrays`.

    Raises:
        InputError: the log or a table is invalid, a setting is none for Spark, or Spark failed.
        ModuleNotFoundError: pyspark is not installed.
    """
    if isinstance(source, InteractionLog):
        raise InputError(f"engine='spark': {source.origin} was read already: it is in memory")
    frame = is_spark_frame(source)
    if not frame:
        check_path(source)
    if not config.header:
        raise InputError("data.header: Spark reads Parquet, whose columns have names")
    name = "the frame" if frame else str(source)
    with spark_errors(name):
        table = open_table(source)
        where = config.where
        if where is not None and not reads_rows_alone(where, table.names, table.origin):
            raise InputError(
                f"data.where {where!r}: compares a row with others, which Spark's workers cannot: "
                "filter the frame, or leave out engine='spark'"
            )
        with nullcontext() if frame else spark_session() as session:
            log = open_source(source, table, session)
            return _prepare(log, config, folder.resolve(), memory, items, users, choose_split)


def _prepare(
    source: SparkSource,
    config: DataConfig,
    folder: Path,
    memory: int,
    items: pl.DataFrame | None,
    users: pl.DataFrame | None,
    choose_split: SplitChoice | None,
) -> PreparedLog:
    origin = source.origin
    columns, config = settle_by(source.first_rows, config, source.table)
    if columns.timestamp not in source.table.names and not source.has_numbers:
        raise InputError(f"{origin}: its rows have no order: name a column of their times")
    note_padded_ids(replace(source.table, frame=nw.from_native(source.frame)), columns)
    size = row_size(config, source.table.names, origin)
    part_rows = min(max(1, memory // (size * _AT_ONCE)), _MOST_ROWS)
    arrays = folder / "arrays"
    arrays.mkdir()
    with stage(f"preparing {origin}", _STEPS, even=False) as progress:
        progress.say("checking rows")
        staged = stage_rows(source, config, columns, folder)
        progress.advance()
        progress.say("sorting")
        rows = sort_rows(staged, folder, part_rows, origin, ordered=bool(source.files))
        progress.advance()
        fingerprint = rows.log.fingerprint()
        progress.advance()
        progress.say("filtering")
        if config.session_gap is not None:
            rows = split_sessions(rows, config.session_gap, folder, part_rows)
        filtered = filter_rows(rows, config, origin, folder)
        progress.advance()
        progress.say("writing")
    with stage(f"writing {origin}", filtered.log.rows) as progress:
        given = filtered, items, users, config, columns, origin
        contents = write_parts(arrays, *given, progress, choose_split)
    dropped = sum_counts(staged.dropped, filtered.dropped)
    form = config.time_format
    return PreparedLog(origin, columns, fingerprint, dropped, contents, arrays, form)
