"""The interaction log in DuckDB: checked, typed, sorted into one total order, and filtered.

A rule reads all rows of a column: none depends on how a source is divided.
"""

import hashlib
import logging
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import duckdb
import polars as pl

from recsys.config.data import ROW_ORDER, TIME_IS_NUMBER, Columns, DataConfig, GlobalTime
from recsys.data.columns import WORDS, guess_columns
from recsys.data.database import PLAIN_INTEGER, WHOLE, cursor, name, text
from recsys.data.splits import BLOCK
from recsys.data.tables import OpenTable, as_polars
from recsys.data.times import compact_form, date_of_form, fitting_forms, time_like
from recsys.data.where import Condition, NoRowsLeftError, keep_rows, parse
from recsys.errors import InputError

logger = logging.getLogger(__name__)

KEPT = "kept."
"""Prefix of the names of kept columns, so that they cannot clash with the log's own columns."""
SAMPLE_ROWS, _MANY_ROWS = 1_000, 1_000_000
"""First rows whose values help to guess columns; those read where their dates have several forms.
"""
_ROUNDED = r"-?\d[.,]\d+E\+(?:0[5-9]|[1-9]\d)"
"""A long number that a spreadsheet has rounded, such as 8.9012E+12 for 8901234567890."""


# --- Columns and forms of times -------------------------------------------------------------------


def conditions_of(config: DataConfig, names: Sequence[str], origin: str) -> dict[str, Condition]:
    """Return the conditions of ``where``, by the reasons that count what they drop; see `parse`."""
    where = config.where or {}
    named = {"where": where} if isinstance(where, str) else where
    return {reason: parse(condition, names, origin) for reason, condition in named.items()}


def settle(table: OpenTable, config: DataConfig) -> tuple[Columns, DataConfig]:
    """Return the columns of a log, guessed if not given, and settings with the form of dates."""
    columns = config.columns or Columns()
    if not WORDS.keys() <= columns.model_fields_set:
        sample = table.read(rows=SAMPLE_ROWS)
        columns = guess_columns(sample, config.columns, table.origin, config.time_format)
        guesses = (f"{word} {getattr(columns, role)!r}" for role, word in WORDS.items())
        logger.info("%s: its columns are %s", table.origin, ", ".join(guesses))
    column = columns.timestamp
    if config.time_format is not None or column not in table.names:  # row-order is none of them
        return columns, config
    times = table.read([column], SAMPLE_ROWS)[column]
    if len(forms := fitting_forms(times)) > 1 and len(times) == SAMPLE_ROWS:
        times = table.read([column], _MANY_ROWS)[column]
        forms = fitting_forms(times)
    form = forms[0] if len(forms) == 1 else compact_form(times)
    if form is not None:
        digits = form.replace("%", "").isalpha()  # such as %Y%m%d
        numbers = f"; --time-format {TIME_IS_NUMBER} says that they are numbers" if digits else ""
        logger.info(
            "%s: column %r has dates in the form %r, as with --time-format%s",
            *(table.origin, column, form, numbers),
        )
    return columns, config.model_copy(update={"time_format": form})


