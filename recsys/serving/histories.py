"""Histories in the caller's raw ids, turned into item tokens."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, cast

import narwhals as nw
import numpy as np
import polars as pl
from narwhals.typing import IntoSeries
from numpy.typing import NDArray

from recsys.config import DataConfig
from recsys.data.features.encoders import NO_ENCODERS, Encoders
from recsys.data.histories import PAD, Histories, span_indices
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
    ids_of_one_kind,
    joined_lists,
    known_tokens,
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
        if encoders.reads_inputs:
            raise InputError(
                f"histories: the model reads {', '.join(encoders.input_columns)} too, and lists of "
                "items do not hold that: give a log with these columns"
            )
        items, offsets = joined_lists(users, lists, "history", "histories")
        given = Histories(vocabulary.encode(items), offsets)
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


OneHistory = Iterable[Any] | TableSource | UserHistories
"""Item ids of one user, oldest first; a log of one user; or the `UserHistories` of one user."""


def one_user_source(history: Iterable[Any] | TableSource) -> RawHistories:
    """Return the history of one user in the form that `UserHistories.from_raw` reads.

    A log is a frame or a path; a string is taken for a mistaken list of ids.
    """
    frame: object = nw.from_native(history, pass_through=True)
    if isinstance(frame, nw.DataFrame | nw.LazyFrame) or isinstance(history, os.PathLike):
        return cast("TableSource", history)
    return [id_series(cast("Any", history), "history")]


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


@dataclass(frozen=True, eq=False)
class KnownUsers:
    """The users of a dataset as a model sees them; it may have been trained on another one.

    Items are matched by their ids. What does not depend on the question is made once.
    """

    dataset: PreparedDataset
    """With the features that the model reads (`Encoders.read`)."""
    vocabulary: Vocabulary
    """The items of the model."""
    scale: TimeScale = NO_SCALE
    """That of the training log."""

    def read(
        self,
        rows: NDArray[np.int64],
        later: Sequence[Sequence[Any]] | None = None,
        times: Sequence[NDArray[np.int64]] | None = None,
        gap: int | None = None,
    ) -> UserHistories:
        """Return the full histories of users [B], test targets included, and what came after them.

        Args:
            rows: those of the users in the dataset.
            later: the item ids of each that came after its history in the dataset, oldest first.
            times: the times of these; without, they are as far apart as the gap.
            gap: None if no times are assumed: the histories have none then.
        """
        dataset = self.dataset
        starts, ends = dataset.offsets[rows], dataset.offsets[rows + 1]
        entries = span_indices(starts, ends)
        features, user_features = dataset.interaction_features, dataset.user_features
        given = Histories(
            self._tokens[dataset.items[entries]],
            np.concatenate([[0], np.cumsum(ends - starts)]),
            self.scale.of_dataset(dataset.timestamps[entries], dataset.path),
            interaction_features=None if features is None else features[entries],
            user_features=None if user_features is None else user_features[rows],
        )
        if later is not None:
            given = self._longer(given, later, times, gap)
        read = without_unknown_items(dataset.user_ids.gather(rows), given)
        return read if later is None or times is not None else replace(read, assumed_gap=gap)

    def _longer(
        self,
        known: Histories,
        later: Sequence[Sequence[Any]],
        times: Sequence[NDArray[np.int64]] | None,
        gap: int | None,
    ) -> Histories:
        """Append later items to histories that have times."""
        counts = np.array([len(items) for items in later])
        offsets = known.offsets + np.concatenate([[0], np.cumsum(counts)])
        is_later = np.zeros(offsets[-1], dtype=bool)
        is_later[span_indices(offsets[1:] - counts, offsets[1:])] = True
        items = np.empty(offsets[-1], dtype=np.int32)
        items[~is_later] = known.items
        items[is_later] = self.vocabulary.encode(ids_of_one_kind(chain.from_iterable(later)))
        if times is None and gap is None:
            return Histories(items, offsets)
        assert known.times is not None  # noqa: S101 - those of the dataset
        all_times = np.empty(offsets[-1], dtype=np.int64)
        all_times[~is_later] = known.times
        if times is not None:
            all_times[is_later] = np.concatenate(times)
        else:
            newest = np.append(known.times, 0)[known.offsets[1:] - 1] * (known.lengths > 0)
            steps = np.concatenate([np.arange(1, count + 1) for count in counts])
            all_times[is_later] = np.repeat(newest, counts) + steps * np.int64(gap or 0)
        return Histories(items, offsets, all_times)

    def rows(self, users: Sequence[Any] | pl.Series) -> NDArray[np.int64]:
        """Return the rows of users in the dataset.

        Raises:
            InputError: a user is not in the dataset.
        """
        place = f"dataset {self.dataset.path}"
        return known_tokens(users, self._users, "user", place) - np.int64(1)

    @cached_property
    def _users(self) -> Vocabulary:
        return Vocabulary(self.dataset.user_ids)

    @cached_property
    def _tokens(self) -> NDArray[np.int32]:
        """The model's token of each item token of the dataset."""
        tokens = self.vocabulary.encode(self.dataset.vocabulary.ids)
        return np.concatenate([[PAD], tokens]).astype(np.int32)


@dataclass(frozen=True, slots=True, eq=False)
class Visitor:
    """A user of the dataset, or a history, or both: then the history came after the dataset's."""

    user: int | None = None
    """The row of a user of the dataset; None if it is none."""
    items: Sequence[Any] = ()
    """Item ids, oldest first."""
    times: NDArray[np.int64] | None = None
    """The time of each item, ascending, on the scale of the training log; None if unknown."""
    at: int | None = None
    """The request time, on the scale of the training log."""
    log: UserHistories | None = None
    """What was read of a log of this user alone, in place of the others."""

    @property
    def kind(self) -> tuple[bool, ...]:
        """What visitors have in common who are read together."""
        return self.user is None, bool(self.items), self.times is None, self.at is None
