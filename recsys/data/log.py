"""The interaction log in DuckDB: staged, typed, sorted into one total order, and filtered.

User, item and time come as they are in the source, often as text, and get their types here. A rule
reads all rows of a column: none depends on how a source is divided.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]

from recsys.config import ROW_ORDER, TIME_IS_NUMBER, Columns, DataConfig, GlobalTime
from recsys.data.columns import WORDS, guess_columns
from recsys.data.database import MISSING_WORDS, WHOLE, cursor, name, text
from recsys.data.tables import OpenTable, as_polars, typed
from recsys.data.times import (
    date_of_form,
    fitting_forms,
    form_hint,
    not_before,
    sure_form,
)
from recsys.data.where import Condition, holds_nowhere, parse, select_rows
from recsys.errors import InputError
from recsys.folders.digests import table_sha256_of_parts

logger = logging.getLogger(__name__)

KEPT = "kept."
"""Prefix of the names of kept columns, so that they cannot clash with the log's own columns."""
BLOCK = 1 << 20
"""Interactions that are read at a time."""
_SAMPLE_ROWS = 1_000
"""The number of first rows whose values help to guess columns."""
_MANY_ROWS = 1_000_000
"""Rows that are read where the dates of a sample have several forms."""
_LISTED = 10
"""Unused columns that are named."""
_WHOLE_FLOAT = r"-?[0-9]{1,15}\.0"
"""An integer as pandas writes it if some are missing in the column."""
_ROUNDED = r"-?\d[.,]\d+E\+(?:0[5-9]|[1-9]\d)"
"""A long number that a spreadsheet has rounded, such as 8.9012E+12 for 8901234567890."""


# --- Columns and forms of times -------------------------------------------------------------------


def conditions_of(config: DataConfig, names: Sequence[str], origin: str) -> dict[str, Condition]:
    """Return the conditions of ``where``, by the reasons that count what they drop.

    Raises:
        InputError: one is no expression, or names an unknown column.
    """
    where = config.where or {}
    named = {"where": where} if isinstance(where, str) else where
    return {reason: parse(condition, names, origin) for reason, condition in named.items()}


def settle(table: OpenTable, config: DataConfig) -> tuple[Columns, DataConfig]:
    """Return the columns of a log and its settings, with what its first rows say.

    Columns that are not given are guessed. Times such as 20241231 or 31.12.2024 get their form, if
    there is no doubt about it. Both are logged, and so are unused columns.

    Raises:
        InputError: a column is missing or in doubt.
    """
    given = {} if config.columns is None else config.columns.model_dump(exclude_unset=True)
    table.present([column for column in given.values() if column is not None])
    columns = config.columns or Columns()
    if not WORDS.keys() <= given.keys():
        sample = table.read(rows=_SAMPLE_ROWS)
        columns = guess_columns(sample, config.columns, table.origin, config.time_format)
        table.present([*columns.roles.values()])
    if guesses := [
        f"{WORDS[role]} {column!r}"
        for role, column in columns.roles.items()
        if role in WORDS and role not in given and column != role
    ]:
        logger.info("%s: guessed the columns: %s", table.origin, ", ".join(guesses))
    used = {*columns.roles.values(), *config.keep}
    for condition in conditions_of(config, table.names, table.origin).values():
        used |= {*condition.columns}
    if unused := [column for column in table.names if column not in used]:
        more = f" and {len(unused) - _LISTED:,} more" if len(unused) > _LISTED else ""
        listed = ", ".join(unused[:_LISTED]) + more
        logger.info(
            "%s: not used: %s; see --where, --keep (in Python where=, keep=)", table.origin, listed
        )
    column = columns.timestamp
    if config.time_format is not None or column not in table.names:  # row-order is none of them
        return columns, config
    if (form := form_of(table, column)) is not None:
        logger.info(
            "%s: column %r has dates in the form %r, as with --time-format; --time-format %s says "
            "that they are numbers",
            *(table.origin, column, form, TIME_IS_NUMBER),
        )
    return columns, config.model_copy(update={"time_format": form})


