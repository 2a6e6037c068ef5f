"""A log in Spark is checked part by part by its workers, and its interactions are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]

from recsys.config import Columns, DataConfig
from recsys.data.log import BLANK, KEPT, ROW
from recsys.data.log_columns import roles_of
from recsys.data.on_spark.rows import (
    MOMENT,
    NOTE,
    TIMES,
    Batches,
    Found,
    RowRules,
    spark_schema,
    staged,
    surveyed,
)
from recsys.data.on_spark.source import SparkSource, column, to_polars, url_of, url_to_read
from recsys.data.row_rules import rule_columns
from recsys.data.where import holds_nowhere, where_columns
from recsys.errors import InputError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FEW_ROWS = 1_000
_PROBES = 16
"""Tasks that look at the folder: more than a few, so that most machines of a cluster run one."""


@dataclass(frozen=True)
class StagedRows:
    """The checked interactions of a log, in Spark."""

    frame: DataFrame
    """row, user_id, item_id (as read), timestamp (int64), moment, position, kept columns."""
    rows: int
    names: Mapping[str, str]
    """The column of each role."""
    dropped: Mapping[str, int]
    """The number of dropped rows, by reason."""
    kept: tuple[str, ...]
    """The names of the kept columns, with their prefix."""

    @property
    def order(self) -> list[str]:
        """The columns that order a user's rows."""
        return [name for name in (MOMENT, "position", "row") if name in self.frame.columns]


def stage_rows(
    source: SparkSource, config: DataConfig, columns: Columns, folder: Path
) -> StagedRows:
    """Write the rows that are interactions into a folder; see `read_source` for the rules.

    Args:
        source: the log.
        config: how to read it.
        columns: the names of its columns.
        folder: an empty folder that all machines of Spark share.

    Raises:
        InputError: a rule or condition does not fit, a value breaks its column's rule, or the
            machines do not share the folder.
    """
    rules = RowRules(source.origin, columns, config)
    names = roles_of(columns, source.origin)
    ruled = rule_columns(config, source.table.names, source.origin)
    wanted = source.table.present([*names.values(), *config.keep, *ruled])
    first = source.first_rows(0, wanted).with_columns(pl.lit(None, pl.Int64).alias(ROW))
    rules.stage(first)  # what cannot be kept or compared is refused before any work
    _check_folder(source.frame.sparkSession, folder)
    rows = source.numbered(wanted, folder)
    if config.where is not None:
        tested = where_columns(config.where, source.table.names, source.origin)
        if any(first.schema[name] == pl.String for name in tested):
            rules = replace(rules, tested=_survey(rows, rules.survey_condition).facts)
    texts = any(first.schema.get(names[role]) == pl.String for role in TIMES if role in names)
    if texts or config.time_format is not None:  # which makes text of numbers
        rules = replace(rules, times=_survey(rows, rules.survey).facts)
    empty, nothing = rules.stage(first)
    schema = dict(empty.schema)
    path = folder / "staged"
    rows.mapInArrow(staged(rules, schema), spark_schema(schema)).write.parquet(url_of(path))
    written = rows.sparkSession.read.parquet(url_to_read(path))
    found = _sum_of_notes(written.where(column(NOTE).isNotNull()).select(NOTE))
    blanks = found.dropped.get(BLANK, 0)
    if not found.rows:
        if config.where is not None and found.dropped["where"]:
            some = to_polars(rows.orderBy(column(ROW)).limit(_FEW_ROWS)).drop(ROW)
            read = sum(found.dropped.values()) - blanks
            raise holds_nowhere(some, config.where, source.origin, read)
        raise InputError(f"{source.origin}: no rows")
    reasons = [BLANK] * bool(blanks) + list(nothing.dropped)
    return StagedRows(
        frame=written.where(column(NOTE).isNull()).drop(NOTE),
        rows=found.rows,
        names=names,
        dropped={reason: found.dropped[reason] for reason in reasons},
        kept=tuple(KEPT + name for name in config.keep),
    )


def _survey(rows: DataFrame, survey: Callable[[pl.DataFrame], Found]) -> Found:
    return _sum_of_notes(rows.mapInArrow(surveyed(survey), f"{NOTE} string"))


def _sum_of_notes(notes: DataFrame) -> Found:
    """Add up the notes of all tasks.

    Raises:
        InputError: one of them has an error.
    """
    total = sum((Found.of_note(row[0]) for row in notes.collect()), Found())
    total.raise_first()
    return total


def _check_folder(session: SparkSession, folder: Path) -> None:
    """Check that the workers of Spark see a folder of this process.

    Raises:
        InputError: a worker does not.
    """

    def look(batches: Batches) -> Batches:
        seen = folder.is_dir()
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"seen": [seen] * batch.num_rows})

    tasks = session.range(0, _PROBES, 1, _PROBES).mapInArrow(look, "seen boolean")
    if not all(row[0] for row in tasks.collect()):
        raise InputError(
            f"{folder.parent}: Spark's workers do not see this folder: the dataset must be written "
            "to a disk that all machines share"
        )