# --- The log --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Log:
    """Checked interactions of users with items, in one total order, in tables of DuckDB.

    Rows are sorted by user, then time, then the position column if there is one, then their order
    in the source. The table ``log``, whose rowids ascend in that order, has ``u`` and ``i``
    (numbers of user and item ids, ascending after those ``known``), ``timestamp`` (int64: numbers
    rounded down, dates as seconds since 1970 UTC) and the kept columns; ``users`` and ``items``
    have the ids.
    """

    connection: duckdb.DuckDBPyConnection
    origin: str
    """The name of the file or dataset in messages."""
    columns: Columns
    """The names of the columns in the source."""
    keep: tuple[str, ...] = ()
    """The names of the kept columns: int64, float64, text or lists of text."""
    known: Mapping[str, pl.Series] = field(default_factory=dict)
    """The ids that are numbered first, in their order, by role."""
    dropped: Counter[str] = field(default_factory=Counter)
    """The number of dropped rows, by reason: they and ``rows`` add up to the rows of the source."""
    time_format: str | None = None
    """The form that dates were read by, given or found; None if that of ISO 8601 alone."""
    are_dates: bool = False
    """Whether times are dates, and seconds since 1970 therefore."""
    rows: int = 0
    fingerprint: str = ""
    """SHA-256 of the rows as read, in order, independent of the file or frame they came from."""

    def first(self, query: str) -> tuple[Any, ...]:
        """Return the first row of a query."""
        return tuple(self.connection.execute(query).fetchall()[0])

    def frame(self, query: str) -> pl.DataFrame:
        """Return the rows of a query."""
        return as_polars(self.connection.sql(query).to_arrow_table())

    def blocks(self, query: str) -> Iterator[pl.DataFrame]:
        """Yield the rows of a query, `BLOCK` at a time."""
        for batch in self.connection.sql(query).to_arrow_reader(BLOCK):
            yield pl.DataFrame(batch)

    def drop(self, table: str, reason: str, condition: str) -> None:
        """Delete the rows of a table for which a condition holds, and count them."""
        (count,) = self.first(f"delete from {table} where {condition}")
        if count:
            self.dropped[reason] += count
        self.rows -= count

    def table(self) -> pl.DataFrame:
        """Return user_id, item_id, timestamp and kept columns in order."""
        kept = (KEPT + column for column in self.keep)
        chosen = ", ".join(map(name, ("user_id", "item_id", "timestamp", *kept)))
        joined = "log join users using (u) join items using (i)"
        return self.frame(f"select {chosen} from {joined} order by log.rowid")

    def compute_fingerprint(self) -> str:
        """Return the SHA-256 of all rows; called before any filter."""
        digest = hashlib.sha256()
        for table in ("users order by u", "items order by i", "log"):
            for block in self.blocks(f"from {table}"):
                digest.update(block.write_ndjson().encode())
        return digest.hexdigest()


def read_log(
    table: OpenTable,
    config: DataConfig,
    columns: Columns | None = None,
    *,
    with_fingerprint: bool = True,
) -> Log:
    """Read a log: drop rows by conditions, check values, sort.

    Columns that are not given are those of the config, or found, and so is the form of dates; see
    `settle`. Messages number data rows from 1, without the header. Scoring needs no fingerprint.
    """
    if columns is None:
        columns, config = settle(table, config)
    origin, roles = table.origin, columns.roles
    log = Log(table.connection, origin, columns, config.keep, time_format=config.time_format)
    for column in roles.values():
        if len(same := [role for role in roles if roles[role] == column]) > 1:
            raise InputError(f"{origin}: column {column!r} cannot be both {' and '.join(same)}")
    conditions = conditions_of(config, table.names, origin)
    needed = dict.fromkeys(roles.values())
    if columns.timestamp == ROW_ORDER and ROW_ORDER not in table.names:
        del needed[ROW_ORDER]
    needed |= dict.fromkeys(config.keep)
    needed |= dict.fromkeys(c for condition in conditions.values() for c in condition.columns)
    rows = _Rows(log, table)
    rows.load([*needed])
    rows.drop_blank([*needed])
    rows.drop_by(conditions)
    rows.drop_blank([*roles.values(), *config.keep])
    rows.type_columns(config)
    if not table.is_ordered:
        _refuse_ties(log)
    sort_rows(log)
    if with_fingerprint:
        log.fingerprint = log.compute_fingerprint()
    return log


def _refuse_ties(log: Log) -> None:
    """Refuse rows of one user and time that nothing orders."""
    position = ", position" * (log.columns.position is not None)
    tied = f"select 1 from typed group by user_id, moment{position} having count(*) > 1 limit 1"
    if log.columns.timestamp == ROW_ORDER or log.connection.execute(tied).fetchall():
        raise InputError(
            f"{log.origin}: its rows have no order, and some of one user have one time: name a "
            "column that orders them (data.columns.position), or write the frame to Parquet"
        )


