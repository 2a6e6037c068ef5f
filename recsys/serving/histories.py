"""Histories in the caller's raw ids, read as a model sees them: logs, lists, users of a dataset."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import polars as pl
from narwhals.typing import IntoSeries

from recsys.config.data import Columns, DataConfig, LeaveLastOut
from recsys.data.database import present
from recsys.data.entity_tables import plain_ids, user_of_session
from recsys.data.features import NO_ENCODERS, Encoders
from recsys.data.histories import PAD, Histories, Int32s, Int64s, span_indices
from recsys.data.log import KEPT, Log, filter_log, log_of_rows, read_log
from recsys.data.prepared import PreparedDataset, Vocabulary
from recsys.data.tables import OpenTable, TableSource, open_table
from recsys.data.times import COMPACT
from recsys.data.where import NoRowsLeftError
from recsys.errors import InputError
from recsys.model.encoder import TimesRead
from recsys.serving.raw_values import (
    RequestTime,
    check_unit,
    id_series,
    joined_lists,
    known_tokens,
    lists_of,
    time_on_scale,
    times_on_scale,
)

logger = logging.getLogger(__name__)

RawHistories = TableSource | Mapping[Any, Iterable[Any]] | Sequence[Iterable[Any]] | IntoSeries
"""A log (frame or file), item ids by user id (a mapping, or a Series of pandas by user), or
lists of item ids for users 0, 1, …, the oldest item first; a missing list is empty."""
Times = Sequence[Iterable[RequestTime] | None]
"""The times of the items of each history; None if they are unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class UserHistories:
    """The histories of B users, of items in the catalogue, and the users' distinct ids."""

    user_ids: pl.Series
    histories: Histories
    skipped: Int64s
    """Shape [B]: how many items of each history are not in the catalogue."""
    positions: Int64s
    """Shape [N]: the index, from 0, of each item in the history before any was skipped."""
    assumed_gap: int | None = None
    """The time between two interactions that stands for missing times; None if no time is."""

    @classmethod
    def of_tokens(
        cls, user_ids: pl.Series, read: Histories, assumed_gap: int | None = None
    ) -> UserHistories:
        """Drop the items outside the catalogue, which are PAD, and warn."""
        known = read.take(np.arange(len(read)))
        skipped = read.lengths - known.lengths
        if skipped.any():
            logger.warning(
                "%d of %d history items are not in the catalogue and were skipped",
                *(skipped.sum(), len(read.items)),
            )
        positions = np.arange(len(read.items)) - np.repeat(read.offsets[:-1], read.lengths)
        return cls(user_ids, known, skipped, positions[read.items != PAD], assumed_gap)


_NO_TIMES = "histories: the model reads the times of interactions: give times"
_ALL_USERS = {
    "min_user_interactions": 1,
    "min_item_interactions": 1,
    "k_core": False,
    "split": LeaveLastOut(),  # drops no row, unlike the end of a split by date
}
"""Settings that choose the users, items and dates of a dataset, as they are for a history."""


