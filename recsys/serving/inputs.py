"""What users bring: histories, users and items in raw ids, turned into item tokens."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import chain
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.config import Columns, DataConfig, time_value
from recsys.data.features.encoders import NO_ENCODERS, Encoders
from recsys.data.histories import PAD, Histories, span_indices
from recsys.data.log import KEPT, filter_log, read_log
from recsys.data.prepared import PreparedDataset
from recsys.data.tables import TableSource, read_table
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError, did_you_mean
from recsys.model.model_inputs import TimesRead

logger = logging.getLogger(__name__)

RawHistories = TableSource | Mapping[Any, Iterable[Any]] | Sequence[Iterable[Any]]
"""A log (frame or file), item ids by user id, or lists of item ids for users 0, 1, …; lists hold
the oldest item first."""

Moment = float | str | datetime
"""A time: a number on the scale of the training log, or a date (of a log that had dates; text is
ISO 8601, and UTC where it names no zone)."""


@dataclass(frozen=True, slots=True, eq=False)
class UserHistories:
    """The histories of B users, and who they are."""

    user_ids: pl.Series
    """[B], each once."""
    histories: Histories
    """Of the B users: what the catalogue holds of their items."""
    skipped: NDArray[np.int64]
    """How many items of each history are not in the catalogue [B]."""
    places: NDArray[np.int64]
    """Where each item is in its history as it was given, from 0 [N]."""

    @classmethod
    def from_raw(
        cls,
        source: RawHistories,
        data: DataConfig,
        vocabulary: Vocabulary,
        encoders: Encoders = NO_ENCODERS,
    ) -> UserHistories:
        """Read histories in raw ids.

        A log is ordered, and rid of duplicates, as when a dataset is prepared with these settings
        (the minimum numbers of interactions do not apply); its columns are called as they were in
        the training log, or user_id, item_id, timestamp. Users of a log come in ascending order,
        others as given. Lists are taken as they are.

        What the model reads of interactions and of users is columns of the log; those of a user
        have one value in all of the user's rows, or none in some.

        Raises:
            InputError: the log will not do, or an id is missing or neither an integer nor text; a
                column that the model reads is not there, or has values that are not of its kind.
        """
        if isinstance(source, Mapping):
            return _from_lists(list(source), list(source.values()), vocabulary, encoders)
        if isinstance(source, Sequence) and not isinstance(source, str):
            return _from_lists(range(len(source)), source, vocabulary, encoders)
        return _from_log(source, data, vocabulary, encoders)

    @classmethod
    def from_dataset(
        cls, users: Iterable[Any], dataset: PreparedDataset, vocabulary: Vocabulary
    ) -> UserHistories:
        """Everything a prepared dataset knows of some users, test targets included.

        It need not be the dataset the model was trained on: items are matched by their ids.

        Args:
            users: ids.
            dataset: as the model reads it (`Encoders.read`).
            vocabulary: of the model.

        Raises:
            InputError: a user is not in the dataset.
        """
        asked = id_series(users, "users").unique(maintain_order=True)
        known_users = Vocabulary(dataset.user_ids)
        rows = known_tokens(asked, known_users, "user", f"dataset {dataset.path}") - np.int64(1)
        starts, ends = dataset.offsets[rows], dataset.offsets[rows + 1]
        ours = np.concatenate([[PAD], vocabulary.encode(dataset.vocabulary.ids)]).astype(np.int32)
        places = span_indices(starts, ends)
        features, user_features = dataset.interaction_features, dataset.user_features
        whole = Histories(
            ours[dataset.items[places]],
            np.concatenate([[0], np.cumsum(ends - starts)]),
            dataset.timestamps[places],
            interaction_features=None if features is None else features[places],
            user_features=None if user_features is None else user_features[rows],
        )
        return _known(dataset.user_ids.gather(rows), whole)

    def told(self, reads: TimesRead, at: Moment | None) -> UserHistories:
        """With the times that a model reads.

        Args:
            reads: what it reads; at "none" nothing is looked at.
            at: when the recommendation is asked for, one time for all.

        Raises:
            InputError: the histories have no times; the time of asking is not given, is none, or
                is before a user's newest item.
        """
        times, lengths = self.histories.times, self.histories.lengths
        if reads == "none":
            return self
        if times is None:
            raise InputError(
                "histories: the model reads when items were had: give a log with a timestamp"
            )
        if reads == "past":
            return self
        if at is None:
            raise InputError("at: the model reads when the recommendation is asked for: say when")
        moment = _moment(at)
        some = np.flatnonzero(lengths)
        newest = times[self.histories.offsets[some + 1] - 1]
        if (newest > moment).any():
            late = int(np.argmax(newest > moment))
            user = self.user_ids[int(some[late])]
            raise InputError(
                f"at={at!r}: must not be before the newest item of user {user!r}, at {newest[late]}"
            )
        asked = np.full(len(lengths), moment, dtype=np.int64)
        return replace(self, histories=replace(self.histories, request_times=asked))


def id_series(values: Iterable[Any], place: str) -> pl.Series:
    """Ids as a series of integers or text.

    Raises:
        InputError: one is missing or is neither; the message starts with the place.
    """
    if isinstance(values, str):
        raise InputError(f"{place}: a list of ids, not {values!r}")
    try:
        ids = pl.Series(list(values))
    except (TypeError, OverflowError) as error:
        raise InputError(f"{place}: ids are all integers or all text") from error
    if ids.null_count():
        raise InputError(f"{place}: an id is missing")
    if len(ids) and not (ids.dtype.is_integer() or ids.dtype == pl.String):
        raise InputError(f"{place}: ids are integers or text, not {ids[0]!r}")
    return ids


def known_tokens(
    ids: pl.Series | Sequence[Any], vocabulary: Vocabulary, noun: str, place: str
) -> NDArray[np.int32]:
    """Tokens [N] of ids [N] that must all be in the vocabulary.

    Raises:
        InputError: one is not; the message names it and the place, and the nearest one if it is
            text.
    """
    ids = ids if isinstance(ids, pl.Series) else id_series(ids, f"{noun}s")
    tokens = vocabulary.encode(ids)
    if (tokens == PAD).any():
        unknown = ids[int(np.argmax(tokens == PAD))]
        text = vocabulary.ids.dtype == pl.String
        hint = did_you_mean(str(unknown), vocabulary.ids) if text else ""
        raise InputError(f"{noun} {unknown!r} is not in the {place}{hint}")
    return tokens


def _from_log(
    source: TableSource, data: DataConfig, vocabulary: Vocabulary, encoders: Encoders
) -> UserHistories:
    origin = str(source) if isinstance(source, str | os.PathLike) else "histories"
    if isinstance(source, str | os.PathLike):
        source = read_table(source)
    try:
        names = nw.from_native(source).lazy().collect_schema().names()
    except TypeError as error:
        raise InputError(
            f"histories: a frame, a mapping or a list of lists, not {type(source).__name__}"
        ) from error
    trained = data.columns or Columns()
    standard = Columns(position=trained.position)
    fits = [set(columns.model_dump().values()) <= {*names, None} for columns in (trained, standard)]
    columns = standard if fits == [False, True] else trained
    policy = DataConfig(duplicates=data.duplicates)
    frame = filter_log(read_log(source, columns, origin, encoders.input_columns), policy).frame
    rows = frame.collect("polars").to_polars()
    kept = [pl.col(KEPT + name).alias(name) for name in encoders.input_columns]
    log = rows.select("user_id", "item_id", *kept)
    users = rows["user_id"].rle().struct.unnest()
    whole = Histories(
        vocabulary.encode(log["item_id"]),
        np.concatenate([[0], np.cumsum(users["len"].to_numpy(), dtype=np.int64)]),
        rows["timestamp"].to_numpy(),
        interaction_features=encoders.read_interactions(log),
    )
    if encoders.users is not None:
        user_features = encoders.read_users(_user_table(log, encoders.users.columns, origin))
        whole = replace(whole, user_features=user_features)
    return _known(users["value"].rename("user_id"), whole)


def _user_table(log: pl.DataFrame, columns: Sequence[str], origin: str) -> pl.DataFrame:
    """user_id and the columns of users, of which each user's rows say the same or nothing."""
    rows = log.group_by("user_id", maintain_order=True)
    for name in columns:
        several = rows.agg(pl.col(name).drop_nulls()).filter(pl.col(name).list.n_unique() > 1)
        if len(several):
            user, values = several.row(0)
            other = next(value for value in values if value != values[0])
            raise InputError(
                f"{origin}: column {name!r}: is of users, and user {user!r} has both "
                f"{values[0]!r} and {other!r}"
            )
    return rows.agg(pl.col(columns).drop_nulls().first())