@dataclass(slots=True)
class _Rows:
    """The needed columns of a log as its source has them, in the table ``staged``.

    Dropped rows are deleted there, so that the rowids of the others stay those of the source.
    """

    log: Log
    source: OpenTable
    types: dict[str, str] = field(default_factory=dict)
    """DuckDB's types of the columns; those of the roles become BIGINT and DOUBLE where they can."""
    sql: dict[str, str] = field(default_factory=dict)
    """The columns in SQL, as these types."""

    def load(self, columns: Sequence[str]) -> None:
        """Read columns; bytes are text."""
        chosen = ", ".join(
            f"decode({name(column)}) as {name(column)}"
            if self.source.types[column] == "BLOB"
            else name(column)
            for column in self.source.present(columns)
        )
        query = f"select {chosen} from ({self.source.selected(columns)})"
        with self.source.errors():
            staged = f"create or replace temp table staged as {query}"
            (self.log.rows,) = self.log.first(staged)
        relation = self.log.connection.table("staged")
        self.types = dict(zip(relation.columns, map(str, relation.types), strict=True))
        self.sql = {column: name(column) for column in self.types}

    def drop_blank(self, columns: Sequence[str]) -> None:
        """Drop the rows without a value in any of some columns."""
        blank = (f"{self.sql[column]} is null" for column in columns if column in self.sql)
        self.log.drop("staged", "blank rows", " and ".join(blank))

    def drop_by(self, conditions: dict[str, Condition]) -> None:
        """Drop the rows for which conditions do not hold; words such as NULL are missing ids."""
        ids = self.log.columns.roles.values()
        for reason, condition in conditions.items():
            rows, origin = self.log.rows, self.log.origin
            dropped = keep_rows(self.log.connection, "staged", condition, origin, ids)
            self.log.dropped[reason] += dropped
            self.log.rows -= dropped
            if rows and not self.log.rows:
                raise NoRowsLeftError(condition.written, rows, origin)

    # --- Types -----------------------------------------------------------------------------------

    def type_columns(self, config: DataConfig) -> None:
        """Make the rows with the types of their columns, and their numbers, the view ``typed``."""
        if not self.log.rows:
            raise InputError(f"{self.log.origin}: no rows")
        kept = {KEPT + column: self._kept(column) for column in self.log.keep}
        roles = self.log.columns.roles
        self._find_integers([column for column in roles.values() if column in self.types])
        columns = {role: self._ids(roles[role]) for role in ("user_id", "item_id")}
        times = self._times(roles["timestamp"], config.time_format)
        columns["moment"], columns["timestamp"] = times
        if "position" in roles:
            columns["position"] = self._times(roles["position"], None)[0]
        chosen = ", ".join(f"{sql} as {name(column)}" for column, sql in (columns | kept).items())
        self.log.connection.execute(
            f"create or replace temp view typed as select rowid as row, {chosen} from staged"
        )

    def _find_integers(self, roles: Sequence[str]) -> None:
        """Take text of whole numbers for integers; in frames, that of floats such as 7.0 alone."""
        for column in roles:
            self._find_numbers(column)
        columns = [column for column in roles if self.types[column] == "VARCHAR"]
        rule = "bool_and(is_whole({0}))"
        if not self.source.is_text:
            ids = (self.log.columns.user_id, self.log.columns.item_id)
            columns = [column for column in columns if column in ids]
            rule += " and bool_or(suffix({0}, '.0'))"
        facts = self._facts(*(rule.format(name(column)) for column in columns))
        for column, is_whole in zip(columns, facts, strict=True):
            if is_whole:
                self.types[column], self.sql[column] = "BIGINT", f"whole_in({name(column)})"

    def _find_numbers(self, column: str) -> None:
        """Make integers of all sizes, and whole decimals, one type, and other decimals floats."""
        sql, kind = self.sql[column], self.types[column]
        is_decimal = kind.startswith("DECIMAL") and not kind.endswith("[]")
        is_whole = is_decimal and self._facts(f"bool_and({sql} = floor({sql}))")[0]
        if kind in WHOLE or is_whole:
            self.types[column], self.sql[column] = "BIGINT", self._integer(column)
        elif is_decimal:
            self.types[column], self.sql[column] = "DOUBLE", f"{sql}::double"

    def _integer(self, column: str) -> str:
        sql = self.sql[column]
        if self.types[column] != "BIGINT":
            bad = f"{sql} is not null and try_cast({sql} as bigint) is null"
            self._refuse(column, bad, "an integer of more than 64 bits")
        return f"{sql}::bigint"

    def _facts(self, *aggregates: str) -> tuple[Any, ...]:
        return self.log.first(f"select {', '.join(aggregates)} from staged") if aggregates else ()

    def _first_bad(self, column: str, bad: str) -> tuple[str, Any] | None:
        """Return the place and the value of the first row for which something holds."""
        plain = "::timestamp" if "TIME ZONE" in self.types[column] else ""  # Python needs pytz
        rows = self.log.connection.execute(
            f"select rowid + 1, {name(column)}{plain} from staged where {bad} "
            "order by rowid limit 1"
        ).fetchall()
        place = f"{self.log.origin}: column {column!r}, data row "
        return next(((f"{place}{row}", value) for row, value in rows), None)

    def _refuse(self, column: str, bad: str, rule: str) -> None:
        """Raise an `InputError` that names the first bad value, if there is one."""
        if (first := self._first_bad(column, bad)) is not None:
            raise InputError(f"{first[0]}: {rule}: {first[1]!r}")

    def _refuse_missing(self, column: str, what: str) -> None:
        sql, kept = self.sql[column], shlex.quote(f"{name(column)} is not null")
        rule = f"{what} is missing (recsys prepare --where {kept} drops such rows)"
        missing = {"VARCHAR": f"present({sql}) is null", "DOUBLE": f"{sql} is null or isnan({sql})"}
        self._refuse(column, missing.get(self.types[column], f"{sql} is null"), rule)

    def _refuse_type(self, column: str, rule: str) -> NoReturn:
        raise InputError(f"{self.log.origin}: column {column!r}: {rule}, not {self.types[column]}")

    def _ids(self, column: str) -> str:
        """Return ids in SQL: integers or text; check them."""
        sql, kind = self.sql[column], self.types[column]
        self._refuse_missing(column, "an id")
        if kind == "VARCHAR":
            rule = "a long number that a spreadsheet has rounded: export ids as text"
            rounded = f"regexp_full_match(stripped({sql}), '{_ROUNDED}')"
            self._refuse(column, f"contains({sql}, 'E+') and {rounded}", rule)
            return f"stripped({sql})"
        if kind == "DOUBLE":
            rule = "a float of 2**53 or more is not exact: make ids integers or text"
            self._refuse(column, f"abs({sql}) >= 2.0 ** 53", rule)
        if kind != "BIGINT" and not (
            kind == "DOUBLE" and self._facts(f"bool_and({sql} = floor({sql}))")[0]
        ):
            self._refuse_type(column, "ids must be integers or text")
        return f"{sql}::bigint"

    def _times(self, column: str, form: str | None) -> tuple[str, str]:
        """Return times in SQL: in full precision for the order, and whole; check them."""
        if column not in self.types:  # row-order
            return "rowid + 1", "rowid + 1"
        sql, kind = self.sql[column], self.types[column]
        self._refuse_missing(column, "a value")
        if kind == "VARCHAR":
            return self._times_of_text(column, f"stripped({sql})", form)
        if kind in ("BIGINT", "DOUBLE") and form not in (None, TIME_IS_NUMBER):  # 20241231
            return self._times_of_text(column, rf"regexp_replace({sql}::varchar, '\.0$', '')", form)
        if kind == "BIGINT":
            return sql, sql
        if kind == "DOUBLE":
            return self._numbers(column, sql)
        if kind != "DATE" and not kind.startswith("TIMESTAMP"):
            self._refuse_type(column, "must be integers, 64-bit floats or dates")
        if form == TIME_IS_NUMBER:
            self._refuse(column, "true", "is no number, as data.time_format says it is")
        self._refuse(column, f"not isfinite({sql})", "not a finite time")
        return self._dates(column, sql, "ns" if kind == "TIMESTAMP_NS" else "us")

    def _times_of_text(self, column: str, value: str, form: str | None) -> tuple[str, str]:
        number, date = f"number_in({value})", f"date_in({value})"
        if form in (None, TIME_IS_NUMBER):
            integer = f"integer_in({value})"
            if self._facts(f"count(*) = count({integer})")[0]:  # such as 19 digits
                return integer, integer
        as_dates, rule = form != TIME_IS_NUMBER, "is no number, as data.time_format says it is"
        if form is None:
            (as_dates,) = self._facts(f"count({date}) > count({number})")
            rule = "neither a number nor an ISO 8601 date"
        elif as_dates:
            date = f"coalesce({date_of_form(value, form)}, {date})"
            rule = f"is neither in the form {form!r} of data.time_format nor in that of ISO 8601"
        try:
            first = self._first_bad(column, f"{date if as_dates else number} is null")
        except duckdb.InvalidInputException as error:
            raise InputError(f"data.time_format={form!r}: cannot be read") from error
        if first is not None:
            forms = [] if form else fitting_forms(pl.Series([str(first[1])]))
            several = " or ".join(map(repr, forms))
            hint = f" (recsys prepare --time-format {several} reads another form)" if forms else ""
            raise InputError(f"{first[0]}: {rule}{hint}: {first[1]!r}")
        return self._dates(column, date, "us") if as_dates else self._numbers(column, number)

    def _dates(self, column: str, date: str, unit: str) -> tuple[str, str]:
        self.log.are_dates |= column == self.log.columns.timestamp
        moment = f"epoch_{unit}({date})"
        return moment, f"floored({moment}, {1_000_000 if unit == 'us' else 1_000_000_000})"

    def _numbers(self, column: str, number: str) -> tuple[str, str]:
        bad = f"not isfinite({number}) or abs({number}) >= 2.0 ** 63"
        self._refuse(column, bad, "not a finite number of at most 64 bits")
        coarse = f"bool_or(abs({number}) < 1e8 and {number} <> floor({number}))"
        if column == self.log.columns.timestamp and self._facts(coarse)[0]:
            message = "%s: column %r: fractions of times count for the order of rows only"
            logger.warning(message, self.log.origin, column)
        return number, f"floor({number})::bigint"

    def _kept(self, column: str) -> str:
        """Return a kept column in SQL: int64, float64, text or lists of text."""
        sql, kind = self.sql[column], self.types[column]
        if kind in WHOLE:
            return self._integer(column)
        if kind in ("FLOAT", "DOUBLE") or (kind.startswith("DECIMAL") and not kind.endswith("[]")):
            return f"{sql}::double"
        if self.source.is_text:
            plain = f"regexp_full_match(present({sql}), {text(PLAIN_INTEGER)})"
            is_whole = self._facts(f"bool_and({plain})")[0]  # missing ones do not count
            return f"present({sql})::bigint" if is_whole else f"stripped({sql})"
        inner = kind.removesuffix("[]")
        nested = any(mark in inner for mark in ("BLOB", "INTERVAL", "(", "["))
        if nested and not inner.startswith("DECIMAL"):
            self._refuse_type(column, "cannot be kept: numbers, text, dates and lists of them can")
        return f"{sql}::varchar{'[]' if inner != kind else ''}"