def form_of(table: OpenTable, column: str) -> str | None:
    """Return the form of the dates in a column, if there is no doubt."""
    times = table.read([column], _SAMPLE_ROWS)[column]
    if len(times) == _SAMPLE_ROWS and len(fitting_forms(times)) > 1:
        times = table.read([column], _MANY_ROWS)[column]
    return sure_form(times)


# --- The log --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Log:
    """Checked interactions of users with items, in one total order, in tables of DuckDB.

    Rows are sorted by user, then time, then the position column if there is one, then their order
    in the source. The table ``log`` has ``u`` and ``i`` (numbers of user and item ids, ascending),
    ``timestamp`` (int64: numbers rounded down, dates as seconds since 1970 UTC), ``ord`` (0, 1, …
    along the total order) and the kept columns; ``users`` and ``items`` have the ids.
    """

    connection: duckdb.DuckDBPyConnection
    origin: str
    """The name of the file or dataset in messages."""
    columns: Columns
    """The names of the columns in the source."""
    keep: tuple[str, ...] = ()
    """The names of the kept columns: int64, float64, text or lists of text."""
    dropped: dict[str, int] = field(default_factory=dict)
    """The number of dropped rows, by reason: they and ``rows`` add up to the rows of the source."""
    time_format: str | None = None
    """The form that dates were read by, given or found; None if that of ISO 8601 alone."""
    are_dates: bool = False
    """Whether times are dates, and seconds since 1970 therefore."""
    rows: int = 0
    fingerprint: str = ""
    """SHA-256 of the rows as read, in order, independent of the file or frame they came from."""
    all_users: pl.Series | None = None
    """The users of the source before any rule dropped rows, if they were asked for."""
    source: OpenTable | None = None
    """Keeps decoded files as long as the log is there."""

    def first(self, query: str) -> tuple[Any, ...]:
        """Return the first row of a query."""
        return tuple(self.connection.execute(query).fetchall()[0])

    def frame(self, query: str) -> pl.DataFrame:
        """Return the rows of a query."""
        return as_polars(self.connection.sql(query).to_arrow_table())

    def blocks(self, query: str) -> Iterator[pl.DataFrame]:
        """Yield the rows of a query, `BLOCK` at a time."""
        for batch in self.connection.sql(query).to_arrow_reader(BLOCK):
            yield as_polars(pa.Table.from_batches([batch]))

    @property
    def ordered_by(self) -> str:
        """A description of the total order."""
        ties = "the order of the rows"
        if self.columns.position is not None:
            ties = f"column {self.columns.position!r}, then {ties}"
        return f"user_id, timestamp; ties broken by {ties}"

    def count_drop(self, reason: str, count: int) -> None:
        """Count dropped rows, if there are any."""
        if count:
            self.dropped[reason] = self.dropped.get(reason, 0) + count

    def table(self, extra: Sequence[str] = ()) -> pl.DataFrame:
        """Return user_id, item_id, timestamp and kept columns in order, and further columns."""
        kept = (KEPT + column for column in self.keep)
        chosen = ", ".join(map(name, ("user_id", "item_id", "timestamp", *kept, *extra)))
        joined = "log join users using (u) join items using (i)"
        return self.frame(f"select {chosen} from {joined} order by ord")

    def ids(self, role: str) -> pl.Series:
        """Return the ids of users or items, by their numbers."""
        table, number = ("users", "u") if role == "user_id" else ("items", "i")
        return self.frame(f"select {role} from {table} order by {number}")[role]

    def compute_fingerprint(self) -> str:
        """Return the SHA-256 of all rows; called before any filter."""
        ids = {"user_id": self.ids("user_id"), "item_id": self.ids("item_id")}
        numbers = {"user_id": "u", "item_id": "i"}
        schema = self.frame("select * from log limit 0").schema
        types = {**{role: series.dtype for role, series in ids.items()}, "timestamp": pl.Int64()}
        types |= {KEPT + column: schema[KEPT + column] for column in self.keep}

        def parts(column: str) -> Iterator[pl.Series]:
            stored = numbers.get(column, column)
            for block in self.blocks(f"select {name(stored)} from log order by ord"):
                values = block[stored].alias(column)
                yield ids[column].gather(values) if column in ids else values

        return table_sha256_of_parts(types, self.rows, parts)


