"""The catalogue: which items a model is made for, and what it reads beside their tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.config import Experiment, ModelConfig
from recsys.data.features.encoders import NO_ENCODERS, Encoders
from recsys.data.features.table import FeatureTable
from recsys.data.histories import PAD
from recsys.data.prepared import PreparedDataset
from recsys.model.build import build_model
from recsys.model.feature_embeddings import FeatureEmbeddings
from recsys.model.item_embeddings import ItemFeatureEmbeddings
from recsys.model.protocols import Model


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """I items, their features if the model reads any, and how all that it reads is encoded."""

    num_items: int
    """I: the items that a training may learn an embedding of."""
    encoders: Encoders = NO_ENCODERS
    features: FeatureTable | None = None
    """Of the I items, and of any that came later."""

    @classmethod
    def of(cls, config: ModelConfig, dataset: PreparedDataset) -> Catalogue:
        """The items of a dataset, as a model reads them.

        Raises:
            InputError: a feature of the config is not to be had of the dataset: see
                `FeatureEncoder.fit`.
        """
        return cls.read(dataset.num_items, Encoders.fit(config, dataset), dataset.item_table)

    @classmethod
    def read(cls, num_items: int, encoders: Encoders, items: pl.DataFrame) -> Catalogue:
        """The first items of a table, as many as were trained, and what is known of all of them."""
        encoder = encoders.items
        return cls(num_items, encoders, None if encoder is None else encoder.encode(items))

    def new_model(self, config: ModelConfig, interactions: NDArray[np.int64]) -> Model:
        """A freshly initialised model over the items; seed torch before calling.

        Where there are features, an item without interactions is known by them alone. Its own row
        of the embeddings would be trained as a wrong answer and never as a right one: it would
        learn that nobody wants it.

        Args:
            config: of the model.
            interactions: of each item in training, by item token, PAD included.
        """
        encoders, dim = self.encoders, config.embedding_dim
        inputs = features = None
        if encoders.reads_inputs:
            sizes = encoders.num_input_categories, encoders.num_input_numbers
            inputs = FeatureEmbeddings(*sizes, dim)
        if encoders.items is not None and self.features is not None:
            known = self.features.categories, self.features.shares, self.features.numbers
            categories, shares, numbers = map(torch.from_numpy, known)
            features = ItemFeatureEmbeddings(
                (categories, shares, numbers),
                torch.from_numpy(np.where(interactions > 0, np.arange(len(interactions)), PAD)),
                encoders.items.num_categories,
                dim,
            )
        return build_model(config, self.num_items, features, inputs)


def empty_model(
    experiment: Experiment, item_table: pl.DataFrame, num_trained: int, encoders: Encoders
) -> Model:
    """The model of a bundle over the items of its table, in evaluation mode; weights are to come.

    Args:
        experiment: its settings.
        item_table: with counts; the items that the model was not made for come last.
        num_trained: those that it was made for.
        encoders: of all that it reads.
    """
    catalogue = Catalogue.read(num_trained, encoders, item_table)
    interactions = np.concatenate([[0], item_table["count"].to_numpy()])
    with torch.random.fork_rng(devices=[]):  # its first weights are drawn, to be overwritten
        return catalogue.new_model(experiment.model, interactions).eval()
