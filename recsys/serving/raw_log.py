"""A raw log to score, read by the rules of the dataset that the model was trained on."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import Columns, DataConfig, LeaveLastOut
from recsys.data.entity_tables import plain_ids, user_of_session
from recsys.data.log import (
    KEPT,
    filter_log,
    form_of,
    log_of_rows,
    read_log,
)
from recsys.data.tables import OpenTable, TableSource, open_table
from recsys.data.times import is_compact
from recsys.data.where import NoRowsLeftError
from recsys.errors import InputError
from recsys.serving.raw_values import NO_SCALE, TimeScale, id_series

logger = logging.getLogger(__name__)

_OF_THE_DATASET = {
    "min_user_interactions": 1,
    "min_item_interactions": 1,
    "k_core": False,
    "split": LeaveLastOut(),  # drops no row, unlike the end of a split by date
    "keep": (),
}
"""Settings that choose the users, items and dates of a dataset, as they are for a bundle: scoring
is for all users, and for later dates. Items outside the catalogue are unknown to it anyway."""


@dataclass(frozen=True, slots=True, eq=False)
class RawLog:
    """The N interactions that are the histories of the B users of a log."""

    origin: str
    """The name of the log in messages."""
    user_ids: pl.Series
    """Shape [B]: ascending."""
    rows: pl.DataFrame
    """user_id, item_id, timestamp and kept columns [N rows]; by user, oldest first."""
    all_rows: pl.DataFrame
    """As rows, with the earlier sessions of the users."""

    @property
    def interactions(self) -> pl.DataFrame:
        """user_id, item_id and the columns of features [N rows]."""
        names = [name for name in self.rows.columns if name.startswith(KEPT)]
        kept = [pl.col(name).alias(name.removeprefix(KEPT)) for name in names]
        return self.rows.select("user_id", "item_id", *kept)

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Shape [B + 1]: where each user's rows start."""
        counts = self.rows.group_by("user_id").len()
        lengths = self.user_ids.to_frame().join(
            counts, on="user_id", how="left", maintain_order="left"
        )
        ends = lengths["len"].fill_null(0).cum_sum().to_numpy().astype(np.int64)
        return np.concatenate([np.zeros(1, dtype=np.int64), ends])

    def user_table(self, columns: Sequence[str]) -> pl.DataFrame:
        """Return user_id and the users' columns [B rows]; null for a user without rows.

        Raises:
            InputError: the rows of a user have different values.
        """
        values = [pl.col(KEPT + name).alias(name) for name in columns]
        rows = self.all_rows.select("user_id", *values).group_by("user_id", maintain_order=True)
        for name in columns:
            several = rows.agg(pl.col(name).drop_nulls()).filter(pl.col(name).list.n_unique() > 1)
            if len(several):
                user, values = several.row(0)
                other = next(value for value in values if value != values[0])
                raise InputError(
                    f"{self.origin}: column {name!r} is a user feature, but user {user!r} has both "
                    f"{values[0]!r} and {other!r}"
                )
        found = rows.agg(pl.col(columns).drop_nulls().first())
        return self.user_ids.to_frame().join(found, on="user_id", how="left", maintain_order="left")


def read_raw_log(
    source: TableSource,
    data: DataConfig,
    features: Sequence[str] = (),
    scale: TimeScale = NO_SCALE,
) -> RawLog:
    """Read the histories of a raw log as those of a dataset prepared with these settings.

    Rows are dropped by the same conditions (``data.where``), sorted and freed of duplicates. With
    ``data.session_gap`` a user's history is the newest session, under the user's own id: the
    session USER#n with the largest n. Minimum numbers of interactions and the end of the split do
    not apply. A user whose rows are all dropped has an empty history.

    Args:
        source: a file or a frame; its columns have the names of the training log, or user_id,
            item_id, timestamp.
        data: the settings of the dataset.
        features: further columns that the model reads.
        scale: that of the times of the training log.

    Raises:
        InputError: the log cannot be read, or lacks a column that a rule or the model reads.
    """
    origin = str(source) if isinstance(source, str | os.PathLike) else "histories"
    data = data.model_copy(update=_OF_THE_DATASET)
    table = open_raw_log(source, data, origin)
    columns = data.columns or Columns()
    names = _names(table, data, columns)
    data = _with_form(table, data, names.get(columns.timestamp, columns.timestamp))
    try:
        log = read_log(table, data, columns, features=features, names=names, with_users=True)
    except NoRowsLeftError as error:
        if error.users is None:
            raise
        return _none_left(error.users, features, origin)
    assert log.all_users is not None  # noqa: S101 - asked for
    users = _users(log.all_users, origin)
    rows, dropped = log.table(), dict(log.dropped)
    integers = rows["user_id"].dtype.is_integer()
    given = rows["timestamp"].to_numpy()
    times = scale.numbers(given, f"{origin}: column {columns.timestamp!r}", dates=log.are_dates)
    if times is not given:
        rows = rows.with_columns(timestamp=pl.Series(times))
        rows = rows.sort("user_id", "timestamp", maintain_order=True)
        log = log_of_rows(rows, columns, origin, features)
    try:
        filter_log(log, data)
        all_rows = log.table()
    except InputError:  # no user is left: all rows are before data.since
        all_rows, dropped = rows.head(0), {**dropped, "since": log.rows}
    rows = all_rows
    if data.session_gap is not None:
        all_rows = _with_users_of_sessions(all_rows, integers)
        rows = all_rows.filter(pl.col("session") == pl.col("session").max().over("user_id"))
    if without := len(users) - rows["user_id"].n_unique():
        _warn_of_users_without_rows(origin, without, len(users), dropped)
    return RawLog(origin, users, rows.cast({"user_id": users.dtype}), all_rows)