def read_log(
    table: OpenTable,
    config: DataConfig,
    columns: Columns,
    *,
    features: Sequence[str] = (),
    names: Mapping[str, str] | None = None,
    with_users: bool = False,
) -> Log:
    """Read a log whose columns are known: drop rows by conditions, check values, sort.

    Messages number data rows from 1, without the header and blank lines.

    Args:
        table: the source.
        config: its settings.
        columns: the columns of the roles, as messages name them.
        features: further columns to keep.
        names: what columns are called in the source, where that is another name.
        with_users: whether the users of all rows are kept, and no fingerprint is made: to score.

    Raises:
        InputError: a condition does not fit, a value breaks its column's rule, or no row is left.
    """
    keep = tuple(dict.fromkeys([*config.keep, *features]))
    log = Log(
        table.connection, table.origin, columns, keep, time_format=config.time_format, source=table
    )
    theirs = dict(names or {})
    ours = {their: own for own, their in theirs.items()}
    roles = columns.roles
    for column in roles.values():
        if len(same := [role for role in roles if roles[role] == column]) > 1:
            raise InputError(
                f"{table.origin}: column {column!r} cannot be both {' and '.join(same)}"
            )
    known = [ours.get(column, column) for column in table.names]
    conditions = conditions_of(config, known, table.origin)
    needed = dict.fromkeys([*roles.values(), *keep])
    needed |= dict.fromkeys(c for condition in conditions.values() for c in condition.columns)
    if columns.timestamp == ROW_ORDER and theirs.get(ROW_ORDER, ROW_ORDER) not in table.names:
        needed.pop(ROW_ORDER)
    rows = _Rows(log, table, roles)
    rows.load({column: theirs.get(column, column) for column in needed})
    rows.drop_blank(list(needed))
    if with_users:
        log.all_users = rows.distinct_users()
    if table.dropped is None:
        rows.drop_by(conditions)
    else:
        log.dropped |= table.dropped
    if conditions:
        rows.drop_blank([*roles.values(), *keep])
    rows.write_typed(config)
    if not table.is_ordered and "position" not in roles:
        _refuse_ties(log)
    sort_rows(log, position="position" in roles)
    if not with_users:
        log.fingerprint = log.compute_fingerprint()
    return log


def _refuse_ties(log: Log) -> None:
    """Refuse rows of one user and time that nothing orders."""
    tied = "select 1 from typed group by user_id, moment having count(*) > 1 limit 1"
    if log.columns.timestamp == ROW_ORDER or log.connection.execute(tied).fetchall():
        raise InputError(
            f"{log.origin}: its rows have no order, and some of one user have one time: name a "
            "column that orders them (data.columns.position), or write the frame to Parquet"
        )


