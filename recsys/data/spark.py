"""A frame of Spark: its workers write Parquet, and DuckDB does the rest."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from recsys.config.data import DataConfig
from recsys.data.database import name
from recsys.data.log import conditions_of
from recsys.data.tables import OpenTable, open_table
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
    """Let Spark write the rows of a log, and open its Parquet files.

    The rows are in the order of the Parquet files that they come from, by path and by place; those
    of a frame that know no place have no order. All machines of Spark share the folder, which is
    empty. What Spark cannot do, and no row at all, are an `InputError`.
    """
    from pyspark.errors import PySparkException, PySparkRuntimeError  # noqa: I001, PLC0415
    from py4j.protocol import Py4JError  # noqa: PLC0415 - if both are missing, pyspark is named

    origin, path = "the frame", folder.resolve() / "spark"
    conditions_of(config, frame.columns, origin)  # refuses them before Spark works for hours
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="pyspark")
            _write(frame, path)
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
    return replace(table, query=query, types=types, is_ordered=is_ordered)


def _write(frame: DataFrame, path: Path) -> None:
    """Let Spark's workers write the rows, with their places in Parquet files if they have them."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra
    from pyspark.sql import functions as F  # noqa: PLC0415

    places = F.col("_metadata.file_path").alias(_FILE), F.col("_metadata.row_index").alias(_INDEX)
    try:
        rows = frame.select("*", *places)
        rows.schema  # noqa: B018 - asks Spark whether its rows have places
    except AnalysisException:
        rows = frame
    rows.write.parquet(f"file://{path}")
