"""Histories in the caller's raw ids, turned into item tokens."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeGuard, cast

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.typing import IntoSeries
from numpy.typing import NDArray

from recsys.config import DataConfig
from recsys.data.features.encoders import NO_ENCODERS, Encoders
from recsys.data.histories import PAD, Histories
from recsys.data.prepared import PreparedDataset
from recsys.data.tables import TableSource
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError
from recsys.model.encoder import TimesRead
from recsys.serving.raw_log import read_raw_log
from recsys.serving.raw_values import (
    NO_SCALE,
    RequestTime,
    TimeScale,
    id_series,
    is_missing,
    lists_of,
)

logger = logging.getLogger(__name__)

RawHistories = TableSource | Mapping[Any, Iterable[Any]] | Sequence[Iterable[Any]] | IntoSeries
"""A log (frame or file), item ids by user id (a mapping, or a Series of pandas whose index has the
users), or lists of item ids for users 0, 1, …; each list starts with the oldest item, and a missing
one is empty."""


@dataclass(frozen=True, slots=True, eq=False)
class UserHistories:
    """The histories of B users and the users' ids."""

    user_ids: pl.Series
    """Shape [B]: distinct ids."""
    histories: Histories
    """The items of the B users that are in the catalogue."""
    skipped: NDArray[np.int64]
    """Shape [B]: how many items of each history are not in the catalogue."""
    positions: NDArray[np.int64]
    """Shape [N]: the index, from 0, of each item in the history as it was given."""
    assumed_gap: int | None = None
    """The time between two interactions that stands for missing times, on the scale of the training
    log; None if no times are missing, or the model reads none."""

    @classmethod
    def from_raw(
        cls,
        source: RawHistories,
        data: DataConfig,
        vocabulary: Vocabulary,
        encoders: Encoders = NO_ENCODERS,
        scale: TimeScale = NO_SCALE,
    ) -> UserHistories:
        """Read histories in raw ids.

        A log is read as the raw log of the dataset was: see `read_raw_log`. Its users come in
        ascending order, other users as given. Lists are read as they are.

        Features of interactions and users are columns of the log. A user's feature has one value in
        all of the user's rows, or is missing in some.

        Raises:
            InputError: the log cannot be read; an id is missing, or is neither an integer nor text;
                a column that the model reads is missing or has values of another kind.
        """
        lists = lists_of(source)
        if isinstance(lists, Mapping):
            return cls.from_lists(list(lists), list(lists.values()), vocabulary, encoders)
        if isinstance(lists, Sequence) and not isinstance(lists, str):
            return cls.from_lists(range(len(lists)), lists, vocabulary, encoders)
        return _from_log(cast("TableSource", source), data, vocabulary, encoders, scale)

    @classmethod
    def from_lists(
        cls,
        users: Sequence[Any],
        lists: Sequence[Iterable[Any]],
        vocabulary: Vocabulary,
        encoders: Encoders = NO_ENCODERS,
        times: Sequence[Iterable[RequestTime]] | None = None,
        scale: TimeScale = NO_SCALE,
    ) -> UserHistories:
        """Read lists of item ids [B] as they are, the oldest item first.

        Args:
            users: distinct ids [B].
            lists: item ids of each user.
            vocabulary: the items of the model.
            encoders: the encoders of the features that the model reads.
            times: the time of each item; unknown if None.
            scale: that of the training log.

        Raises:
            InputError: the model reads features of interactions or users; an id is missing, or is
                neither an integer nor text; times are neither whole numbers nor dates, not as many
                as the items, or not in order.
        """
        given = _listed(users, lists, vocabulary, encoders)
        if times is not None:
            given = replace(given, times=_listed_times(users, times, given.lengths, scale))
        return without_unknown_items(id_series(users, "users of the histories"), given)

    def __getitem__(self, users: slice) -> UserHistories:
        """Return the histories of successive users."""
        start, end, _ = users.indices(len(self.user_ids))
        first, last = self.histories.offsets[[start, end]]
        return replace(
            self,
            user_ids=self.user_ids[users],
            histories=self.histories[users],
            skipped=self.skipped[users],
            positions=self.positions[first:last],
        )

    def with_usual_times(self, gap: int) -> UserHistories:
        """Give histories without times those of interactions that follow each other after a gap."""
        offsets = self.histories.offsets
        places = np.arange(len(self.histories.items)) - np.repeat(offsets[:-1], np.diff(offsets))
        timed = replace(self.histories, times=places * np.int64(gap))
        return replace(self, histories=timed, assumed_gap=gap)

    def with_request_time(
        self,
        reads: TimesRead,
        at: RequestTime | NDArray[np.int64] | None,
        scale: TimeScale = NO_SCALE,
    ) -> UserHistories:
        """Add the request time, if the model reads it and the histories have none.

        Args:
            reads: the times that the model reads; "none" ignores ``at``.
            at: the request time of all users; or that of each [B], on the scale of the log.
            scale: that of the training log.

        Raises:
            InputError: the histories have no times; or the request time is missing, is not a time,
                or is before a user's last item.
        """
        times, lengths = self.histories.times, self.histories.lengths
        if reads == "none" or self.histories.request_times is not None:
            return self
        if times is None:
            raise InputError(
                "histories: the model reads the times of interactions: give a log with a timestamp"
            )
        if reads == "past":
            return self
        if at is None:
            raise InputError("at: the model reads the request time: say when")
        if isinstance(at, np.ndarray):
            moments = at
        else:
            moments = np.full(len(lengths), scale.value(at, "at"), dtype=np.int64)
        nonempty = np.flatnonzero(lengths)
        latest = times[self.histories.offsets[nonempty + 1] - 1]
        if (is_early := latest > moments[nonempty]).any():
            first = int(np.argmax(is_early))
            row = int(nonempty[first])
            shown = moments[row] if isinstance(at, np.ndarray) else repr(at)
            user = self.user_ids[row]
            raise InputError(
                f"at={shown}: must not be before the last item of user {user!r}, at {latest[first]}"
            )
        return replace(self, histories=replace(self.histories, request_times=moments))