@dataclass(slots=True)
class _Rows:
    """The needed columns of a log as its source has them, in the table ``staged``."""

    log: Log
    source: OpenTable
    roles: Mapping[str, str]
    types: dict[str, str] = field(default_factory=dict)
    are_left: str = "true"
    """What holds for the rows that are left, in SQL."""

    def load(self, needed: Mapping[str, str]) -> None:
        """Read columns, given what they are called in the source; bytes are text."""
        query = self.source.selected([*needed.values()])
        blobs = {column for column, kind in self.source.types.items() if kind == "BLOB"}
        chosen = ", ".join(
            f"{f'decode({name(their)})' if their in blobs else name(their)} as {name(own)}"
            for own, their in needed.items()
        )
        staged = f"create or replace temp table staged as select {chosen} from ({query})"
        with self.source.errors():
            (self.log.rows,) = self.log.first(staged)
        relation = self.log.connection.table("staged")
        self.types = dict(zip(relation.columns, map(str, relation.types), strict=True))

    def facts(self, *aggregates: str, value: str = "null") -> tuple[Any, ...]:
        """Return aggregates over the rows that are left; they may name a value of each, ``value_``.

        Rules for text are long: planning one that stands in a query five times takes 20 ms.
        """
        rows = f"(select *, {value} as value_ from staged where {self.are_left})"
        return self.log.first(f"select {', '.join(aggregates)} from {rows}")

    def drop_blank(self, columns: Sequence[str]) -> None:
        """Drop the rows without a value in any of some columns."""
        blank = [f"{name(column)} is null" for column in columns if column in self.types]
        self.are_left += f" and not ({' and '.join(blank) or 'false'})"
        self._count_left("blank rows")

    def _count_left(self, reason: str) -> None:
        (rows,) = self.facts("count(*)")
        self.log.count_drop(reason, self.log.rows - rows)
        self.log.rows = rows

    def distinct_users(self) -> pl.Series:
        column = self.roles["user_id"]
        ids = f"present({name(column)})" if self.types[column] == "VARCHAR" else name(column)
        query = f"select distinct {ids} as {name(column)} from staged where {self.are_left}"
        users = self.log.frame(query)
        return (typed(users) if self.source.is_text else users)[column].drop_nulls()

    def drop_by(self, conditions: Mapping[str, Condition]) -> None:
        """Drop the rows for which a condition does not hold.

        Words such as NULL are missing ids, which a condition may ask for.
        """
        connection, origin = self.log.connection, self.source.origin
        every, ids = self.are_left, (self.roles["user_id"], self.roles["item_id"])
        for number, (reason, condition) in enumerate(conditions.items()):
            rows, held = self.log.rows, f"held{number}"
            select_rows(connection, "staged", condition, origin, held, self.are_left, every, ids)
            self.are_left = f"rowid in (select row_id from {held})"
            self.log.dropped.setdefault(reason, 0)  # which says that it dropped none
            self._count_left(reason)
            if rows and not self.log.rows:
                error = holds_nowhere(condition, rows, origin)
                error.users = self.log.all_users
                raise error

    # --- Types -----------------------------------------------------------------------------------

    def write_typed(self, config: DataConfig) -> None:
        """Write the rows that are left with the types of their columns into the table ``typed``."""
        if not self.log.rows:
            raise InputError(f"{self.source.origin}: no rows")
        columns = {"row": "rowid + 1"} | {role: self._ids(role) for role in ("user_id", "item_id")}
        moment, whole = self._times("timestamp", config.time_format)
        columns |= {"moment": moment, "timestamp": whole}
        if "position" in self.roles:
            columns["position"] = self._times("position", None)[0]
        columns |= {KEPT + column: self._kept(column) for column in self.log.keep}
        chosen = ", ".join(f"{sql} as {name(column)}" for column, sql in columns.items())
        self.log.connection.execute(
            f"create or replace temp table typed as select {chosen} from staged "
            f"where {self.are_left}"
        )
        self.log.connection.execute("drop table staged")

    def refuse(self, role: str, bad: str, rule: str) -> None:
        """Raise an `InputError` that names the first bad value, if there is one."""
        column = self.roles[role]
        plain = "::timestamp" if "TIME ZONE" in self.types[column] else ""  # Python needs pytz
        rows = self.log.connection.execute(
            f"select rowid + 1, {name(column)}{plain} from staged where {self.are_left} and {bad} "
            "order by rowid limit 1"
        ).fetchall()
        for row, value in rows:
            place = f"{self.source.origin}: column {column!r}, data row {row}"
            raise InputError(f"{place}: {rule}: {value!r}")

    def _refuse_missing(self, role: str, value: str, what: str) -> None:
        kept = shlex.quote(f"{name(self.roles[role])} is not null")
        rule = f"{what} is missing (drop such rows with --where {kept}, in Python where=)"
        self.refuse(role, f"{value} is null", rule)

    def _ids(self, role: str) -> str:
        """Return the ids of a role in SQL: integers or text; check them."""
        sql, kind = name(self.roles[role]), self.types[self.roles[role]]
        if kind == "VARCHAR":
            return self._ids_of_text(role)
        self._refuse_missing(role, sql, "an id")
        if kind == "DOUBLE":
            self.refuse(role, f"isnan({sql})", "an id is missing")
            rule = "a float of 2**53 or more is not exact: make ids integers or text"
            self.refuse(role, f"abs({sql}) >= 2.0 ** 53", rule)
        is_float = kind == "DOUBLE" or kind.startswith("DECIMAL")
        if not (self.facts(f"bool_and({sql} = floor({sql}))")[0] if is_float else kind in WHOLE):
            place = f"{self.source.origin}: column {self.roles[role]!r}"
            raise InputError(f"{place}: ids must be integers or text, not {kind}")
        self.refuse(role, f"try_cast({sql} as bigint) is null", "an id of more than 64 bits")
        return f"{sql}::bigint"

    def _ids_of_text(self, role: str) -> str:
        value = f"present({name(self.roles[role])})"
        missing, dotted, whole, rounded = self.facts(
            "count(*) - count(value_)",
            "count(*) filter (suffix(value_, '.0'))",
            f"bool_and(is_plain(value_) or regexp_full_match(value_, '{_WHOLE_FLOAT}'))",
            "count(*) filter (contains(value_, 'E+'))",
            value=value,
        )
        if missing:
            self._refuse_missing(role, value, "an id")
        if rounded:
            rule = "a long number that a spreadsheet has rounded: export ids as text"
            self.refuse(role, f"regexp_full_match({value}, '{_ROUNDED}')", rule)
        value = value.replace("present", "stripped", 1)  # none is missing
        if whole and (dotted or self.source.is_text):
            return f"regexp_replace({value}, '\\.0$', '')::bigint" if dotted else f"{value}::bigint"
        return value

    def _times(self, role: str, form: str | None) -> tuple[str, str]:
        """Return times in SQL: in full precision for the order, and whole; check them."""
        column = self.roles[role]
        if column not in self.types:  # row-order
            return "rowid + 1", "rowid + 1"
        sql, kind = name(column), self.types[column]
        number = kind in WHOLE or kind == "DOUBLE" or kind.startswith("DECIMAL")
        self._refuse_missing(role, f"present({sql})" if kind == "VARCHAR" else sql, "a value")
        if number and form not in (None, TIME_IS_NUMBER):  # 20241231
            whole = f"try_cast({sql} as hugeint)"
            sql = f"(case when {whole} = {sql} then {whole}::varchar else {sql}::varchar end)"
            kind = "VARCHAR"
        if kind == "VARCHAR":
            return self._times_of_text(role, f"stripped({sql})", form)
        if kind == "DATE" or kind.startswith("TIMESTAMP"):
            return self._moments(role, sql, kind, form)
        if not number:
            place = f"{self.source.origin}: column {column!r}"
            raise InputError(f"{place}: must be integers, 64-bit floats or dates, not {kind}")
        decimal = kind.startswith("DECIMAL")
        if kind in WHOLE or (decimal and self.facts(f"bool_and({sql} = floor({sql}))")[0]):
            return self._numbers(role, f"try_cast({sql} as bigint)", whole=True)
        return self._numbers(role, f"{sql}::double", whole=False)

    def _moments(self, role: str, sql: str, kind: str, form: str | None) -> tuple[str, str]:
        if form == TIME_IS_NUMBER:
            self.refuse(role, "true", "is no number, as data.time_format says it is")
        self.refuse(role, f"not isfinite({sql})", "not a finite time")
        self.log.are_dates |= role == "timestamp"
        if kind == "TIMESTAMP_NS":
            return f"epoch_ns({sql})", f"floored(epoch_ns({sql}), 1000000000)"
        moment = f"epoch_us({sql}{'::timestamp' if kind == 'DATE' else ''})"
        return moment, f"floored({moment}, 1000000)"

    def _times_of_text(self, role: str, value: str, form: str | None) -> tuple[str, str]:
        rows, integers = self.facts("count(*)", "count(integer_in(value_))", value=value)
        number = f"integer_in({value})" if integers == rows else f"number_in({value})"
        if form in (None, TIME_IS_NUMBER) and integers == rows:
            return number, number
        date = f"date_in({value})"
        if form == TIME_IS_NUMBER:
            as_dates, rule = False, "is no number, as data.time_format says it is"
        elif form is not None:
            date = f"coalesce({date_of_form(value, form)}, {date})"
            as_dates = True
            rule = f"is neither in the form {form!r} of data.time_format nor in that of ISO 8601"
        else:
            dates, numbers = self.facts(f"count({date})", f"count({number})")
            as_dates, rule = dates > numbers, ""
        bad = f"{date if as_dates else number} is null"
        try:
            first = self.log.frame(
                f"select {value} as value from staged where {self.are_left} and {bad} "
                "order by rowid limit 1"
            )["value"]
        except duckdb.InvalidInputException as error:
            raise InputError(f"data.time_format={form!r}: cannot be read") from error
        if len(first):
            rule = rule or f"neither a number nor an ISO 8601 date{form_hint(first)}"
            self.refuse(role, bad, rule)
        if not as_dates:
            return self._numbers(role, number, whole=False)
        self.log.are_dates |= role == "timestamp"
        return f"epoch_us({date})", f"floored(epoch_us({date}), 1000000)"

    def _numbers(self, role: str, number: str, *, whole: bool) -> tuple[str, str]:
        fits = "true" if whole else f"isfinite({number}) and abs({number}) < 2.0 ** 63"
        bad = f"{number} is null or not ({fits})"
        self.refuse(role, f"({bad})", "not a finite number of at most 64 bits")
        return number, number if whole else f"floor({number})::bigint"

    def _kept(self, column: str) -> str:
        """Return a kept column in SQL: int64, float64, text or lists of text."""
        sql, kind = name(column), self.types[column]
        place = f"{self.source.origin}: column {column!r}"
        if self.source.is_text:
            words = ", ".join(map(text, MISSING_WORDS))
            value = f"stripped({sql})"
            some, whole = self.facts(
                "count(*) filter (is_plain(value_))",
                f"bool_and(coalesce(is_plain(value_) or value_ in ({words}), true))",
                value=value,
            )
            integer = f"case when is_plain({value}) then {value}::bigint end"
            return integer if some and whole else value
        if kind in WHOLE:
            if self.facts(f"count({sql}) - count(try_cast({sql} as bigint))")[0]:
                raise InputError(f"{place}: an integer of more than 64 bits")
            return f"{sql}::bigint"
        if kind in ("FLOAT", "DOUBLE") or kind.startswith("DECIMAL"):
            return f"{sql}::double"
        inner = kind.removesuffix("[]")
        if any(mark in inner for mark in ("BLOB", "INTERVAL", "(", "[")) and not inner.startswith(
            ("DECIMAL", "ENUM")
        ):
            raise InputError(
                f"{place}: cannot be kept: numbers, text, dates and lists of them can, not {kind}"
            )
        return f"{sql}::varchar{'[]' if inner != kind else ''}"


