"""A raw log to score, read by the rules of the dataset that the model was trained on."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import ROW_ORDER, Columns, DataConfig
from recsys.data.log import KEPT, ROW, InteractionLog, check_log
from recsys.data.log_columns import plain_ids
from recsys.data.missing import present_values
from recsys.data.reading import SAMPLE_ROWS, telling_times
from recsys.data.row_rules import (
    for_scoring,
    keep_interactions,
    rule_columns,
    select_interactions,
)
from recsys.data.sessions import user_of_session
from recsys.data.tables import OpenTable, TableSource, open_table
from recsys.data.time_format import is_compact, sure_form
from recsys.errors import InputError
from recsys.serving.raw_values import NO_SCALE, TimeScale, id_series

logger = logging.getLogger(__name__)


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

    Rows are dropped by the same rules (``data.drop``), sorted and freed of duplicates. With
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
    table, columns = _read_columns(source, data, features, origin)
    data = _with_form_of(table.get_column(columns.timestamp, default=None), data)
    kept, dropped = keep_interactions(table, data, columns, origin, later=True)
    if not len(kept) and len(table):
        schema: dict[str, Any] = dict.fromkeys(("user_id", "item_id", "timestamp"), pl.Int64)
        schema |= {KEPT + name: pl.String for name in features}
        rows = all_rows = pl.DataFrame(schema=schema)
    else:
        log = check_log(kept, columns, origin, features)
        log = _on_scale(log, _are_dates(kept[columns.timestamp]), scale)
        integers = log.frame.collect_schema()["user_id"].is_integer()
        try:
            frame = select_interactions(log, for_scoring(data)).frame
        except InputError:  # no user is left: all rows are before data.since
            frame, dropped = log.frame.head(0), {**dropped, "since": log.rows}
        rows = all_rows = frame.collect("polars").to_polars()
        if data.session_gap is not None:
            all_rows = _with_users_of_sessions(all_rows, integers)
            rows = all_rows.filter(pl.col("session") == pl.col("session").max().over("user_id"))
    users = _users(table[columns.user_id], origin)
    if without := len(users) - rows["user_id"].n_unique():
        logger.warning(
            "%s: %d of %d users have no row left by %s: they get the most popular items",
            *(origin, without, len(users), ", ".join(dropped) or "since"),
        )
    return RawLog(origin, users, rows.cast({"user_id": users.dtype}), all_rows)


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
    opened.warn_of_swallowed_rows()
    return opened


def _with_form_of(times: pl.Series | None, data: DataConfig) -> DataConfig:
    """Return the settings with the form of times that are text, if the dataset has none."""
    if data.time_format is not None or times is None or times.dtype != pl.String:
        return data
    form = sure_form(telling_times(times.head, times.head(SAMPLE_ROWS)))
    if form is None or is_compact(form):  # numbers stay numbers, as they were in the dataset
        return data
    return data.model_copy(update={"time_format": form})


def _are_dates(times: pl.Series) -> bool:
    """Return whether the checked times of a log are dates; those that are text are of one kind."""
    text = times.dtype == pl.String
    return times.dtype.is_temporal() or (text and times.cast(pl.Float64, strict=False).has_nulls())


def _on_scale(log: InteractionLog, dates: bool, scale: TimeScale) -> InteractionLog:
    """Return a log with its times on the scale of the training log, in their order."""
    rows = log.frame.collect("polars").to_polars()
    given = rows["timestamp"].to_numpy()
    times = scale.numbers(given, f"{log.origin}: column {log.columns.timestamp!r}", dates=dates)
    if times is given:
        return log
    rows = rows.with_columns(timestamp=pl.Series(times)).sort("user_id", "timestamp", "order")
    order = pl.Series("order", np.arange(len(rows)))
    return replace(log, frame=nw.from_native(rows.with_columns(order).lazy()))


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
    distinct = plain_ids(present_values(ids).unique()).unique()
    if distinct.dtype.is_integer():
        return distinct.cast(pl.Int64).sort().alias("user_id")
    return id_series(distinct, f"{origin}: column {ids.name!r}").sort().alias("user_id")


def _read_columns(
    source: TableSource, data: DataConfig, features: Sequence[str], origin: str
) -> tuple[pl.DataFrame, Columns]:
    """Read the needed columns, and name them as in the training log.

    Raises:
        InputError: it is no frame, or a column is missing.
    """
    opened = open_raw_log(source, data, origin)
    names = opened.names
    trained = data.columns or Columns()
    standard = Columns(position=trained.position)
    fits = [set(columns.model_dump().values()) <= {*names, None} for columns in (trained, standard)]
    given = standard if fits == [False, True] else trained
    roles = {name: getattr(given, role) for role, name in trained.roles.items()}
    known = {name: own for own, name in roles.items()}
    ours = [known.get(name, name) for name in names]
    ruled = rule_columns(data, ours, origin)
    for column, rule in ruled.items():
        if column not in ours:
            raise InputError(
                f"{origin}: no column {column!r}, which {rule} of the model's dataset reads: give "
                "the raw log, or lists of item ids, which no rule applies to"
            )
    needed = list(dict.fromkeys([*roles, *ruled, *features]))
    if roles.get(ROW_ORDER) == ROW_ORDER and ROW_ORDER not in names:
        needed.remove(ROW_ORDER)
    table = opened.read([roles.get(name, name) for name in needed]).with_row_index(ROW, offset=1)
    return table.select(
        ROW, *(pl.col(roles.get(name, name)).alias(name) for name in needed)
    ).filter(~pl.all_horizontal(pl.exclude(ROW).is_null())), trained
