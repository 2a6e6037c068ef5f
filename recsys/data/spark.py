"""A log in Spark: its workers keep rows and columns, and write Parquet; DuckDB does the rest."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.config import Columns, DataConfig
from recsys.data.database import MISSING_WORDS, name
from recsys.data.log import conditions_of
from recsys.data.sources import SourceFile, find_files, is_pattern, is_spark_frame
from recsys.data.tables import OpenTable, TableSource, open_table
from recsys.data.where import holds_nowhere
from recsys.errors import InputError, one_line

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE, _INDEX = "file of the row", "number in the file"


def spark_table(
    source: TableSource, config: DataConfig, folder: Path, memory: int | None
) -> OpenTable:
    """Let Spark keep the rows of a log, and open the Parquet files that it writes.

    The rows are in the order of the Parquet files that they come from, by path and by place; a
    frame whose rows know no place has no order.

    Args:
        source: a frame of Spark, or the path of Parquet files, for which the active session is
            taken, or one started.
        config: the settings of the log.
        folder: an empty folder beside the dataset, which all machines of Spark share.
        memory: the bytes that tables made of the log may take.

    Raises:
        InputError: the log is none that Spark reads, or Spark failed.
        ModuleNotFoundError: pyspark is not installed.
    """
    is_frame = is_spark_frame(source)
    origin = "the frame" if is_frame else str(source)
    if not is_frame and not isinstance(source, str | os.PathLike):
        raise InputError("engine='spark': prepares Spark frames and Parquet files, not this frame")
    files = find_files(source) if isinstance(source, str | os.PathLike) else ()
    if files and files[0].kind != "Parquet":
        raise InputError(
            f"{source}: engine='spark' reads Parquet, whose rows have numbers, not {files[0].kind}"
        )
    if not config.header:
        raise InputError("data.header: Spark reads Parquet, whose columns have names")
    path = folder.resolve() / "spark"
    with _errors(origin), nullcontext() if is_frame else _session() as session:
        rows: Any = source if session is None else _read(session, source, files)
        dropped = _keep(rows, config, origin, path)
    if not any(path.glob("*.parquet")):
        raise InputError(f"{origin}: no rows")
    table = open_table(path, origin, work=folder, memory=memory)
    types = {column: kind for column, kind in table.types.items() if column not in (_FILE, _INDEX)}
    is_ordered = _FILE in table.types
    order = f" order by {name(_FILE)}, {name(_INDEX)}" if is_ordered else ""
    query = f"select {', '.join(map(name, types))} from ({table.query}){order}"
    return replace(table, query=query, types=types, dropped=dropped, is_ordered=is_ordered)


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Yield the active session, or start one as the environment says, and stop it at the end."""
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only the engine Spark needs it

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers of this machine
    builder: Any = SparkSession.builder.appName("recsys prepare")
    for setting in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(setting, "false")
    session: SparkSession = builder.config("spark.log.level", "OFF").getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def _errors(origin: str) -> Iterator[None]:
    """Make one line of what goes wrong in Spark: its last cause."""
    from pyspark.errors import PySparkException, PySparkRuntimeError  # noqa: I001, PLC0415
    from py4j.protocol import Py4JError  # noqa: PLC0415 - if both are missing, pyspark is named

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="pyspark")
            warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas")
            yield
    except (PySparkException, PySparkRuntimeError, Py4JError) as error:
        cause = str(error).rpartition("Caused by: ")[2].strip().partition("\n")[0]
        raise InputError(f"{origin}: Spark: {one_line(cause, 500)}") from error


def _read(session: SparkSession, source: Any, files: Sequence[SourceFile]) -> DataFrame:
    reader = session.read.option("mergeSchema", "true")
    path = Path(source)
    if not path.is_file():  # folders such as day=2024-01-05 hold a column
        while is_pattern(path) or not path.is_dir():
            path = path.parent
        reader = reader.option("basePath", f"file://{path.resolve()}")
    # No character of a path is a pattern.
    urls = (re.sub(r"([\\*?\[\]{}])", r"\\\1", f"file://{f.path.resolve()}") for f in files)
    return reader.parquet(*urls)


def _keep(rows: DataFrame, config: DataConfig, origin: str, path: Path) -> dict[str, int]:
    """Let Spark's workers write the rows that are left; return how many each condition drops."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra
    from pyspark.sql import functions as F  # noqa: PLC0415

    columns = {column: F.col("`" + column.replace("`", "``") + "`") for column in rows.columns}
    conditions = conditions_of(config, rows.columns, origin)
    try:
        rows = rows.select(
            *columns.values(),
            F.col("_metadata.file_path").alias(_FILE),
            F.col("_metadata.row_index").alias(_INDEX),
        )
        rows.schema  # noqa: B018 - asks Spark whether its rows have places
    except AnalysisException:
        rows = rows.select(*columns.values())
    roles = config.columns or Columns()
    for field in rows.schema:  # words such as NULL are missing ids, which a condition may ask for
        if field.name in (roles.user_id, roles.item_id) and field.dataType.typeName() == "string":
            value = columns[field.name]
            rows = rows.withColumn(field.name, F.when(~F.trim(value).isin(*MISSING_WORDS), value))
    dropped, left = {}, rows.count() if conditions else 0
    for reason, condition in conditions.items():
        if condition.compares_rows:
            raise condition.refused(
                "compares a row with others, which Spark's workers cannot: filter the frame"
            )
        rows = rows.filter(condition.sql.replace(chr(34), "`"))
        before, left = left, rows.count()
        dropped[reason] = before - left
        if before and not left:
            raise holds_nowhere(condition, before, origin)
    rows.write.parquet(f"file://{path}")
    return dropped