def sort_rows(log: Log, *, position: bool = False) -> None:
    """Number the ids of the rows in ``typed``, and sort the rows into the table ``log``."""
    run = log.connection.execute
    for role, table, number in (("user_id", "users", "u"), ("item_id", "items", "i")):
        run(
            f"create or replace temp table {table} as select {role}, "
            f"row_number() over (order by {role}) - 1 as {number} "
            f"from (select distinct {role} from typed)"
        )
    order = f"u, moment, {'position, ' if position else ''}row"
    left_out = {"row", "user_id", "item_id", "moment", "position"}
    columns = [column for column in log.connection.table("typed").columns if column not in left_out]
    run(
        f"create or replace temp table log as select u, i, {', '.join(map(name, columns))}, "
        f"row_number() over (order by {order}) - 1 as ord "
        "from typed join users using (user_id) join items using (item_id)"
    )
    run("drop table typed")


def log_of_rows(
    rows: pl.DataFrame,
    columns: Columns,
    origin: str,
    keep: Sequence[str] = (),
    connection: duckdb.DuckDBPyConnection | None = None,
) -> Log:
    """Return checked rows as a log: user_id, item_id, timestamp and kept columns, in their order.

    Rows of one user and time remain in the order in which they are given; other columns stay.
    """
    connection = connection or cursor()
    log = Log(connection, origin, columns, tuple(keep), rows=len(rows))
    connection.register("given rows", rows.with_row_index("row").to_arrow())
    connection.execute(
        'create or replace temp table typed as select *, "timestamp" as moment from "given rows"'
    )
    connection.unregister("given rows")
    sort_rows(log)
    return log


