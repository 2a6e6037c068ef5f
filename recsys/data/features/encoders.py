"""All encoders of a model: what it reads of items, interactions and users, learned once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from recsys.config import Feature, FeatureReaderConfig, ModelConfig
from recsys.data.features.columns import Kind
from recsys.data.features.encoder import FeatureEncoder
from recsys.data.features.table import Features
from recsys.data.prepared import PreparedDataset

_FILES: dict[Kind, str] = {
    "item": "features.safetensors",
    "interaction": "interaction_features.safetensors",
    "user": "user_features.safetensors",
}


@dataclass(frozen=True, slots=True, eq=False)
class Encoders:
    """How the features of a model's config are read; None where it has none of a kind."""

    items: FeatureEncoder | None = None
    interactions: FeatureEncoder | None = None
    users: FeatureEncoder | None = None

    @classmethod
    def fit(cls, config: ModelConfig, dataset: PreparedDataset) -> Encoders:
        """Learn categories, means and words.

        Those of items from the whole catalogue, which is known before any purchase; those of
        interactions and users from the training part alone.

        Raises:
            InputError: a feature of the config is not to be had: see `FeatureEncoder.fit`.
        """

        def one(kind: Kind, table: Callable[[], pl.DataFrame]) -> FeatureEncoder | None:
            features = features_of(config, kind)
            return FeatureEncoder.fit(kind, features, table()) if features else None

        return cls(
            one("item", lambda: dataset.item_table),
            one("interaction", lambda: dataset.interaction_table.filter(dataset.in_training)),
            one("user", lambda: dataset.user_table.filter(dataset.cuts[:, 0] > 0)),
        )

    @property
    def num_input_categories(self) -> int:
        """Of interactions and users together; those of users are numbered behind the others."""
        return sum(one.num_categories for one in (self.interactions, self.users) if one)

    @property
    def num_input_numbers(self) -> int:
        """Of interactions and users together."""
        return sum(one.num_numbers for one in (self.interactions, self.users) if one)

    @property
    def reads_inputs(self) -> bool:
        """Whether anything is read of interactions or users."""
        return self.interactions is not None or self.users is not None

    @property
    def input_columns(self) -> list[str]:
        """Those that are read of interactions and users, each once."""
        both = (self.interactions, self.users)
        return list(dict.fromkeys(name for one in both if one for name in one.columns))

    def read_interactions(self, table: pl.DataFrame) -> Features | None:
        """What is read of interactions: user_id, item_id and their columns [N rows].

        Raises:
            InputError: a column is not there, or has values that are not of its kind.
        """
        return None if self.interactions is None else self.interactions.read(table)

    def read_users(self, table: pl.DataFrame) -> Features | None:
        """What is read of users: user_id and their columns [N rows].

        Raises:
            InputError: as `read_interactions`.
        """
        first = 1 if self.interactions is None else 1 + self.interactions.num_categories
        return None if self.users is None else self.users.read(table, first)

    def read(self, dataset: PreparedDataset) -> PreparedDataset:
        """The dataset as the model reads it: its histories have the features.

        Raises:
            InputError: as `read_interactions`.
        """
        if not self.reads_inputs:
            return dataset
        return replace(
            dataset,
            interaction_features=self.read_interactions(dataset.interaction_table),
            user_features=self.read_users(dataset.user_table),
        )

    def save(self, folder: Path) -> None:
        """Write a safetensors file for each kind."""
        for one in (self.items, self.interactions, self.users):
            if one is not None:
                one.save(folder / _FILES[one.of])

    @classmethod
    def load(cls, folder: Path, config: ModelConfig) -> Encoders:
        """Read what `save` wrote of the encoders of a model of the same config.

        Raises:
            InputError: a file cannot be read, or is of other features.
        """

        def one(kind: Kind) -> FeatureEncoder | None:
            features = features_of(config, kind)
            return FeatureEncoder.load(folder / _FILES[kind], kind, features) if features else None

        return cls(one("item"), one("interaction"), one("user"))


NO_ENCODERS = Encoders()
"""Those of a model that reads item tokens alone."""


def features_of(config: ModelConfig, kind: Kind) -> tuple[Feature, ...]:
    """What a model reads of items, interactions or users; nothing for kinds that do not."""
    if not isinstance(config, FeatureReaderConfig):
        return ()
    return {
        "item": config.item_features,
        "interaction": config.interaction_features,
        "user": config.user_features,
    }[kind]
