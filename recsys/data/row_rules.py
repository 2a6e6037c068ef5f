"""The rules that make histories of the rows of a log: one place for a dataset and for a bundle.

`prepare` reads the log of a dataset by these functions, and a bundle the logs that it scores. A
rule that is added here holds for both, so that a model never reads other histories than it was
trained on.
"""

from __future__ import annotations

import os
from dataclasses import replace

import polars as pl

from recsys.config import Columns, DataConfig, LeaveLastOut
from recsys.data.log import InteractionLog, filter_log, read_log
from recsys.data.row_filters import drop_rows
from recsys.data.sessions import split_sessions
from recsys.data.tables import TableSource, read_table

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


def rule_columns(config: DataConfig) -> dict[str, str]:
    """Return the columns that row rules read, each with the name of a rule that needs it.

    >>> from recsys.config import DropRows
    >>> rule = DropRows(reason="views", column="event", matches="view")
    >>> rule_columns(DataConfig(drop=(rule,)))
    {'event': "data.drop 'views'"}
    """
    return {rule.column: f"data.drop {rule.reason!r}" for rule in config.drop}


def keep_interactions(
    table: pl.DataFrame, config: DataConfig, origin: str
) -> tuple[pl.DataFrame, dict[str, int]]:
    """Drop the rows of a raw log that are not interactions.

    Args:
        table: the rows, with the columns of the rules.
        config: the rules.
        origin: the name of the log in messages.

    Returns:
        The other rows, in their order, and the number of dropped rows for each reason.

    Raises:
        InputError: a column of a rule has values that the rule does not apply to.
    """
    return drop_rows(table, config.drop, origin)


def read_interactions(source: TableSource, config: DataConfig, origin: str = "") -> InteractionLog:
    """Read a log without the rows that a rule drops.

    Args:
        source: a file or a frame.
        config: the columns to read, those to keep and the rules.
        origin: its name in messages; the name of the file if not given.

    Raises:
        InputError: a column of a rule is missing; see `keep_interactions` and `read_log`.
    """
    columns, keep = config.columns or Columns(), config.keep
    if not rule_columns(config):
        return read_log(source, columns, origin, keep)
    origin = origin or (str(source) if isinstance(source, str | os.PathLike) else "the frame")
    roles = [name for name in columns.model_dump().values() if name is not None]
    table = read_table(source, [*roles, *keep, *rule_columns(config)], origin)
    table, dropped = keep_interactions(table, config, origin)
    return replace(read_log(table, columns, origin, keep), dropped=dropped)


def select_interactions(log: InteractionLog, config: DataConfig) -> InteractionLog:
    """Split users into sessions, then drop rows: see `split_sessions` and `filter_log`.

    Raises:
        InputError: no user is left.
    """
    sessions = log if config.session_gap is None else split_sessions(log, config.session_gap)
    return filter_log(sessions, config)
