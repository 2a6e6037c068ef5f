"""Where the histories of a question come from: the caller, or a prepared dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from recsys.data.histories import PAD, Histories, span_indices
from recsys.data.prepared import PreparedDataset
from recsys.data.vocabulary import Vocabulary
from recsys.errors import InputError
from recsys.serving.bundle import ModelBundle
from recsys.serving.histories import RawHistories, UserHistories, without_unknown_items
from recsys.serving.raw_values import (
    NO_SCALE,
    TimeScale,
    id_series,
    ids_of_one_kind,
    known_tokens,
)


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
        users: Sequence[Any] | pl.Series,
        later: Sequence[Sequence[Any]] | None = None,
        times: Sequence[NDArray[np.int64]] | None = None,
        gap: int | None = None,
    ) -> UserHistories:
        """Return the full histories of users [B], test targets included, and what came after them.

        Args:
            users: their ids.
            later: the item ids of each that came after its history in the dataset, oldest first.
            times: the times of these; without, they are as far apart as the gap.
            gap: None if no times are assumed: the histories have none then.

        Raises:
            InputError: a user is not in the dataset.
        """
        dataset, rows = self.dataset, self._rows(users)
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

    def __contains__(self, user: Any) -> bool:
        """Whether a user is in the dataset."""
        return bool(self._users.encode([user])[0])

    def _rows(self, users: Sequence[Any] | pl.Series) -> NDArray[np.int64]:
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

    user: Any = None
    """The id of a user of the dataset; None if it is none."""
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


@dataclass(frozen=True, eq=False)
class HistorySource:
    """Reads histories as a model sees them."""

    bundle: ModelBundle
    dataset: PreparedDataset | None
    """The dataset in which users given by id are looked up."""

    def read(
        self, histories: RawHistories | UserHistories | None, users: Iterable[Any] | None
    ) -> UserHistories:
        """See `Recommender.read_histories`."""
        if histories is None and users is None and self.dataset is not None:
            users = self.dataset.user_ids
        if (histories is None) == (users is None):
            raise InputError("give either histories or users, or load a dataset")
        if isinstance(histories, UserHistories):
            return histories
        if histories is not None:
            return self.bundle.read_histories(histories)
        ids = id_series(() if users is None else users, "users")
        return self.known.read(ids.unique(maintain_order=True))

    def read_visitors(self, visitors: Sequence[Visitor]) -> UserHistories:
        """Read the histories of users 0, 1, …, who are all of one kind; a log is of one alone.

        Raises:
            InputError: a user is not in the dataset; the model reads times and there are none.
        """
        first, bundle = visitors[0], self.bundle
        lists = [visitor.items for visitor in visitors]
        times = None if first.times is None else [visitor.times for visitor in visitors]
        if times is None and any(lists) and bundle.times != "none" and bundle.usual_gap is None:
            raise InputError("history: the model reads the times of interactions: give times")
        if first.log is not None:
            read = first.log
        elif first.user is not None:
            ids = ids_of_one_kind(visitor.user for visitor in visitors)
            later = lists if first.items else None
            read = self.known.read(ids, later, times, bundle.usual_gap)  # type: ignore[arg-type]
        elif times is None:
            read = bundle.read_histories([*map(ids_of_one_kind, lists)])
        else:
            read = UserHistories.from_lists(
                *(range(len(lists)), [*map(ids_of_one_kind, lists)], bundle.vocabulary),
                times=times,  # type: ignore[arg-type]
            )
        read = replace(read, user_ids=pl.Series(range(len(visitors))))
        moments = None if first.at is None else np.array([visitor.at for visitor in visitors])
        return read.with_request_time(bundle.times, moments)  # on the scale of the log already

    @cached_property
    def known(self) -> KnownUsers:
        """The users of the dataset.

        Raises:
            InputError: none was loaded.
        """
        if self.dataset is None:
            raise InputError("users are looked up in a prepared dataset, and none was loaded")
        encoded = self.bundle.encoders.read(self.dataset)
        return KnownUsers(encoded, self.bundle.vocabulary, self.bundle.time_scale)
