"""How a source becomes a log: columns are found, rows dropped and counted, values checked."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import polars as pl

from recsys.config import TIME_IS_NUMBER, Columns, DataConfig
from recsys.data.column_choice import CLOSER_LOOKS, MoreRows
from recsys.data.guess import GuessedColumns, guess_columns
from recsys.data.log import BLANK, ROW, InteractionLog, check_log
from recsys.data.row_hints import hinted_columns, row_hint
from recsys.data.row_order import RowOrder
from recsys.data.row_rules import keep_interactions, rule_columns
from recsys.data.tables import OpenTable, TableSource, open_table
from recsys.data.time_format import first_date, is_compact, sure_form, tells_no_form
from recsys.data.where import NoRowsLeftError, holds_nowhere

logger = logging.getLogger(__name__)

SAMPLE_ROWS = 1_000
"""The number of first rows whose values help to guess columns."""
_MOST_COLUMNS = 1_000
"""Columns among which others than the given ones are guessed: the first ones."""
_LISTED = 10
"""Unused columns that are named."""


def find_columns(source: TableSource, config: DataConfig | None = None) -> GuessedColumns:
    """Find the user, item and time column of a source without reading all of it.

    Args:
        source: a file, a folder, a pattern or a frame; not the name of a dataset.
        config: the columns that are known, and whether a text file has a header.

    Raises:
        InputError: the source cannot be read, or a column is missing or in doubt; see
            `guess_columns`.
    """
    config = config or DataConfig()
    table = open_table(source, header=config.header, encoding=config.encoding)
    found, _ = _columns_of(_first_rows_of(table), config, table)
    return found


def read_source(
    source: TableSource, config: DataConfig, origin: str = "", later: bool = False
) -> InteractionLog:
    """Read a log without the rows that the settings drop.

    Rows are dropped by ``config.drop`` first, then by ``config.where``. Guessed columns are logged,
    and so are hints if the log has purchases among other events, or quotes that swallow rows.
    With ``later`` the settings are those of an earlier log: see `keep_where`.

    Raises:
        InputError: the source cannot be read, a column is missing or in doubt, a rule or condition
            does not fit, or a value breaks its column's rule.
    """
    table = open_table(source, origin, header=config.header, encoding=config.encoding)
    table.warn_of_swallowed_rows()
    columns, config = settle(table, config)
    ruled = rule_columns(config, table.names, table.origin)
    kinds = [] if config.where or config.drop else hinted_columns(table.sure_names)
    rows = table.read([*columns.roles.values(), *config.keep, *ruled, *kinds])
    rows = rows.with_row_index(ROW, offset=1)
    blank = rows.select(pl.all_horizontal(pl.exclude(ROW).is_null())).to_series()
    for hint in filter(None, (row_hint(rows[name]) for name in kinds)):
        logger.info("%s: %s", table.origin, hint)
    rows = rows.filter(~blank)
    kept, dropped = keep_interactions(rows, config, columns, table.origin, later=later)
    if config.where is not None and dropped["where"] and kept.is_empty():
        raise holds_nowhere(rows, config.where, table.origin)
    if later and kept.is_empty() and len(rows):
        raise NoRowsLeftError(f"{table.origin}: data.drop leaves none of its {len(rows):,} rows")
    RowOrder.of(kept, columns).warn(table.origin)
    blanks = {BLANK: int(blank.sum())} if blank.any() else {}
    log = check_log(kept, columns, table.origin, config.keep)
    counts = sum_counts(blanks, dropped, log.dropped)
    return replace(log, dropped=counts, time_format=config.time_format)


def sum_counts(*counts: Mapping[str, int]) -> dict[str, int]:
    """Add up counts by their names.

    >>> sum_counts({"where": 2, "since": 1}, {"since": 3})
    {'where': 2, 'since': 4}
    """
    names = dict.fromkeys(name for given in counts for name in given)
    return {name: sum(given.get(name, 0) for given in counts) for name in names}


FirstRows = Callable[[int, Sequence[str]], pl.DataFrame]
"""Reads so many rows of a log, with the given columns, or all of them if none are given."""


def settle(table: OpenTable, config: DataConfig) -> tuple[Columns, DataConfig]:
    """Return the columns of an open table, and the settings; see `settle_by`.

    Raises:
        InputError: a column is missing or in doubt.
    """
    columns, config = settle_by(_first_rows_of(table), config, table)
    note_padded_ids(table, columns)
    return columns, config


def note_padded_ids(table: OpenTable, columns: Columns) -> None:
    """Log how many ids have blanks around them, without which they are read."""
    for name in (columns.user_id, columns.item_id):
        if count := table.count_padded(name):
            logger.info(
                "%s: column %r has blanks around %s ids: they are stripped",
                *(table.origin, name, f"{count:,}"),
            )


def _note_unused(table: OpenTable, columns: Columns, config: DataConfig) -> None:
    """Log which columns are not used."""
    used = {*columns.roles.values(), *config.keep, *rule_columns(config, table.names, table.origin)}
    unused = [name for name in table.names if name not in used]
    if unused:
        more = len(unused) - _LISTED
        listed = ", ".join(unused[:_LISTED]) + (f" and {more:,} more" if more > 0 else "")
        logger.info(
            "%s: not used: %s; see --where, --keep (in Python where=, keep=)", table.origin, listed
        )


def settle_by(
    first_rows: FirstRows, config: DataConfig, table: OpenTable
) -> tuple[Columns, DataConfig]:
    """Return the columns of a log and its settings, with what its first rows say.

    Columns that are not given are guessed. Times such as 20241231 or 31.12.2024 get their form, if
    there is no doubt about it. Both are logged.

    Args:
        first_rows: reads the log.
        config: the settings that are known.
        table: the log, for the names of its columns.

    Raises:
        InputError: a column is missing or in doubt.
    """
    found, sample = _columns_of(first_rows, config, table)
    if found.guessed:
        logger.info("%s: guessed the columns: %s", table.origin, found)
    _note_unused(table, found.columns, config)
    name = found.columns.timestamp
    if config.time_format is not None or name not in table.names:  # row-order is none of them
        return found.columns, config
    times = (first_rows(SAMPLE_ROWS, [name]) if sample is None else sample)[name]
    times = telling_times(lambda rows: first_rows(rows, [name])[name], times)
    form = sure_form(times)
    if form is not None:
        numbers = f"; if they are numbers, say --time-format {TIME_IS_NUMBER}"
        logger.info(
            "%s: column %r has %s and the like, read as dates, as with --time-format %r%s",
            *(table.origin, name, first_date(times, form), form),
            numbers if is_compact(form) else "",
        )
    return found.columns, config.model_copy(update={"time_format": form})


def telling_times(first: Callable[[int], pl.Series], times: pl.Series) -> pl.Series:
    """Return the first times of a log: a sample, or more where it does not tell their form.

    Args:
        first: reads so many of them.
        times: the sample, of `SAMPLE_ROWS` rows if there are as many.
    """
    read = SAMPLE_ROWS
    for rows in CLOSER_LOOKS:
        if len(times) < read or not tells_no_form(times):
            break
        times, read = first(rows), rows
    return times


def _columns_of(
    first_rows: FirstRows, config: DataConfig, table: OpenTable
) -> tuple[GuessedColumns, pl.DataFrame | None]:
    """Return the columns, and the first rows if they were read to guess some."""
    given = config.columns
    named = {} if given is None else given.model_dump(exclude_unset=True)
    table.present([name for name in named.values() if name is not None])
    if given is not None and {"user_id", "item_id", "timestamp"} <= named.keys():
        found, sample = GuessedColumns(given, {}), None
    else:
        few = table.sure_names[:_MOST_COLUMNS] if len(table.names) > _MOST_COLUMNS else ()
        sample = first_rows(SAMPLE_ROWS, few and [*filter(None, named.values()), *few])
        left = [
            f"; column {name!r} cannot be read: {why}" for name, why in table.unreadable.items()
        ]
        hint = table.hint + "".join(left[:1])
        tested = rule_columns(config, table.names, table.origin)
        more = _more_rows(first_rows, sample, table.sure_names)
        found = guess_columns(
            sample, given, table.origin, hint, config.time_format, more=more, tested=tested
        )
    table.refuse_lacking(found.columns.roles.values())
    return found, sample


def _first_rows_of(table: OpenTable) -> FirstRows:
    return lambda rows, columns: table.read(columns, rows)


def _more_rows(
    first_rows: FirstRows, sample: pl.DataFrame, columns: Sequence[str]
) -> MoreRows | None:
    """Return what reads more rows of the given columns; None if the sample is the whole log."""
    if len(sample) < SAMPLE_ROWS:
        return None
    return lambda name, rows: first_rows(rows, [name])[name] if name in columns else sample[name]
