"""The catalogue: the items that a model scores, its features, and the model that grows with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
import torch
from scipy.sparse import csr_array
from torch import Tensor

from recsys.config.experiment import Experiment
from recsys.config.model import AveragedConfig, FeatureReaderConfig, ModelConfig
from recsys.data.database import check_memory
from recsys.data.features import NO_ENCODERS, Encoders, ItemVectors, features_of
from recsys.data.histories import PAD, FeatureTable, Histories, Int32s, Int64s
from recsys.data.prepared import PreparedDataset
from recsys.model.build import build_model
from recsys.model.embeddings import (
    FeatureEmbeddings,
    ItemEmbeddings,
    ItemFeatureEmbeddings,
    VectorEmbeddings,
)
from recsys.model.models import AveragedModel, Model


@dataclass(frozen=True, slots=True, eq=False)
class Catalogue:
    """The items of a model, their features if it reads any, and the encoders of all features."""

    num_items: int
    """I, the number of items that training may learn an embedding of."""
    encoders: Encoders = NO_ENCODERS
    features: FeatureTable | None = None
    """Those of the I items, and of any that were added later."""
    vectors: ItemVectors = field(default_factory=dict)

    @classmethod
    def of(cls, config: ModelConfig, dataset: PreparedDataset) -> Catalogue:
        """The catalogue of a dataset, for a model; errors: see `FeatureEncoder.fit`."""
        return cls.read(dataset.num_items, Encoders.fit(config, dataset), dataset.item_table)

    @classmethod
    def read(
        cls,
        num_items: int,
        encoders: Encoders,
        items: pl.DataFrame,
        vectors: ItemVectors | None = None,
    ) -> Catalogue:
        """The catalogue of the first I items of a table, and the features of all of them.

        Vectors are columns of the table if None.
        """
        encoder = encoders.items
        if not encoder.fitted:
            return cls(num_items, encoders)
        vectors = encoder.vectors(items) if vectors is None else vectors
        return cls(num_items, encoders, encoder.encode(items), vectors)

    def check_memory(self, config: ModelConfig, copies: int, gpu_memory: int | None = None) -> None:
        """Raise an `InputError` if so many copies of the item embeddings do not fit into memory."""
        rows, dim = self.num_items + 1, config.embedding_dim
        check_memory(
            copies * rows * dim * 4,
            f"model: the embeddings of its {self.num_items:,} items, {copies} times in all,",
            "choose a smaller embedding_dim",
            gpu_memory,
        )

    def new_model(self, config: ModelConfig, interactions: Int64s) -> Model:
        """Build a model of the items with new weights; seed torch before calling.

        Where there are features, an item without interactions in training [I + 1] has these only:
        its own row of the embeddings would be trained as a negative and never as a target.
        """
        self.check_memory(config, 1)
        if isinstance(config, AveragedConfig):
            return AveragedModel([self.new_model(m.model, interactions) for m in config.members])
        encoders, dim = self.encoders, config.embedding_dim
        has_ids = not isinstance(config, FeatureReaderConfig) or config.item_ids
        inputs = features = None
        if encoders.input_columns:
            read = encoders.interactions, encoders.users  # categories of users are numbered last
            sizes = sum(e.num_categories for e in read), sum(e.num_numbers for e in read)
            inputs = FeatureEmbeddings(*sizes, dim)
        if self.features is not None:
            values = tuple(map(torch.from_numpy, self.features))
            own_rows = np.where(interactions > 0, np.arange(len(interactions)), PAD)
            rows = torch.from_numpy(own_rows if has_ids else np.zeros_like(own_rows))
            kinds = features_of(config, "item")
            columns = [feature.column for feature in kinds if feature.kind == "vector"]
            vectors = [VectorEmbeddings(self.vectors[column], dim) for column in columns]
            count = encoders.items.num_categories
            features = ItemFeatureEmbeddings(values, rows, count, dim, vectors)
        model = build_model(config, self.num_items if has_ids else 0, features, inputs)
        if features is not None and not has_ids:
            features.draw_weights()
        return model

    def restored_model(
        self, config: ModelConfig, histories: Histories, weights: Mapping[str, Tensor]
    ) -> Model:
        """Build a model that was trained on the histories, in evaluation mode, on the CPU."""
        interactions = np.bincount(histories.items, minlength=self.num_items + 1)
        model = self.empty_model(config, interactions)
        model.load_state_dict(weights)
        return model

    def empty_model(self, config: ModelConfig, interactions: Int64s) -> Model:
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
    """Build the model of a bundle, in evaluation mode, of items with counts, the new ones last."""
    catalogue = Catalogue.read(num_trained, encoders, item_table, vectors)
    interactions = np.concatenate([[0], item_table["count"].to_numpy()])
    return catalogue.empty_model(experiment.model, interactions)


# --- A catalogue that has grown -------------------------------------------------------------------

_NOISE = 0.01
"""Noise of a new row without neighbours, as a share of the spread of the known rows: rows that are
equal would tie."""


def grown_weights(
    weights: Mapping[str, Tensor], tokens: Int32s, model: Model, histories: Histories
) -> dict[str, Tensor]:
    """Return the weights of an earlier model, for a model of a grown catalogue.

    In the tables with a row per item a known item keeps its row. A new one has zeros where the
    model reads item features, which are all that is known of it; else the mean of its first
    neighbours; without any, the mean of all known rows and a little noise of torch's generator.

    Tokens are those that the items had there [I + 1], PAD for an item without a known row. The
    model is a new one of the I items, and not changed; the histories have its item tokens.
    """
    tables, neighbours = item_tables(model), None
    if model.items.features is None and tables:
        num_known = int(tokens.max(initial=PAD)) + 1
        neighbours = first_neighbours(histories, tokens, num_known)
    return {
        name: _grown_table(known, tokens, neighbours) if name in tables else known
        for name, known in weights.items()
    }


def _grown_table(known: Tensor, tokens: Int32s, neighbours: csr_array | None) -> Tensor:
    """Return the rows of all items [I + 1, D]; zeros for new ones if neighbours is None."""
    rows = known[torch.from_numpy(tokens).long()].clone()
    new = np.flatnonzero(tokens == PAD)
    if neighbours is None:
        rows[torch.from_numpy(new)] = 0
        return rows
    if len(new := new[1:]):  # not PAD itself
        chosen = known[torch.from_numpy(tokens[tokens != PAD]).long()]
        counts = neighbours[new]
        totals = counts.sum(axis=1)
        sums = counts @ known[: counts.shape[1]].double().numpy()
        means = torch.from_numpy(sums / np.maximum(totals, 1)[:, None]).to(known.dtype)
        alone = torch.from_numpy(totals == 0)
        noise = torch.randn(int(alone.sum()), known.shape[1])
        means[alone] = chosen.mean(dim=0) + _NOISE * chosen.std(dim=0, correction=0) * noise
        rows[torch.from_numpy(new)] = means
    return rows


def item_tables(model: Model) -> set[str]:
    """Return the names of the weights with a row per item; none where items have features alone."""
    tables = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, ItemEmbeddings) and module.num_embeddings > 1
    }
    return {name for name, weight in model.named_parameters() if id(weight) in tables}


def first_neighbours(histories: Histories, tokens: Int32s, num_known: int) -> csr_array:
    """Count the first known neighbours of each new item [I + 1, J + 1], by new and earlier token.

    Those of an occurrence are the nearest known items before and after it in the same history.

    >>> histories = Histories.from_lists([[1, 3, 4, 2], [3, 1]])  # 3 and 4 are new
    >>> first_neighbours(histories, np.array([0, 1, 2, 0, 0]), 3).toarray()[3:].tolist()
    [[0, 2, 1], [0, 1, 1]]
    """
    items, users = histories.items, histories.users
    places = np.arange(len(items))
    known = tokens[items] != PAD
    before = np.maximum.accumulate(np.where(known, places, -1))
    after = np.minimum.accumulate(np.where(known, places, len(items))[::-1])[::-1]
    new: list[Int32s] = []
    neighbours: list[Int32s] = []
    for nearest, exists in ((before, before >= 0), (after, after < len(items))):
        rows = np.flatnonzero(~known & exists)
        rows = rows[users[nearest[rows]] == users[rows]]
        new.append(items[rows])
        neighbours.append(tokens[items[nearest[rows]]])
    pairs = np.concatenate(new), np.concatenate(neighbours)
    return csr_array(
        (np.ones(len(pairs[0]), dtype=np.int64), pairs), shape=(len(tokens), num_known)
    )