def sort_rows(log: Log) -> None:
    """Number the ids of the rows in ``typed``, and sort the rows into the table ``log``.

    It keeps their order: numbering them in a window takes three times as long as the sort.
    """
    run = log.connection.execute
    for role, table, number in (("user_id", "users", "u"), ("item_id", "items", "i")):
        ids, by = f"(select distinct {role} from typed)", role
        if role in log.known:
            places = log.known[role].to_frame().with_row_index("place")
            log.connection.register("known", places.to_arrow())
            ids, by = f"{ids} left join known using ({role})", f"place nulls last, {role}"
        run(
            f"create or replace temp table {table} as "
            f"select {role}, row_number() over (order by {by}) - 1 as {number} from {ids}"
        )
    columns = log.connection.view("typed").columns
    order = ["moment", *{"position"}.intersection(columns)]
    left_out = {"row", "user_id", "item_id", "moment", "position"}
    chosen = ", ".join(name(column) for column in columns if column not in left_out)
    run(
        f"create or replace temp table log as select u, i, {chosen} "
        "from typed join users using (user_id) join items using (item_id) "
        f"order by u, {', '.join(order)}, row"
    )
    run("drop view typed")
    run("drop table staged")


def log_of_rows(
    rows: pl.DataFrame,
    columns: Columns,
    origin: str,
    keep: Sequence[str] = (),
    connection: duckdb.DuckDBPyConnection | None = None,
    known: Mapping[str, pl.Series] | None = None,
) -> Log:
    """Return checked rows as a log: user_id, item_id, timestamp and others; ties keep order.

    ``known`` ids, by role, are numbered first.
    """
    connection = connection or cursor()
    log = Log(connection, origin, columns, tuple(keep), known or {}, rows=len(rows))
    connection.register("given rows", rows.to_arrow())
    connection.execute('create or replace temp table staged as select * from "given rows"')
    typed = "select rowid as row, timestamp as moment, * from staged"
    connection.execute(f"create or replace temp view typed as {typed}")
    connection.unregister("given rows")
    sort_rows(log)
    return log


