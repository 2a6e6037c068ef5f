"""The catalogue: which items a model is made for, and what it reads of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from recsys.config import HSTUConfig, ItemFeature, ModelConfig, NextItemConfig
from recsys.data.features import ItemEncoder, ItemFeatures
from recsys.data.histories import PAD
from recsys.data.tables import read_table
from recsys.errors import InputError
from recsys.model.items import FeatureEmbeddings
from recsys.model.recommender import Model, build_model
from recsys.scoring.inputs import id_series


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


def with_new_rows(items: pl.DataFrame, new: pl.DataFrame, encoder: ItemEncoder) -> pl.DataFrame:
    """The item table of a bundle, and behind it items that the model was not trained on.

    Raises:
        InputError: see `ModelBundle.with_new_items`.
    """
    read_table(new, ["item_id", *(feature.column for feature in encoder.features)], "new items")
    if not len(new):
        raise InputError("new items: the table has no rows")
    ids, known = id_series(new["item_id"], "new items"), items["item_id"]
    if ids.dtype.is_integer() != known.dtype.is_integer():
        noun = "integers" if known.dtype.is_integer() else "text"
        raise InputError(f"new items: the ids of the catalogue are {noun}, not {ids[0]!r}")
    ids = ids.cast(known.dtype)
    for twice, place in (
        (ids.is_in(known.implode()), "in the catalogue already"),
        (ids.is_duplicated(), "there twice"),
    ):
        if twice.any():
            raise InputError(f"new items: item_id {ids.filter(twice)[0]!r} is {place}")
    rows = new.with_columns(item_id=ids, count=pl.lit(0, items.schema["count"]))
    try:
        both = [items, rows.select(column for column in items.columns if column in rows.columns)]
        return pl.concat(both, how="diagonal_relaxed")
    except pl.exceptions.PolarsError as error:
        reason = str(error).partition("\n")[0]
        raise InputError(f"new items: not of the types of the catalogue: {reason}") from error
