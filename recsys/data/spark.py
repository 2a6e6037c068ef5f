"""A frame of Spark: its workers keep rows and write Parquet; DuckDB does the rest."""

from __future__ import annotations

import re
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from recsys.config.data import Columns, DataConfig
from recsys.data.columns import WORDS, guess_columns
from recsys.data.database import MISSING_WORDS, name
from recsys.data.log import SAMPLE_ROWS, conditions_of
from recsys.data.tables import OpenTable, open_table
from recsys.data.where import NoRowsLeftError
from recsys.errors import InputError, one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_FILE, _INDEX = "file of the row", "number in the file"


def is_spark_frame(source: object) -> bool:
    """Return whether this is a frame of Spark, of a session in this process or of Spark Connect."""
    sql = sys.modules.get("pyspark.sql")  # who has a frame has loaded it
    return sql is not None and isinstance(source, sql.DataFrame)


def spark_table(
    frame: DataFrame, config: DataConfig, folder: Path, memory: int | None
) -> OpenTable:
    """Let Spark keep the rows of a log, and open the Parquet files that it writes.

    The rows are in the order of the Parquet files that they come from, by path and by place; those
    of a frame that know no place have no order. All machines of Spark share the folder, which is
    empty. What Spark cannot do, and no row at all, are an `InputError`.
    """
    from pyspark.errors import PySparkException, PySparkRuntimeError  # noqa: I001, PLC0415
    from py4j.protocol import Py4JError  # noqa: PLC0415 - if both are missing, pyspark is named

    origin, path = "the frame", folder.resolve() / "spark"
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="pyspark")
            warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
            dropped = _keep(frame, config, origin, path)
    except (PySparkException, PySparkRuntimeError, Py4JError) as error:  # its last cause
        cause = str(error).rpartition("Caused by: ")[2].strip().partition("\n")[0]
        raise InputError(f"{origin}: Spark: {one_line(cause, 500)}") from error
    if not any(path.glob("*.parquet")):
        raise InputError(f"{origin}: no rows")
    table = open_table(path, origin, work=folder, memory=memory)
    types = {column: kind for column, kind in table.types.items() if column not in (_FILE, _INDEX)}
    is_ordered = _FILE in table.types
    order = f" order by {name(_FILE)}, {name(_INDEX)}" if is_ordered else ""
    query = f"select {', '.join(map(name, types))} from ({table.query}){order}"
    return replace(table, query=query, types=types, dropped=dropped, is_ordered=is_ordered)


def _keep(frame: DataFrame, config: DataConfig, origin: str, path: Path) -> dict[str, int]:
    """Let Spark's workers write the rows that are left; return how many each condition drops."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra
    from pyspark.sql import functions as F  # noqa: PLC0415

    columns = {column: F.col("`" + column.replace("`", "``") + "`") for column in frame.columns}
    conditions = conditions_of(config, frame.columns, origin)
    try:
        rows = frame.select(
            *columns.values(),
            F.col("_metadata.file_path").alias(_FILE),
            F.col("_metadata.row_index").alias(_INDEX),
        )
        rows.schema  # noqa: B018 - asks Spark whether its rows have places
    except AnalysisException:
        rows = frame.select(*columns.values())
    roles = config.columns or Columns()
    if not WORDS.keys() <= roles.model_fields_set:
        sample = pl.DataFrame(frame.limit(SAMPLE_ROWS).toArrow())
        roles = guess_columns(sample, config.columns, origin, config.time_format)
    for field in rows.schema:  # words such as NULL are missing ids, which a condition may ask for
        if field.name in roles.roles.values() and field.dataType.typeName() == "string":
            value = columns[field.name]
            rows = rows.withColumn(field.name, F.when(~F.trim(value).isin(*MISSING_WORDS), value))
    dropped, left = {}, rows.count() if conditions else 0
    for reason, condition in conditions.items():
        rows = rows.filter(re.sub(r"'[^']*'|\"[^\"]*\"", _in_spark, condition.sql))
        before, left = left, rows.count()
        dropped[reason] = before - left
        if before and not left:
            raise NoRowsLeftError(condition.written, before, origin)
    rows.write.parquet(f"file://{path}")
    return dropped


def _in_spark(quoted: re.Match[str]) -> str:
    """Return a text or a name of DuckDB's SQL as Spark's has it, where a backslash escapes."""
    is_text = quoted[0].startswith("'")
    return quoted[0].replace("\\", r"\\") if is_text else f"`{quoted[0][1:-1]}`"