# --- Filters --------------------------------------------------------------------------------------


def filter_log(log: Log, config: DataConfig) -> None:
    """Split users into sessions, then drop rows: early and late ones, duplicates, rare ids."""
    if config.session_gap is not None:
        _split_sessions(log, config.session_gap)
    until = config.split.test_until if isinstance(config.split, GlobalTime) else None
    for reason, side, given in (("since", "<", config.since), ("test_until", ">=", until)):
        if given is not None and log.rows:
            _drop_by_time(log, reason, side, given)
    if config.duplicates != "keep":
        same = "u, i, timestamp" if config.duplicates == "drop_exact" else "u, i"
        kept = "max" if config.duplicates == "last" else "min"
        log.drop(
            "log", "duplicates", f"rowid not in (select {kept}(rowid) from log group by {same})"
        )
    minimums = {"i": "min_item_interactions", "u": "min_user_interactions"}
    rows = -1
    while rows != log.rows and (rows < 0 or config.k_core):
        rows = log.rows
        for column, setting in minimums.items():
            if (least := getattr(config, setting)) > 1:
                rare = f"select {column} from log group by {column} having count(*) < {least}"
                log.drop("log", setting, f"{column} in ({rare})")
    if not log.rows:
        dropped = ", ".join(f"{reason}: {count:,}" for reason, count in log.dropped.items())
        raise InputError(f"{log.origin}: no row is left by the rules of data ({dropped})")