def users_of(candidates: pl.Series, dataset: PreparedDataset) -> pl.Series:
    """Return the distinct users of candidates [N] that a dataset has; all if it has none of them.

    The caller reports the others with their candidates.
    """
    distinct = candidates.unique(maintain_order=True)
    known = Vocabulary(dataset.user_ids).encode(distinct) != PAD
    return distinct.filter(known) if known.any() else distinct


OneHistory = Iterable[Any] | TableSource | UserHistories
"""Item ids of one user, oldest first; a log of one user; or the `UserHistories` of one user."""


def one_user_source(history: Iterable[Any] | TableSource) -> RawHistories:
    """Return the history of one user in the form that `UserHistories.from_raw` reads."""
    return history if _is_log(history) else [id_series(cast("Any", history), "history")]


def _is_log(history: object) -> TypeGuard[TableSource]:
    """Whether it is a frame or a path; a string is taken for a mistaken list of ids."""
    frame = nw.from_native(history, pass_through=True)
    return isinstance(frame, nw.DataFrame | nw.LazyFrame) or isinstance(history, os.PathLike)


def _from_log(
    source: TableSource,
    data: DataConfig,
    vocabulary: Vocabulary,
    encoders: Encoders,
    scale: TimeScale,
) -> UserHistories:
    log = read_raw_log(source, data, encoders.input_columns, scale)
    given = Histories(
        vocabulary.encode(log.rows["item_id"]),
        log.offsets,
        log.rows["timestamp"].to_numpy(),
        interaction_features=encoders.read_interactions(log.interactions),
    )
    if encoders.users is not None:
        user_features = encoders.read_users(log.user_table(encoders.users.columns))
        given = replace(given, user_features=user_features)
    return without_unknown_items(log.user_ids, given)


def _listed(
    users: Sequence[Any], lists: Sequence[Iterable[Any]], vocabulary: Vocabulary, encoders: Encoders
) -> Histories:
    if encoders.reads_inputs:
        raise InputError(
            f"histories: the model reads {', '.join(encoders.input_columns)} too, and lists of "
            "items do not hold that: give a log with these columns"
        )
    lists = [() if is_missing(items) else items for items in lists]
    for user, items in zip(users, lists, strict=True):
        if isinstance(items, str) or not isinstance(items, Iterable):
            raise InputError(f"history of user {user!r}: a list of item ids, not {items!r}")
    rows = [list(items) for items in lists]
    items = id_series(chain.from_iterable(rows), "histories")
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Histories(vocabulary.encode(items), offsets)


def _listed_times(
    users: Sequence[Any],
    times: Sequence[Iterable[RequestTime]],
    lengths: NDArray[np.int64],
    scale: TimeScale,
) -> NDArray[np.int64]:
    """Return the times [N] of the items of histories with these lengths [B]."""
    rows = [np.empty(0, dtype=np.int64)]
    for user, row, length in zip(users, times, lengths, strict=True):
        given, place = np.asarray(list(row)), f"times of user {user!r}"
        if len(given) != length:
            raise InputError(f"{place}: {len(given)} for {length} items")
        if given.dtype.kind in "OU":
            given = np.array([scale.value(time, place) for time in given.tolist()])
        elif length and given.dtype.kind not in "iu":
            raise InputError(f"{place}: whole numbers or dates, not {given.tolist()!r}")
        rows.append(given.astype(np.int64))
    all_times = scale.numbers(np.concatenate(rows), "times")
    earlier = np.flatnonzero(np.diff(all_times) < 0) + 1
    wrong = np.setdiff1d(earlier, np.cumsum(lengths))
    if len(wrong):
        number = int(np.searchsorted(np.cumsum(lengths), wrong[0], side="right"))
        shown = rows[number + 1].tolist()
        raise InputError(f"times of user {users[number]!r}: the oldest first, not {shown!r}")
    return all_times


def without_unknown_items(user_ids: pl.Series, given: Histories) -> UserHistories:
    """Drop the items outside the catalogue, which are PAD in the given histories, and warn."""
    histories = given.take(np.arange(len(given)))
    skipped = given.lengths - histories.lengths
    if skipped.any():
        logger.warning(
            "%d of %d history items are not in the catalogue and were skipped",
            skipped.sum(),
            len(given.items),
        )
    positions = np.arange(len(given.items)) - np.repeat(given.offsets[:-1], given.lengths)
    return UserHistories(user_ids, histories, skipped, positions[given.items != PAD])
