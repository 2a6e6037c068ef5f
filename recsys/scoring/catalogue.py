"""The catalogue: which items a model is made for, and what it reads of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.config import Experiment, HSTUConfig, ItemFeature, ModelConfig, NextItemConfig
from recsys.data.features import ItemEncoder, ItemFeatures
from recsys.data.histories import PAD
from recsys.model.items import FeatureEmbeddings
from recsys.model.recommender import Model, build_model


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """I items and, if the model reads any, their features."""

    num_items: int
    """I: the items that a training may learn an embedding of."""
    encoder: ItemEncoder | None = None
    features: ItemFeatures | None = None
    """Of the I items, and of any that came later."""

    @classmethod
    def of(cls, config: ModelConfig, items: pl.DataFrame) -> Catalogue:
        """The items of an item table [I rows], as a model reads them.

        Raises:
            InputError: a feature of the config is not to be had of the table: see
                `ItemEncoder.fit`.
        """
        features = item_features(config)
        return cls.read(len(items), ItemEncoder.fit(features, items) if features else None, items)

    @classmethod
    def read(cls, num_items: int, encoder: ItemEncoder | None, items: pl.DataFrame) -> Catalogue:
        """The first items of a table, as many as were trained, and what is known of all of them."""
        return cls(num_items, encoder, None if encoder is None else encoder.encode(items))

    def new_model(self, config: ModelConfig, interactions: NDArray[np.int64]) -> Model:
        """A freshly initialised model over the items; seed torch before calling.

        Where there are features, an item without interactions is known by them alone. Its own row
        of the embeddings would be trained as a wrong answer and never as a right one: it would
        learn that nobody wants it.

        Args:
            config: of the model.
            interactions: of each item in training, by item token, PAD included.
        """
        if self.encoder is None or self.features is None:
            return build_model(config, self.num_items)
        rows = np.where(interactions > 0, np.arange(len(interactions)), PAD)
        features = FeatureEmbeddings(
            torch.from_numpy(self.features.categories),
            torch.from_numpy(self.features.shares),
            torch.from_numpy(self.features.numbers),
            torch.from_numpy(rows),
            self.encoder.num_categories,
            config.embedding_dim,
        )
        return build_model(config, self.num_items, features)


def item_features(config: ModelConfig) -> tuple[ItemFeature, ...]:
    """What the model reads of items beside their tokens; nothing for kinds that do not."""
    return config.item_features if isinstance(config, NextItemConfig | HSTUConfig) else ()


def empty_model(
    experiment: Experiment, item_table: pl.DataFrame, num_trained: int, encoder: ItemEncoder | None
) -> Model:
    """The model of a bundle over the items of its table, in evaluation mode; weights are to come.

    Args:
        experiment: its settings.
        item_table: with counts; the items that the model was not made for come last.
        num_trained: those that it was made for.
        encoder: of the features, if it reads any.
    """
    catalogue = Catalogue.read(num_trained, encoder, item_table)
    interactions = np.concatenate([[0], item_table["count"].to_numpy()])
    with torch.random.fork_rng(devices=[]):  # its first weights are drawn, to be overwritten
        return catalogue.new_model(experiment.model, interactions).eval()