def _drop_by_time(log: Log, reason: str, side: str, given: str | float) -> None:
    """Drop the rows on a side of a time; refuse a date where times are none, or the reverse."""
    (usual,) = log.first("select approx_quantile(timestamp::double, 0.5) from log")
    if isinstance(given, str):
        if not log.are_dates and 0 < usual < 1e8:  # in 1973
            raise InputError(f"data.{reason}: {given} is a date, the log's times are no dates")
    elif log.are_dates and 0 < given < 1e8:
        raise InputError(f"data.{reason}: {given:.0f} is no date, as the log's times are")
    log.drop("log", reason, f"timestamp {side} {time_like(given, usual)!r}")


def _split_sessions(log: Log, gap: int) -> None:
    """Make each session a separate user: USER#1 for the first of USER, USER#2 for the next."""
    by_user = "over (partition by u order by row)"
    begins = f"coalesce(timestamp - lag(timestamp) {by_user} > {gap}, false)::bigint"
    session = f"user_id || '#' || (1 + sum(begins) {by_user})::bigint"
    log.connection.execute(
        "create or replace temp table staged as "
        f"select * exclude (u, i, begins) replace ({session} as user_id) "
        f"from (select *, {begins} as begins from (select *, log.rowid as row "
        "from log join users using (u) join items using (i)))"
    )
    typed = "select timestamp as moment, * from staged"
    log.connection.execute(f"create or replace temp view typed as {typed}")
    sort_rows(log)