# --- Filters --------------------------------------------------------------------------------------


def filter_log(log: Log, config: DataConfig) -> None:
    """Split users into sessions, then drop rows: early and late ones, duplicates, rare ids.

    Early rows are those before ``since``, late rows those after the end of the split. Items are
    filtered first, then users; with ``k_core`` repeatedly until both minimums hold.

    Raises:
        InputError: no user is left.
    """
    if config.session_gap is not None:
        _split_sessions(log, config.session_gap)
    if config.since is not None:
        _keep(log, "since", f"where {not_before(config.since)}")
    if isinstance(config.split, GlobalTime) and config.split.test_until is not None:
        _keep(log, "test_until", f"where not {not_before(config.split.test_until)}")
    if config.duplicates != "keep":
        same = "u, i, timestamp" if config.duplicates == "drop_exact" else "u, i"
        order = f"partition by {same} order by ord {'desc' if config.duplicates == 'last' else ''}"
        _keep(log, "duplicates", f"qualify row_number() over ({order}) = 1")
    minimums = {"i": "min_item_interactions", "u": "min_user_interactions"}
    rows = -1
    while rows != log.rows and (rows < 0 or config.k_core):
        rows = log.rows
        for column, setting in minimums.items():
            if (least := getattr(config, setting)) > 1:
                frequent = f"select {column} from log group by {column} having count(*) >= {least}"
                _keep(log, setting, f"where {column} in ({frequent})")
    if not log.rows:
        dropped = ", ".join(f"{reason}: {count:,}" for reason, count in log.dropped.items())
        raise InputError(f"{log.origin}: no row is left by the rules of data ({dropped})")


