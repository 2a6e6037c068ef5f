"""The rules that make histories of the rows of a log: one place for a dataset and for a bundle.

`prepare` reads the log of a dataset by these functions, and a bundle the logs that it scores. A
rule that is added here holds for both, so that a model never reads other histories than it was
trained on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from recsys.config import ROW_ORDER, TIME_IS_NUMBER, Columns, DataConfig, LeaveLastOut
from recsys.data.log import ROW, InteractionLog, filter_log
from recsys.data.log_columns import LogColumn
from recsys.data.missing import without_missing_words
from recsys.data.row_filters import drop_rows
from recsys.data.sessions import split_sessions
from recsys.data.text_values import TextFacts, text_facts
from recsys.data.time_format import as_iso, is_compact
from recsys.data.where import keep_where, where_columns

_OF_THE_DATASET = {
    "min_user_interactions": 1,
    "min_item_interactions": 1,
    "k_core": False,
    "split": LeaveLastOut(),  # drops no row, unlike the end of a split by date
}
"""Settings that choose the users, items and dates of a dataset, as they are for a bundle: scoring
is for all users, and for later dates. Items outside the catalogue are unknown to it anyway."""


def for_scoring(config: DataConfig) -> DataConfig:
    """Return the settings of a dataset without those that do not concern a history."""
    return config.model_copy(update=_OF_THE_DATASET)


def rule_columns(config: DataConfig, names: Sequence[str], origin: str) -> dict[str, str]:
    """Return the columns that row rules read, each with the name of a rule that needs it.

    Args:
        config: the rules.
        names: the columns of the log.
        origin: its name in messages.

    Raises:
        InputError: ``where`` is no SQL, or names an unknown column.

    >>> from recsys.config import DropRows
    >>> rule = DropRows(reason="views", column="event", matches="view")
    >>> rule_columns(DataConfig(drop=(rule,), where="price > 5"), ["event", "price"], "log")
    {'event': "data.drop 'views'", 'price': 'data.where'}
    """
    ruled = {rule.column: f"data.drop {rule.reason!r}" for rule in config.drop}
    tested = [] if config.where is None else where_columns(config.where, names, origin)
    return ruled | dict.fromkeys(tested, "data.where")


def keep_interactions(
    rows: pl.DataFrame,
    config: DataConfig,
    columns: Columns,
    origin: str,
    facts: Mapping[str, TextFacts] | None = None,
    later: bool = False,
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Drop the rows of a raw log that are not interactions: by ``drop`` first, then by ``where``.

    Times in the form of ``time_format`` become ISO 8601 after that: rules read the log's own text.

    Args:
        rows: the rows, with the columns of the rules and `ROW`.
        config: the rules.
        columns: the names of the columns.
        origin: the name of the log in messages.
        facts: those of the text columns that ``where`` reads, if the rows are a part of the log.
        later: whether the rules are those of an earlier log: see `keep_where`.

    Returns:
        The other rows, in their order, and the number of dropped rows for each reason.

    Raises:
        InputError: a rule does not apply to the values of its column; see `keep_where`.
    """
    dropped: dict[str, int] = {}
    if config.drop or config.where is not None:
        # Words such as NULL are missing ids, which a rule or condition may ask for.
        ids = (columns.user_id, columns.item_id)
        rows = rows.with_columns(without_missing_words(rows[name]) for name in ids)
    if config.drop:
        rows, dropped = drop_rows(rows, config.drop, origin)
    if config.where is not None:
        rows, without = keep_where(rows, config.where, origin, facts=facts, later=later)
        dropped["where"] = dropped.get("where", 0) + without
    if columns.timestamp == ROW_ORDER and ROW_ORDER not in rows.columns and ROW in rows.columns:
        rows = rows.with_columns(pl.col(ROW).cast(pl.Int64).alias(ROW_ORDER))
    elif config.time_format is not None:
        rows = rows.with_columns(_dated(rows, columns.timestamp, config.time_format, origin))
    return rows, dropped


def facts_of_condition(
    rows: pl.DataFrame, config: DataConfig, columns: Columns, origin: str
) -> dict[str, TextFacts]:
    """Return the facts of the text columns that ``where`` reads, in the rows that ``drop`` keeps.

    Those of the parts of a log add up to what `keep_interactions` is given for each part.

    Args:
        rows: a part of the log, with the columns of the rules.
        config: the rules.
        columns: the names of the columns.
        origin: the name of the log in messages.

    Raises:
        InputError: a rule does not apply to the values of its column.
    """
    if config.where is None:
        return {}
    before = config.model_copy(update={"where": None, "time_format": None})
    kept, _ = keep_interactions(rows, before, columns, origin)
    used = (kept[name] for name in where_columns(config.where, kept.columns, origin))
    texts = (without_missing_words(column) for column in used if column.dtype == pl.String)
    return {text.name: text_facts(text) for text in texts if len(text)}


def _dated(rows: pl.DataFrame, name: str, form: str, origin: str) -> pl.Series:
    """Return times of a form as ISO 8601; numbers that have it not are no times of another unit.

    Raises:
        InputError: a number is not in the form, or a value is no number if that is the form.
    """
    column = LogColumn(rows[name], rows[ROW], origin, name)
    if form == TIME_IS_NUMBER:
        column.refuse(_no_numbers(rows[name]), "is no number, as data.time_format says it is")
        return rows[name]
    times = as_iso(rows[name], form)
    if times.dtype == pl.String:
        wrong = times.cast(pl.Float64, strict=False).is_not_null()
        if wrong.any():
            value = str(rows[name].filter(wrong)[0]).replace("'", "''")
            others = f"<> {value}" if rows[name].dtype.is_numeric() else f"<> '{value}'"
            more = "; if none is a date, say --time-format number" if is_compact(form) else ""
            rule = f"is neither in the form {form!r} of data.time_format nor in that of ISO 8601"
            column.refuse(wrong, rule + column.how_to_drop(others, more))
    return times


def _no_numbers(times: pl.Series) -> pl.Series:
    """Return which values are neither numbers nor missing."""
    present = without_missing_words(times)
    if present.dtype.is_numeric():
        return pl.repeat(False, len(times), eager=True)
    if present.dtype != pl.String:
        return present.is_not_null()
    return present.is_not_null() & present.cast(pl.Float64, strict=False).is_null()


def select_interactions(log: InteractionLog, config: DataConfig) -> InteractionLog:
    """Split users into sessions, then drop rows: see `split_sessions` and `filter_log`.

    Raises:
        InputError: no user is left.
    """
    sessions = log if config.session_gap is None else split_sessions(log, config.session_gap)
    return filter_log(sessions, config)
