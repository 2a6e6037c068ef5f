"""The feature encoders of a model: one each for items, interactions and users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from recsys.config import Feature, FeatureReaderConfig, ModelConfig
from recsys.data.features.encoder import FeatureEncoder
from recsys.data.features.feature_column import Entity
from recsys.data.features.table import Features
from recsys.data.features.vectors import ItemVectors, open_vectors, save_vectors
from recsys.data.prepared import PreparedDataset

_FILES: dict[Entity, str] = {
    "item": "features.safetensors",
    "interaction": "interaction_features.safetensors",
    "user": "user_features.safetensors",
}

VECTORS = "vectors.safetensors"
"""The file of a bundle with the vectors of its items."""


@dataclass(frozen=True, slots=True, eq=False)
class Encoders:
    """The feature encoders of a model; None for an entity without features."""

    items: FeatureEncoder | None = None
    interactions: FeatureEncoder | None = None
    users: FeatureEncoder | None = None

    @classmethod
    def fit(cls, config: ModelConfig, dataset: PreparedDataset) -> Encoders:
        """Learn categories, means and words.

        Item encoders learn from the full catalogue, which is known before any purchase; encoders of
        interactions and users learn only from the training part.

        Raises:
            InputError: a feature of the config cannot be encoded: see `FeatureEncoder.fit`.
        """

        def fit(entity: Entity, table: Callable[[], pl.DataFrame]) -> FeatureEncoder | None:
            features = features_of(config, entity)
            return FeatureEncoder.fit(entity, features, table()) if features else None

        return cls(
            fit("item", lambda: dataset.item_table),
            fit("interaction", lambda: dataset.interaction_table.filter(dataset.in_training)),
            fit("user", lambda: dataset.user_table.filter(dataset.cuts[:, 0] > 0)),
        )

    @property
    def num_input_categories(self) -> int:
        """Categories of interactions and users together; those of users are numbered last."""
        return sum(encoder.num_categories for encoder in self._input_encoders)

    @property
    def num_input_numbers(self) -> int:
        """Numbers of interactions and users together."""
        return sum(encoder.num_numbers for encoder in self._input_encoders)

    @property
    def reads_inputs(self) -> bool:
        """Whether the model reads features of interactions or users."""
        return bool(self._input_encoders)

    @property
    def input_columns(self) -> list[str]:
        """The columns of interactions and users that the model reads, each once."""
        names = (name for encoder in self._input_encoders for name in encoder.columns)
        return list(dict.fromkeys(names))

    @property
    def _input_encoders(self) -> list[FeatureEncoder]:
        return [encoder for encoder in (self.interactions, self.users) if encoder is not None]

    def read_interactions(self, table: pl.DataFrame) -> Features | None:
        """Encode interactions: user_id, item_id and their columns [N rows].

        Raises:
            InputError: a column is missing, or has values that are not of its kind.
        """
        return None if self.interactions is None else self.interactions.read(table)

    def read_users(self, table: pl.DataFrame) -> Features | None:
        """Encode users: user_id and their columns [N rows].

        Raises:
            InputError: as `read_interactions`.
        """
        first = 1 if self.interactions is None else 1 + self.interactions.num_categories
        return None if self.users is None else self.users.read(table, first)

    def read(self, dataset: PreparedDataset) -> PreparedDataset:
        """Return the dataset with the features that the model reads in its histories.

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

    def save_vectors(self, folder: Path, items: pl.DataFrame) -> pl.DataFrame:
        """Write the vectors that the model reads, if it reads any; return the other columns.

        Raises:
            InputError: the item table does not have them.
        """
        vectors = {} if self.items is None else self.items.vectors(items)
        if vectors:
            save_vectors(vectors, folder / VECTORS)
        return items.drop(*vectors)

    def open_vectors(self, folder: Path, num_items: int) -> ItemVectors:
        """Map the vectors that `save_vectors` wrote of so many items.

        Raises:
            InputError: the file cannot be read, or does not fit.
        """
        dims = {} if self.items is None else self.items.vector_dims
        return open_vectors(folder / VECTORS, dims, num_items) if dims else {}

    def save(self, folder: Path) -> None:
        """Write a safetensors file for each entity with features."""
        for encoder in (self.items, self.interactions, self.users):
            if encoder is not None:
                encoder.save(folder / _FILES[encoder.entity])

    @classmethod
    def load(cls, folder: Path, config: ModelConfig) -> Encoders:
        """Read the files that `save` wrote for a model of the same config.

        Raises:
            InputError: a file cannot be read, or belongs to other features.
        """

        def load(entity: Entity) -> FeatureEncoder | None:
            path, features = folder / _FILES[entity], features_of(config, entity)
            return FeatureEncoder.load(path, entity, features) if features else None

        return cls(load("item"), load("interaction"), load("user"))


NO_ENCODERS = Encoders()
"""The encoders of a model that reads only item tokens."""


def features_of(config: ModelConfig, entity: Entity) -> tuple[Feature, ...]:
    """Return the features of an entity that a model reads; none if its kind reads no features."""
    if not isinstance(config, FeatureReaderConfig):
        return ()
    return {
        "item": config.item_features,
        "interaction": config.interaction_features,
        "user": config.user_features,
    }[entity]
