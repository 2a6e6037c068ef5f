"""What the workers of Spark do with parts of a log: the rules of `row_rules`, as everywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import cast

import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]

from recsys.config import Columns, DataConfig
from recsys.data.log import BLANK, ROW, whole_times
from recsys.data.log_columns import LogColumn, checked_times, times_of_part
from recsys.data.on_disk.staging import add_facts, check_ids
from recsys.data.on_spark.source import from_spark
from recsys.data.reading import sum_counts
from recsys.data.row_rules import facts_of_condition, keep_interactions
from recsys.data.text_values import TextFacts
from recsys.errors import InputError

TIMES = ("timestamp", "position")
MOMENT = "moment"
"""The time of a row in full precision, which orders rows; its whole seconds are stored."""
NOTE = "note"
"""The column of what a worker found, as JSON, in a row of its own; null in the rows of the log."""
Batches = Iterator[pa.RecordBatch]

_ARROW = {
    pl.Int64(): ("bigint", pa.int64()),
    pl.Float64(): ("double", pa.float64()),
    pl.String(): ("string", pa.string()),
    pl.List(pl.String()): ("array<string>", pa.list_(pa.string())),
}
"""The types of staged columns: polars', Spark's and Arrow's."""


@dataclass
class Found:
    """What a worker, or all of them, found in their rows; parts add up."""

    rows: int = 0
    """The number of rows that are left."""
    dropped: dict[str, int] = field(default_factory=dict)
    facts: dict[str, TextFacts] = field(default_factory=dict)
    """Those of text columns, by role, or by name before roles are known."""
    errors: list[tuple[int, str]] = field(default_factory=list)
    """The row at which a part begins that breaks a rule, and the message."""

    def __add__(self, other: Found) -> Found:
        return Found(
            self.rows + other.rows,
            sum_counts(self.dropped, other.dropped),
            add_facts(self.facts, other.facts),
            self.errors + other.errors,
        )

    def raise_first(self) -> None:
        """Raise the error of the first row, if there is an error.

        Raises:
            InputError: a rule was broken.
        """
        if self.errors:
            raise InputError(min(self.errors)[1])

    def note(self) -> str:
        """Return it as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def of_note(cls, note: str) -> Found:
        """Return what `note` wrote."""
        values = json.loads(note)
        facts = {name: TextFacts(**found) for name, found in values["facts"].items()}
        errors = [(row, message) for row, message in values["errors"]]
        return cls(values["rows"], values["dropped"], facts, errors)


@dataclass(frozen=True)
class RowRules:
    """The rules for the rows of a log, and what all rows say of its text columns."""

    origin: str
    columns: Columns
    config: DataConfig
    tested: Mapping[str, TextFacts] = field(default_factory=dict)
    """Facts of the columns of ``where``, by name."""
    times: Mapping[str, TextFacts] = field(default_factory=dict)
    """Facts of the times, by role."""

    def survey_condition(self, rows: pl.DataFrame) -> Found:
        """Return the facts of the text columns that ``where`` reads."""
        return Found(
            facts=facts_of_condition(_filled(rows), self.config, self.columns, self.origin)
        )

    def survey(self, rows: pl.DataFrame) -> Found:
        """Return the facts of times that are text, in the rows that are interactions."""
        return self._checked(rows)[1]

    def stage(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, Found]:
        """Return the checked rows: row, ids, timestamp, moment, position and kept columns.

        Raises:
            InputError: a value breaks its column's rule.
        """
        checked, found = self._checked(rows)
        for role in TIMES:
            if role not in checked.columns:
                continue
            column = times_of_part(checked[role])
            values = LogColumn(column, checked["row"], self.origin, self.columns.roles[role])
            times = checked_times(values, self.times.get(role))
            moment = MOMENT if role == "timestamp" else role
            checked = checked.with_columns(_moments(times).alias(moment))
            if role == "timestamp":
                whole = whole_times(pl.col(role), times.dtype)
                checked = checked.with_columns(times.alias(role)).with_columns(whole)
        return checked.with_columns(pl.col("row").cast(pl.Int64)), found

    def _checked(self, rows: pl.DataFrame) -> tuple[pl.DataFrame, Found]:
        filled = _filled(rows)
        kept, dropped = keep_interactions(
            filled, self.config, self.columns, self.origin, self.tested
        )
        checked, facts = check_ids(kept, self.columns.roles, self.config.keep, self.origin)
        blanks = len(rows) - len(filled) + len(kept) - len(checked)
        blank = {BLANK: blanks} if blanks else {}
        return checked, Found(len(checked), sum_counts(blank, dropped), facts)


def surveyed(survey: Callable[[pl.DataFrame], Found]) -> Callable[[Batches], Batches]:
    """Return the work of a Spark task that reads rows and returns one note on them."""

    def work(batches: Batches) -> Batches:
        total = Found()
        for rows in map(_rows_of, batches):
            try:
                total += survey(rows)
            except InputError as error:
                total += _failed(rows, error)
        yield pa.RecordBatch.from_pydict({NOTE: [total.note()]})

    return work


def staged(rules: RowRules, schema: Mapping[str, pl.DataType]) -> Callable[[Batches], Batches]:
    """Return the work of a Spark task that returns checked rows, and one note on them.

    Args:
        rules: the rules.
        schema: the types of the staged columns.
    """

    def work(batches: Batches) -> Batches:
        arrow = pa.schema(
            [*((name, _ARROW[dtype][1]) for name, dtype in schema.items()), (NOTE, pa.string())]
        )
        total = Found()
        for rows in map(_rows_of, batches):
            try:
                checked, found = rules.stage(rows)
            except InputError as error:
                total += _failed(rows, error)
                continue
            total += found
            noted = checked.with_columns(pl.lit(None, pl.String).alias(NOTE)).select(arrow.names)
            table = noted.to_arrow(compat_level=pl.CompatLevel.oldest())
            yield from table.cast(arrow).to_batches()
        none = {name: [None] for name in schema}
        yield pa.RecordBatch.from_pydict({**none, NOTE: [total.note()]}, schema=arrow)

    return work


def spark_schema(schema: Mapping[str, pl.DataType]) -> str:
    """Return the types of staged columns and of the note in Spark's words."""
    kinds = {name: _ARROW[dtype][0] for name, dtype in schema.items()} | {NOTE: "string"}
    return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in kinds.items())


def _rows_of(batch: pa.RecordBatch) -> pl.DataFrame:
    return from_spark(cast("pl.DataFrame", pl.from_arrow(batch)))


def _filled(rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that have any value."""
    return rows.filter(~pl.all_horizontal(pl.exclude(ROW).is_null()))


def _failed(rows: pl.DataFrame, error: InputError) -> Found:
    return Found(errors=[(rows[ROW].min() or 0, str(error))])  # type: ignore[list-item]


def _moments(times: pl.Series) -> pl.Series:
    """Return times that order rows: numbers as they are, dates as microseconds since 1970."""
    if times.dtype == pl.Date:
        times = times.cast(pl.Datetime("us"))
    if times.dtype == pl.Datetime:
        return times.dt.timestamp("us")
    return times + 0.0 if times.dtype.is_float() else times  # no negative zero: Spark orders it
