"""Where the histories of a question come from: the caller, or a prepared dataset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
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
from recsys.serving.raw_values import NO_SCALE, TimeScale, id_series, known_tokens


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

    def read(self, users: Iterable[Any]) -> UserHistories:
        """Return the full histories of some users, test targets included.

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
        return without_unknown_items(dataset.user_ids.gather(rows), given)

    def read_longer(
        self, user: Any, items: pl.Series, times: NDArray[np.int64] | None, gap: int | None
    ) -> UserHistories:
        """Return the history of a user and the interactions that came after it.

        Args:
            user: the id.
            items: their item ids [N], oldest first.
            times: their times [N]; without, they are as far apart as the gap.
            gap: None if no times are assumed: the history has none then.

        Raises:
            InputError: the user is not in the dataset.
        """
        (row,) = self._rows([user])
        span = slice(int(self.dataset.offsets[row]), int(self.dataset.offsets[row + 1]))
        known_times = self.scale.of_dataset(self.dataset.timestamps[span], self.dataset.path)
        later = times
        if times is None and gap is not None:
            later = known_times[-1:].sum() + np.arange(1, len(items) + 1) * np.int64(gap)
        tokens = [self._tokens[self.dataset.items[span]], self.vocabulary.encode(items)]
        given = Histories(
            np.concatenate(tokens),
            np.array([0, len(known_times) + len(items)]),
            None if later is None else np.append(known_times, later),
        )
        read = without_unknown_items(self.dataset.user_ids.gather([row]), given)
        return read if times is not None else replace(read, assumed_gap=gap)

    def _rows(self, users: Iterable[Any]) -> NDArray[np.int64]:
        """Return the rows of distinct users."""
        ids = id_series(users, "users").unique(maintain_order=True)
        return known_tokens(ids, self._users, "user", f"dataset {self.dataset.path}") - np.int64(1)

    @cached_property
    def _users(self) -> Vocabulary:
        return Vocabulary(self.dataset.user_ids)

    @cached_property
    def _tokens(self) -> NDArray[np.int32]:
        """The model's token of each item token of the dataset."""
        tokens = self.vocabulary.encode(self.dataset.vocabulary.ids)
        return np.concatenate([[PAD], tokens]).astype(np.int32)


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
        return self.known.read(() if users is None else users)

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
