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
from recsys.data.histories import PAD, Histories
from recsys.data.log import filter_log, read_log
from recsys.data.prepared import PreparedDataset
from recsys.data.tables import TableSource, read_table
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError, did_you_mean
from recsys.model.hstu import TimesRead

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

    @classmethod
    def from_raw(
        cls, source: RawHistories, data: DataConfig, vocabulary: Vocabulary
    ) -> UserHistories:
        """Read histories in raw ids.

        A log is ordered, and rid of duplicates, as when a dataset is prepared with these settings
        (the minimum numbers of interactions do not apply); its columns are called as they were in
        the training log, or user_id, item_id, timestamp. Users of a log come in ascending order,
        others as given. Lists are taken as they are.

        Raises:
            InputError: the log will not do, or an id is missing or neither an integer nor text.
        """
        if isinstance(source, Mapping):
            return _from_lists(list(source), list(source.values()), vocabulary)
        if isinstance(source, Sequence) and not isinstance(source, str):
            return _from_lists(range(len(source)), source, vocabulary)
        return _from_log(source, data, vocabulary)

    @classmethod
    def from_dataset(
        cls, users: Iterable[Any], dataset: PreparedDataset, vocabulary: Vocabulary
    ) -> UserHistories:
        """Everything a prepared dataset knows of some users, test targets included.

        It need not be the dataset the model was trained on: items are matched by their ids.

        Raises:
            InputError: a user is not in the dataset.
        """
        asked = id_series(users, "users").unique(maintain_order=True)
        known_users = Vocabulary(dataset.user_ids)
        rows = known_tokens(asked, known_users, "user", f"dataset {dataset.path}") - 1
        starts, ends = dataset.offsets[rows], dataset.offsets[rows + 1]
        theirs = Histories.from_spans(dataset.items, starts, ends, dataset.timestamps)
        ours = np.concatenate([[PAD], vocabulary.encode(dataset.vocabulary.ids)]).astype(np.int32)
        histories = Histories.from_spans(
            ours[theirs.items], theirs.offsets[:-1], theirs.offsets[1:], theirs.times
        )
        return _counted(dataset.user_ids.gather(rows), histories, ends - starts)

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
        return replace(self, histories=replace(self.histories, asked=asked))


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


def _from_log(source: TableSource, data: DataConfig, vocabulary: Vocabulary) -> UserHistories:
    origin = str(source) if isinstance(source, str | os.PathLike) else "histories"
    if isinstance(source, str | os.PathLike):
        source = read_table(source)
    try:
        names = nw.from_native(source).lazy().collect_schema().names()
    except TypeError as error:
        raise InputError(
            f"histories: a frame, a mapping or a list of lists, not {type(source).__name__}"
        ) from error
    trained = (data.columns or Columns()).model_copy(update={"weight": None})
    standard = Columns(position=trained.position)
    fits = [set(columns.model_dump().values()) <= {*names, None} for columns in (trained, standard)]
    columns = standard if fits == [False, True] else trained
    policy = DataConfig(duplicates=data.duplicates)
    frame = filter_log(read_log(source, columns, origin), policy).frame
    log = frame.collect("polars").to_native()
    users = log["user_id"].rle().struct.unnest()
    lengths = users["len"].to_numpy().astype(np.int64)
    times = log["timestamp"].to_numpy()
    return _encoded(users["value"].rename("user_id"), log["item_id"], lengths, vocabulary, times)


def _from_lists(
    users: Sequence[Any], lists: Sequence[Iterable[Any]], vocabulary: Vocabulary
) -> UserHistories:
    for user, items in zip(users, lists, strict=True):
        if isinstance(items, str) or not isinstance(items, Iterable):
            raise InputError(f"history of user {user!r}: a list of item ids, not {items!r}")
    rows = [list(items) for items in lists]
    lengths = np.fromiter((len(row) for row in rows), dtype=np.int64, count=len(rows))
    items = id_series(chain.from_iterable(rows), "histories")
    return _encoded(id_series(users, "users of the histories"), items, lengths, vocabulary)


def _moment(at: Moment) -> int:
    """On the scale of a prepared log."""
    if isinstance(at, int):
        return at  # whole: a float has 53 bits
    try:
        return int(time_value(at.isoformat() if isinstance(at, datetime) else at))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(f"at={at!r}: a number or an ISO 8601 date") from error


def _encoded(
    user_ids: pl.Series,
    items: pl.Series,
    lengths: NDArray[np.int64],
    vocabulary: Vocabulary,
    times: NDArray[np.int64] | None = None,
) -> UserHistories:
    """From item ids laid end to end, and their times."""
    ends = np.cumsum(lengths)
    histories = Histories.from_spans(vocabulary.encode(items), ends - lengths, ends, times)
    return _counted(user_ids, histories, lengths)


def _counted(
    user_ids: pl.Series, histories: Histories, lengths: NDArray[np.int64]
) -> UserHistories:
    """Count what the histories have lost against their lengths in raw items, and say so."""
    skipped = lengths - histories.lengths
    if skipped.any():
        logger.warning(
            "%d of %d history items are not in the catalogue and were skipped",
            skipped.sum(),
            lengths.sum(),
        )
    return UserHistories(user_ids, histories, skipped)