def _from_lists(
    users: Sequence[Any], lists: Sequence[Iterable[Any]], vocabulary: Vocabulary, encoders: Encoders
) -> UserHistories:
    if encoders.reads_inputs:
        raise InputError(
            f"histories: the model reads {', '.join(encoders.input_columns)} too, and lists of "
            "items do not say that: give a log with them as columns"
        )
    for user, items in zip(users, lists, strict=True):
        if isinstance(items, str) or not isinstance(items, Iterable):
            raise InputError(f"history of user {user!r}: a list of item ids, not {items!r}")
    rows = [list(items) for items in lists]
    items = id_series(chain.from_iterable(rows), "histories")
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    whole = Histories(vocabulary.encode(items), offsets)
    return _known(id_series(users, "users of the histories"), whole)


def _moment(at: Moment) -> int:
    """On the scale of a prepared log."""
    if isinstance(at, int):
        return at  # whole: a float has 53 bits
    try:
        return int(time_value(at.isoformat() if isinstance(at, datetime) else at))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"at={at!r}: a number or an ISO 8601 date") from error


def _known(user_ids: pl.Series, whole: Histories) -> UserHistories:
    """What the catalogue holds of whole histories, whose items are PAD where it does not."""
    histories = whole.take(np.arange(len(whole)))
    skipped = whole.lengths - histories.lengths
    if skipped.any():
        logger.warning(
            "%d of %d history items are not in the catalogue and were skipped",
            skipped.sum(),
            len(whole.items),
        )
    places = np.arange(len(whole.items)) - np.repeat(whole.offsets[:-1], whole.lengths)
    return UserHistories(user_ids, histories, skipped, places[whole.items != PAD])