def _keep(log: Log, reason: str, clause: str) -> None:
    log.connection.execute(f"create or replace temp table kept as select * from log {clause}")
    log.connection.execute("drop table log")
    log.connection.execute("alter table kept rename to log")
    rows = int(log.first("select count(*) from log")[0])
    log.count_drop(reason, log.rows - rows)
    log.rows = rows


def _split_sessions(log: Log, gap: int) -> None:
    """Make each session a separate user: USER#1 for the first of USER, USER#2 for the next."""
    by_user = "over (partition by u order by ord)"
    run = log.connection.execute
    run(
        "create or replace temp table numbered as select *, 1 + sum(begins) "
        f"{by_user} as session from (select *, coalesce(timestamp - lag(timestamp) {by_user} "
        f"> {gap}, false)::bigint as begins from log)"
    )
    run(
        "create or replace temp table sessions as select u as person, session, "
        "user_id || '#' || session::bigint as user_id, row_number() over (order by "
        "user_id || '#' || session::bigint) - 1 as u "
        "from (select distinct u, session from numbered) join users using (u)"
    )
    run(
        "create or replace temp table log as select n.* exclude (u, ord, begins, session), s.u, "
        "row_number() over (order by s.u, n.ord) - 1 as ord "
        "from numbered n join sessions s on n.u = s.person and n.session = s.session"
    )
    run("create or replace temp table users as select user_id, u from sessions")
    run("drop table numbered")
