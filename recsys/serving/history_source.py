"""Where the histories of a question come from: the caller, or a prepared dataset."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from recsys.data.prepared import PreparedDataset
from recsys.errors import InputError
from recsys.serving.bundle import ModelBundle
from recsys.serving.inputs import RawHistories, UserHistories


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
        if self._encoded is None or users is None:
            raise InputError("users are looked up in a prepared dataset, and none was loaded")
        return UserHistories.from_dataset(
            users, self._encoded, self.bundle.vocabulary, self.bundle.time_scale
        )

    @cached_property
    def _encoded(self) -> PreparedDataset | None:
        """The dataset with the features that the model reads."""
        return None if self.dataset is None else self.bundle.encoders.read(self.dataset)