def _none_left(users: pl.Series, features: Sequence[str], origin: str) -> RawLog:
    """Return a log of users without a row, since a condition holds for none."""
    users = _users(users, origin)
    schema: dict[str, Any] = dict.fromkeys(("user_id", "item_id", "timestamp"), pl.Int64)
    schema |= {"user_id": users.dtype} | {KEPT + name: pl.String for name in features}
    rows = pl.DataFrame(schema=schema)
    _warn_of_users_without_rows(origin, len(users), len(users), ["where"])
    return RawLog(origin, users, rows, rows)


def _warn_of_users_without_rows(
    origin: str, without: int, users: int, rules: Iterable[str]
) -> None:
    logger.warning(
        "%s: %d of %d users have no row left by %s: they get the most popular items",
        *(origin, without, users, ", ".join(rules) or "since"),
    )


def open_raw_log(source: TableSource, data: DataConfig, origin: str) -> OpenTable:
    """Find the columns of a log that may lack a header as the training log did.

    Raises:
        InputError: it is no frame, or the file cannot be read.
    """
    try:
        opened = open_table(source, origin, encoding=data.encoding)
        if not data.header and not {*Columns().model_dump().values()} <= {*opened.names, None}:
            opened = open_table(source, origin, header=False, encoding=data.encoding)
    except InputError as error:
        if isinstance(source, str | os.PathLike) or hasattr(source, "columns"):
            raise
        raise InputError(
            f"histories: a frame, a mapping or a list of lists, not {type(source).__name__}"
        ) from error
    return opened


def _with_form(table: OpenTable, data: DataConfig, column: str) -> DataConfig:
    """Return the settings with the form of times that are text, if the dataset has none."""
    if data.time_format is not None or table.types.get(column) != "VARCHAR":
        return data
    form = form_of(table, column)
    if form is None or is_compact(form):  # numbers stay numbers, as they were in the dataset
        return data
    return data.model_copy(update={"time_format": form})


def _with_users_of_sessions(rows: pl.DataFrame, integers: bool) -> pl.DataFrame:
    """Name users again in rows of sessions, USER#n, and put the rows in the order of users.

    Returns:
        The rows with user_id as in the log and session, its n; rows of a session stay in order.
    """
    user = user_of_session(rows["user_id"])
    number = rows["user_id"].str.extract(r"#(\d+)$").cast(pl.Int64)  # USER#10 is newer than USER#9
    rows = rows.with_columns(user.cast(pl.Int64) if integers else user, session=number)
    return rows.sort("user_id", "session", maintain_order=True)


def _users(ids: pl.Series, origin: str) -> pl.Series:
    """Return the distinct ids of a column, ascending."""
    distinct = plain_ids(ids).unique()
    if distinct.dtype.is_integer():
        return distinct.cast(pl.Int64).sort().alias("user_id")
    return id_series(distinct, f"{origin}: column {ids.name!r}").sort().alias("user_id")


def _names(table: OpenTable, data: DataConfig, trained: Columns) -> dict[str, str]:
    """Return what columns of the training log are called here: user_id and so on are taken, too."""
    standard = Columns(position=trained.position)
    fits = [
        set(columns.model_dump().values()) <= {*table.names, None}
        for columns in (trained, standard)
    ]
    given = standard if fits == [False, True] else trained
    names = {name: getattr(given, role) for role, name in trained.roles.items()}
    return {ours: theirs for ours, theirs in names.items() if ours != theirs}