@dataclass(frozen=True, eq=False)
class HistoryReader:
    """Reads histories as a model sees them; every door of a recommender reads by it."""

    data: DataConfig
    """The settings of the data that the model was trained on."""
    vocabulary: Vocabulary
    encoders: Encoders = NO_ENCODERS
    newest: int | None = None
    """The newest time of the training log; None if unknown."""
    times_read: TimesRead = "none"
    usual_gap: int | None = None
    """The time between two interactions that stands for missing times; None if none can."""
    dataset: PreparedDataset | None = None
    """Where users are looked up: any dataset, whose items are matched by their ids."""

    def read(
        self,
        histories: RawHistories | None = None,
        users: Iterable[Any] | None = None,
        times: Times | None = None,
    ) -> UserHistories:
        """Read histories: see `Recommender.read_histories`.

        A log is read by the rules of the training data, lists as they are.
        """
        if histories is None:
            return UserHistories.of_tokens(*self._of_dataset(users))
        lists = lists_of(histories)
        if isinstance(lists, Mapping) and users is None:
            return self._of_lists(list(lists), list(lists.values()), None, times)
        if isinstance(lists, Sequence) and not isinstance(lists, str):
            return self._of_lists(range(len(lists)), lists, users, times)
        if users is not None:
            self.rows(users)  # that there is no dataset, or no such user, comes first
            raise InputError("histories: with users, give a list of item ids for each of them")
        return UserHistories.of_tokens(*self._of_log(cast("TableSource", histories)))

    def with_request_time(
        self, read: UserHistories, at: RequestTime | Sequence[RequestTime] | None
    ) -> UserHistories:
        """Add the request time, of all users or a list of one for each, if the model reads it.

        Raises:
            InputError: times are missing; or the request is before a user's last item.
        """
        times, lengths = read.histories.times, read.histories.lengths
        if self.times_read == "none" or read.histories.request_times is not None:
            return read
        if times is None:
            raise InputError(_NO_TIMES)
        if self.times_read == "past":
            return read
        if at is None:
            raise InputError("at: the model reads the request time: say when")
        moments = at if isinstance(at, list) else [at] * len(lengths)
        form = self.data.time_format
        known = {some: time_on_scale(some, self.newest, "at", form) for some in set(moments)}
        requested = np.array([known[moment] for moment in moments], dtype=np.int64)
        latest = np.append(times, 0)[read.histories.offsets[1:] - 1]
        for user in np.flatnonzero((lengths > 0) & (latest > requested))[:1].tolist():
            raise InputError(
                f"at={moments[user]!r}: must not be before the last item of user "
                f"{read.user_ids[user]!r}, at {latest[user]}"
            )
        return replace(read, histories=replace(read.histories, request_times=requested))

    # --- Users of the dataset ---

    def rows(self, users: Iterable[Any]) -> Int64s:
        """Return the rows of users in the dataset, which must have them."""
        return known_tokens(id_series(users, "users"), self._users, "user", "dataset") - np.int64(1)

    def _of_dataset(self, users: Iterable[Any] | None) -> tuple[pl.Series, Histories]:
        dataset = self._encoded
        rows = np.arange(dataset.num_users) if users is None else self.rows(users)
        starts, ends = dataset.offsets[rows], dataset.offsets[rows + 1]
        entries = span_indices(starts, ends)
        read, (tokens, places, outside) = dataset.items[entries], self._items
        items = tokens[read]
        items[read == PAD] = outside[np.searchsorted(places, entries[read == PAD])]
        return dataset.user_ids.gather(rows), Histories(
            items,
            np.concatenate([[0], np.cumsum(ends - starts)]),
            dataset.timestamps[entries],
            features=tuple(features[entries] for features in dataset.features),
        )

    @cached_property
    def _encoded(self) -> PreparedDataset:
        if self.dataset is None:
            raise InputError("users are looked up in a prepared dataset (--data): none was loaded")
        check_unit(self.dataset.timestamps, self.newest, str(self.dataset.path))
        return self.encoders.read(self.dataset)

    @cached_property
    def _users(self) -> Vocabulary:
        return Vocabulary(self._encoded.user_ids)

    @cached_property
    def _items(self) -> tuple[Int32s, Int64s, Int32s]:
        """Tokens of the dataset's catalogue; where it has other items, and the tokens of these."""
        dataset, catalogue = self._encoded, self.vocabulary
        outside = catalogue.encode(dataset.outside["item_id"])
        return (
            catalogue.tokens_of(dataset.vocabulary),
            np.flatnonzero(dataset.items == PAD),
            outside,
        )

    # --- Lists ---

    def _of_lists(
        self,
        keys: Sequence[Any],
        lists: Sequence[Iterable[Any]],
        users: Iterable[Any] | None,
        times: Times | None,
    ) -> UserHistories:
        items, offsets = joined_lists(keys, lists, "history", "histories")
        if self.encoders.input_columns and len(items):
            raise InputError(
                f"histories: the model reads {', '.join(self.encoders.input_columns)} too, and "
                "lists of items do not hold that: give a log with these columns"
            )
        listed = Histories(self.vocabulary.encode(items), offsets)
        if users is None:
            timed, gap = self._timed(listed, None, times)
            ids = id_series(keys, "users of the histories")
            if len(twice := ids.filter(ids.is_duplicated())):  # 1 and "1"
                raise InputError(f"histories: user {twice[0]!r} has two")
            return UserHistories.of_tokens(ids, timed, gap)
        ids, known = self._of_dataset(users)
        if len(known) != len(lists):
            raise InputError(f"histories: {len(lists)} lists for {len(known)} users")
        if not len(items):
            return UserHistories.of_tokens(ids, known)
        timed, gap = self._timed(listed, known, times)
        return UserHistories.of_tokens(ids, _appended(known, timed), gap)

    def _timed(
        self, listed: Histories, known: Histories | None, times: Times | None
    ) -> tuple[Histories, int | None]:
        """Sort lists by their times; return them and the gap that stands for missing times."""
        gap, owners = self.usual_gap, listed.users
        if times is None and gap is None and len(owners):
            return listed, None
        rows = [None] * len(listed) if times is None else [*times]
        is_missing = np.array([row is None for row in rows], dtype=bool)[owners]
        if is_missing.any() and gap is None and self.times_read != "none":
            raise InputError(_NO_TIMES)
        values = [
            self._values(row, length)
            for row, length in zip(rows, listed.lengths, strict=True)
            if row is not None
        ]
        own = np.zeros(len(owners), dtype=np.int64)
        if values:
            own[~is_missing] = times_on_scale(np.concatenate(values), self.newest, "times")
        if is_missing.any():
            if gap is not None:
                logger.warning(
                    "%d of %d histories have no times, which the model reads: it takes %d, the "
                    "median of the log, between two interactions; times are ranked better",
                    *(len(np.unique(owners[is_missing])), len(listed), gap),
                )
            step = np.int64(gap or 0)
            begins = np.full(len(listed), -step)
            if known is not None and known.times is not None:
                newest = np.append(known.times, 0)[known.offsets[1:] - 1]
                begins = np.where(known.lengths > 0, newest, 0)
            numbers = np.arange(1, len(own) + 1) - listed.offsets[:-1][owners]
            own = np.where(is_missing, begins[owners] + numbers * step, own)
        order = np.lexsort((own, owners))
        timed = Histories(listed.items[order], listed.offsets, own[order])
        return timed, gap if is_missing.any() else None

    def _values(self, row: Iterable[RequestTime], length: int) -> Int64s:
        times = list(row)
        if len(times) != length:
            raise InputError(f"times: one for each of the {length} items, not {len(times)}")
        if (form := self.data.time_format) in COMPACT or not all(type(t) is int for t in times):
            times = [time_on_scale(time, self.newest, "times", form) for time in times]
        try:
            return np.array(times, dtype=np.int64)
        except OverflowError as error:
            raise InputError("times: a number of more than 64 bits") from error

    # --- Logs ---

    def _of_log(self, source: TableSource) -> tuple[pl.Series, Histories]:
        """Read the histories of a raw log as those of a dataset prepared with the same settings.

        Users are ascending. One whose rows are all dropped has an empty history. With sessions, a
        history is the newest one.
        """
        origin = str(source) if isinstance(source, str | os.PathLike) else "histories"
        features = self.encoders.input_columns
        data = self.data.model_copy(update={**_ALL_USERS, "keep": tuple(features)})
        columns = data.columns or Columns()
        table = open_table(source, origin, header=data.header, encoding=data.encoding)
        table = table.renamed(_names(table, columns))
        log: Log | None = None
        with suppress(NoRowsLeftError):
            log = read_log(table, data, columns, with_fingerprint=False)
        ids = plain_ids(present(table.read([columns.user_id])[columns.user_id])).unique()
        users = id_series(ids, f"{origin}: column {columns.user_id!r}").alias("user_id")
        users = (users.cast(pl.Int64) if users.dtype.is_integer() else users).sort()
        rows = None if log is None else self._filtered(log, data, users)
        if rows is None:
            offsets = np.zeros(len(users) + 1, dtype=np.int64)
            return users, Histories(np.empty(0, np.int32), offsets, np.empty(0, np.int64))
        user_table = self._user_table(users, rows, origin)
        if "session" in rows.columns:
            rows = rows.filter(pl.col("session") == pl.col("session").max().over("user_id"))
        lengths = _of_users(users, rows.group_by("user_id").len())["len"].fill_null(0).to_numpy()
        if lengths.sum() != len(rows):
            raise InputError(
                f"{origin}: user ids are numbers, such as 12.0, in the rows that count and text in "
                f"others, such as {users[-1]!r}: write them in one way"
            )
        kept = [pl.col(KEPT + name).alias(name) for name in features]
        return users, Histories(
            self.vocabulary.encode(rows["item_id"]),
            np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]),
            rows["timestamp"].to_numpy(),
            features=self.encoders.of_rows(
                rows.select("user_id", "item_id", *kept),
                user_table,
                np.repeat(np.arange(len(users)), lengths),
            ),
        )

    def _filtered(self, log: Log, data: DataConfig, users: pl.Series) -> pl.DataFrame | None:
        """Return the rows that the rules leave, on the scale of the training log; None if none."""
        rows, columns = log.table(), log.columns
        times, place = rows["timestamp"].to_numpy(), f"{log.origin}: column {columns.timestamp!r}"
        scaled = times_on_scale(times, self.newest, place, dates=log.are_dates)
        if scaled is not times:
            rows = rows.with_columns(timestamp=pl.Series(scaled))
            log = log_of_rows(rows, columns, log.origin, log.keep)
        try:
            filter_log(log, data)
        except InputError:  # all rows are before data.since
            return None
        rows, order = log.table(), ["user_id"]
        if data.session_gap is not None:  # users are USER#1, USER#2, …, USER#10
            session = pl.col("user_id").str.extract(r"#(\d+)$").cast(pl.Int64)
            rows = rows.with_columns(user_of_session(rows["user_id"]), session=session)
            order.append("session")
        return rows.cast({"user_id": users.dtype}).sort(order, maintain_order=True)

    def _user_table(self, users: pl.Series, rows: pl.DataFrame, origin: str) -> pl.DataFrame:
        names = self.encoders.users.columns
        by_user = rows.group_by("user_id", maintain_order=True)
        values = by_user.agg(pl.col(KEPT + name).drop_nulls().alias(name) for name in names)
        for name in names:
            several = values.filter(pl.col(name).list.n_unique() > 1)
            if len(several):
                raise InputError(
                    f"{origin}: column {name!r} is a user feature, but user "
                    f"{several['user_id'][0]!r} has several values"
                )
        return _of_users(users, values.with_columns(pl.col(names).list.first()))


def _names(table: OpenTable, trained: Columns) -> dict[str, str]:
    """Return what columns of the training log are called here; user_id and so on are read too."""
    standard, named = Columns(position=trained.position), {*table.names, None}
    lacks_trained = not {*trained.model_dump().values()} <= named
    here = standard if lacks_trained and {*standard.model_dump().values()} <= named else trained
    names = {name: getattr(here, role) for role, name in trained.roles.items()}
    return {ours: theirs for ours, theirs in names.items() if ours != theirs}


def _of_users(users: pl.Series, table: pl.DataFrame) -> pl.DataFrame:
    return users.to_frame().join(table, on="user_id", how="left", maintain_order="left")


def _appended(known: Histories, later: Histories) -> Histories:
    """Append later items to histories, in the order of time if both have times."""
    owners = np.concatenate([known.users, later.users])
    items = np.concatenate([known.items, later.items])
    offsets = known.offsets + later.offsets
    if known.times is None or later.times is None:
        return Histories(items[np.argsort(owners, kind="stable")], offsets)
    times = np.concatenate([known.times, later.times])
    order = np.lexsort((times, owners))
    return Histories(items[order], offsets, times[order])
