"""How a source becomes a log: columns are found, rows dropped and counted, values checked."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import polars as pl

from recsys.config import Columns, DataConfig
from recsys.data.guess import GuessedColumns, guess_columns
from recsys.data.log import BLANK, ROW, InteractionLog, check_log
from recsys.data.missing import without_missing_words
from recsys.data.row_filters import drop_rows
from recsys.data.tables import OpenTable, TableSource, open_table
from recsys.data.where import holds_nowhere, keep_where, kind_columns, purchases_hint, where_columns

logger = logging.getLogger(__name__)

SAMPLE_ROWS = 1_000
"""The number of first rows whose values help to guess columns."""


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
    return _columns_of(open_table(source, header=config.header), config.columns)


def read_source(source: TableSource, config: DataConfig, origin: str = "") -> InteractionLog:
    """Read a log without the rows that the settings drop.

    Rows are dropped by ``config.drop`` first, then by ``config.where``. Guessed columns are logged,
    and so is a hint if the log has purchases among other events.

    Raises:
        InputError: the source cannot be read, a column is missing or in doubt, a rule or condition
            does not fit, or a value breaks its column's rule.
    """
    table = open_table(source, origin, header=config.header)
    found = _columns_of(table, config.columns)
    if found.guessed:
        logger.info("%s: guessed the columns: %s", table.origin, found)
    columns = found.columns
    roles = [name for name in columns.model_dump().values() if name is not None]
    tested = [] if config.where is None else where_columns(config.where, table.names, table.origin)
    kinds = [] if config.where or config.drop else kind_columns(table.names)
    ruled = [rule.column for rule in config.drop]
    rows = table.read([*roles, *config.keep, *ruled, *tested, *kinds])
    rows = rows.with_row_index(ROW, offset=1)
    blank = rows.select(pl.all_horizontal(pl.exclude(ROW).is_null())).to_series()
    for hint in filter(None, (purchases_hint(rows[name]) for name in kinds)):
        logger.info("%s: %s", table.origin, hint)
    kept, dropped = _chosen_rows(rows.filter(~blank), config, columns, table)
    blanks = {BLANK: int(blank.sum())} if blank.any() else {}
    log = check_log(kept, columns, table.origin, config.keep)
    return replace(log, dropped=sum_counts(blanks, dropped, log.dropped))


def sum_counts(*counts: Mapping[str, int]) -> dict[str, int]:
    """Add up counts by their names.

    >>> sum_counts({"where": 2, "since": 1}, {"since": 3})
    {'where': 2, 'since': 4}
    """
    names = dict.fromkeys(name for given in counts for name in given)
    return {name: sum(given.get(name, 0) for given in counts) for name in names}


def _columns_of(table: OpenTable, given: Columns | None) -> GuessedColumns:
    if given is not None and {"user_id", "item_id", "timestamp"} <= given.model_fields_set:
        return GuessedColumns(given, {})
    return guess_columns(table.read(rows=SAMPLE_ROWS), given, table.origin, table.hint)


def _chosen_rows(
    rows: pl.DataFrame, config: DataConfig, columns: Columns, table: OpenTable
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Drop rows by rules and by the condition, and count them by their reasons."""
    dropped: dict[str, int] = {}
    if config.drop or config.where is not None:
        # Words such as NULL are missing ids, which a rule or condition may ask for.
        ids = (columns.user_id, columns.item_id)
        rows = rows.with_columns(without_missing_words(rows[name]) for name in ids)
    if config.drop:
        rows, dropped = drop_rows(rows, config.drop, table.origin)
    if config.where is not None:
        given = rows
        rows, without = keep_where(given, config.where, table.origin, table.names)
        if without and rows.is_empty():
            raise holds_nowhere(given, config.where, table.origin)
        dropped["where"] = dropped.get("where", 0) + without
    return rows, dropped
