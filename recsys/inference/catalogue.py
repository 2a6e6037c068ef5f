"""The catalogue: the items that a model scores, with the features that it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from recsys.config import Experiment, FeatureReaderConfig, ModelConfig, VectorFeature
from recsys.data.database import check_memory
from recsys.data.features.encoders import NO_ENCODERS, Encoders, ItemVectors, features_of
from recsys.data.histories import PAD, FeatureTable, Histories
from recsys.data.prepared import PreparedDataset
from recsys.model.build import build_model
from recsys.model.embeddings import FeatureEmbeddings, ItemFeatureEmbeddings, VectorEmbeddings
from recsys.model.models import Model


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """The items of a model, their features if it reads any, and the encoders of all features."""

    num_items: int
    """I, the number of items that training may learn an embedding of."""
    encoders: Encoders = NO_ENCODERS
    features: FeatureTable | None = None
    """The features of the I items, and of any that were added later."""
    vectors: ItemVectors = field(default_factory=dict)
    """The vectors of the same items."""

    @classmethod
    def of(cls, config: ModelConfig, dataset: PreparedDataset) -> Catalogue:
        """The catalogue of a dataset, for a model.

        Raises:
            InputError: the dataset lacks a feature of the config: see `FeatureEncoder.fit`.
        """
        return cls.read(dataset.num_items, Encoders.fit(config, dataset), dataset.item_table)

    @classmethod
    def read(
        cls,
        num_items: int,
        encoders: Encoders,
        items: pl.DataFrame,
        vectors: ItemVectors | None = None,
    ) -> Catalogue:
        """The catalogue of the first items of a table, and the features of all of them.

        Args:
            num_items: the number of the first items, I.
            encoders: the encoders of the features that the model reads.
            items: item_id and item features; items that were added later come last.
            vectors: the vectors of the items; if None, they are columns of the table.

        Raises:
            InputError: the table lacks a feature; see `FeatureEncoder.encode`.
        """
        encoder = encoders.items
        if encoder is None:
            return cls(num_items, encoders)
        vectors = encoder.vectors(items) if vectors is None else vectors
        return cls(num_items, encoders, encoder.encode(items), vectors)

    def check_memory(self, config: ModelConfig, copies: int, gpu_memory: int | None = None) -> None:
        """Check that so many copies of a model's weights fit into the memory, before it is built.

        With the free bytes of a GPU they must fit there.

        Raises:
            InputError: they do not.
        """
        counted = config
        if getattr(config, "positions", None) in ("rotary", "sinusoidal"):
            # Tables of angles hold no parameter, and on the meta device load the compiler, too.
            counted = config.model_copy(update={"positions": "none"})
        with torch.device("meta"), _NoValues():  # without memory, and without drawing a number
            model = self._build(counted, np.zeros(self.num_items + 1, dtype=np.int64))
        parameters = sum(weight.numel() for weight in model.parameters())
        check_memory(
            copies * parameters * 4,
            f"model: its {parameters:,} parameters, {copies} times in all,",
            "choose a smaller embedding_dim, or narrower and fewer blocks",
            gpu_memory,
        )

    def new_model(self, config: ModelConfig, interactions: NDArray[np.int64]) -> Model:
        """Build a model of the items with new weights; seed torch before calling.

        Where there are features, an item without interactions is represented by them only. Its own
        row of the embeddings would be trained as a negative and never as a target: it would learn
        that nobody wants the item.

        Args:
            config: the configuration of the model.
            interactions: the interactions of each item in training, by item token, PAD included.

        Raises:
            InputError: the model does not fit into the memory.
        """
        self.check_memory(config, 1)
        return self._build(config, interactions)

    def _build(self, config: ModelConfig, interactions: NDArray[np.int64]) -> Model:
        encoders, dim = self.encoders, config.embedding_dim
        has_ids = not isinstance(config, FeatureReaderConfig) or config.item_ids
        inputs = features = None
        if encoders.reads_inputs:
            sizes = encoders.num_input_categories, encoders.num_input_numbers
            inputs = FeatureEmbeddings(*sizes, dim)
        if encoders.items is not None and self.features is not None:
            values = self.features.categories, self.features.shares, self.features.numbers
            categories, shares, numbers = map(torch.from_numpy, values)
            own_rows = np.where(interactions > 0, np.arange(len(interactions)), PAD)
            features = ItemFeatureEmbeddings(
                (categories, shares, numbers),
                torch.from_numpy(own_rows if has_ids else np.zeros_like(own_rows)),
                encoders.items.num_categories,
                dim,
                [
                    VectorEmbeddings(self.vectors[feature.column], dim)
                    for feature in features_of(config, "item")
                    if isinstance(feature, VectorFeature)
                ],
            )
        model = build_model(config, self.num_items if has_ids else 0, features, inputs)
        if features is not None and not has_ids:
            features.draw_weights()
        return model

    def restored_model(
        self, config: ModelConfig, histories: Histories, weights: Mapping[str, Tensor]
    ) -> Model:
        """Build a model that was trained on the histories, in evaluation mode, on the CPU.

        The caller's random state stays.
        """
        interactions = np.bincount(histories.items, minlength=self.num_items + 1)
        model = self.empty_model(config, interactions)
        model.load_state_dict(weights)
        return model

    def empty_model(self, config: ModelConfig, interactions: NDArray[np.int64]) -> Model:
        """Build a `new_model`, in evaluation mode, whose weights the caller replaces."""
        with torch.random.fork_rng(devices=[]):  # weights are drawn all the same
            return self.new_model(config, interactions).eval()


def empty_model(
    experiment: Experiment,
    item_table: pl.DataFrame,
    num_trained: int,
    encoders: Encoders,
    vectors: ItemVectors | None = None,
) -> Model:
    """Build the model of a bundle, in evaluation mode; the caller loads its weights.

    Args:
        experiment: the settings of the bundle.
        item_table: the items with their counts; items added after training come last.
        num_trained: the number of items that the model was trained on.
        encoders: the encoders of the features that it reads.
        vectors: the vectors of the items; if None, they are columns of the table.
    """
    catalogue = Catalogue.read(num_trained, encoders, item_table, vectors)
    interactions = np.concatenate([[0], item_table["count"].to_numpy()])
    return catalogue.empty_model(experiment.model, interactions)


class _NoValues(TorchFunctionMode):
    """Gives new weights no values: normal ones on the meta device load torch's compiler first."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (nn.init.normal_, Tensor.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **(kwargs or {}))
