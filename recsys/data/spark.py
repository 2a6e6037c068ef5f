"""A log in Spark: its workers keep rows and columns, and write Parquet; DuckDB does the rest."""

from __future__ import annotations

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recsys.config import Columns, DataConfig
from recsys.data.database import MISSING_WORDS, name
from recsys.data.log import conditions_of
from recsys.data.sources import find_files, is_pattern, is_spark_frame
from recsys.data.tables import OpenTable, TableSource, open_table
from recsys.data.where import holds_nowhere
from recsys.errors import InputError, one_line

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Yield the active session, or start one as the environment says, and stop it at the end.

    Raises:
        ModuleNotFoundError: pyspark is not installed.
        InputError: the session cannot be started.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - only the engine Spark needs it

    active = SparkSession.getActiveSession()
    if active is not None:
        yield active
        return
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # the workers of this machine
    builder: Any = SparkSession.builder.appName("recsys prepare")
    for setting in ("spark.ui.enabled", "spark.ui.showConsoleProgress"):
        builder = builder.config(setting, "false")
    with spark_errors("Spark"):
        session: SparkSession = builder.config("spark.log.level", "OFF").getOrCreate()
    try:
        yield session
    finally:
        session.stop()


@contextmanager
def spark_errors(origin: str) -> Iterator[None]:
    """Make one line of what goes wrong in Spark: its last cause.

    Raises:
        InputError: Spark failed.
    """
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


def spark_table(
    source: TableSource, config: DataConfig, folder: Path, memory: int | None
) -> OpenTable:
    """Let Spark keep the rows of a log, and open the Parquet files that it writes.

    The rows are in the order of the Parquet files that they come from, by path and by place; a
    frame whose rows know no place is in the order in which Spark writes them.

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
    origin = "the frame" if is_spark_frame(source) else str(source)
    if not is_spark_frame(source):
        _check_path(source)
    if not config.header:
        raise InputError("data.header: Spark reads Parquet, whose columns have names")
    kept = folder.resolve() / "spark"
    active = nullcontext() if is_spark_frame(source) else spark_session()
    with spark_errors(origin), active as session:
        dropped = _keep(source, config, origin, kept, session)
    path = kept / "rows"
    if not any(path.glob("*.parquet")):
        raise InputError(f"{origin}: no rows")
    opened = open_table(path, origin, work=folder, memory=memory)
    names = [column for column in opened.types if column not in (_FILE, _INDEX)]
    order = ""
    if _FILE in opened.types:
        order = f" order by {name(_FILE)}, {name(_INDEX)}"
    query = f"select {', '.join(map(name, names))} from ({opened.query}){order}"
    types = {column: opened.types[column] for column in names}
    return replace(
        opened, query=query, types=types, dropped=dropped, is_ordered=_FILE in opened.types
    )


_FILE, _INDEX = "file of the row", "number in the file"


def _check_path(source: TableSource) -> None:
    """Check that a source is what Spark can read with numbered rows: Parquet files by their path.

    Raises:
        InputError: it is not.
    """
    if not isinstance(source, str | os.PathLike):
        raise InputError(
            "engine='spark': prepares Spark frames and Parquet files: write this frame to Parquet"
        )
    first = find_files(source)[0]
    if first.kind != "Parquet" or first.compression is not None:
        kind = f"compressed {first.kind}" if first.compression else first.kind
        raise InputError(
            f"{source}: engine='spark' reads Parquet, whose rows have numbers, not {kind}: write "
            "it to Parquet, or leave out engine='spark'"
        )


def _keep(
    source: TableSource,
    config: DataConfig,
    origin: str,
    folder: Path,
    session: SparkSession | None,
) -> dict[str, int]:
    """Let Spark's workers write the rows that are left; return how many each condition drops."""
    from pyspark.errors import AnalysisException  # noqa: PLC0415 - an extra
    from pyspark.sql import functions as F  # noqa: PLC0415

    if session is None:
        rows: DataFrame = source  # type: ignore[assignment]
    else:
        reader = session.read.option("mergeSchema", "true")
        path = Path(source)  # type: ignore[arg-type]
        if not path.is_file():  # folders such as day=2024-01-05 hold a column
            while is_pattern(path) or not path.is_dir():
                path = path.parent
            reader = reader.option("basePath", f"file://{path.resolve()}")
        rows = reader.parquet(*(_url(file.path) for file in find_files(source)))  # type: ignore[arg-type]
    columns = list(map(_column, rows.columns))
    conditions = conditions_of(config, rows.columns, origin)
    try:
        rows = rows.select(
            *columns,
            F.col("_metadata.file_path").alias(_FILE),
            F.col("_metadata.row_index").alias(_INDEX),
        )
        rows.schema  # noqa: B018 - asks Spark whether its rows have places
    except AnalysisException:
        rows = rows.select(*columns)
    columns_of_ids = config.columns or Columns()
    for column in {columns_of_ids.user_id, columns_of_ids.item_id} & {
        field.name for field in rows.schema if field.dataType.simpleString() == "string"
    }:  # words such as NULL are missing ids, which a condition may ask for
        value = _column(column)
        rows = rows.withColumn(column, F.when(~F.trim(value).isin(*MISSING_WORDS), value))
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
    rows.write.parquet(f"file://{folder / 'rows'}")
    return dropped


def _url(path: Path) -> str:
    r"""Return a path in Spark's words, with no character of it taken for a pattern.

    >>> _url(Path("/logs/day [1].parquet"))
    'file:///logs/day \\[1\\].parquet'
    """
    return re.sub(r"([\\*?\[\]{}])", r"\\\1", f"file://{path.resolve()}")


def _column(column: str) -> Column:
    from pyspark.sql import functions as F  # noqa: PLC0415

    return F.col("`" + column.replace("`", "``") + "`")
