"""New items of the shop, which nobody has bought yet, are recommended by their category."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from recsys.config import Experiment, parse_experiment
from recsys.data.features.encoders import Encoders, FeatureEncoder, features_of
from recsys.data.histories import PAD, Histories
from recsys.data.vocabulary import Vocabulary
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.shop.simulation import make_shop
from recsys.training.loop import train

SHOP = make_shop(seed=0, num_customers=1_000, num_products=300)
VOCABULARY = Vocabulary(SHOP.products["item_id"])
COLD = np.arange(1, 301) % 10 == 0
"""Every tenth product has not been sold yet; ids carry no information."""


def make_experiment(*features: str) -> Experiment:
    model = {"kind": "next_item", "embedding_dim": 32, "num_blocks": 1, "feed_forward_dim": 64}
    model |= {"max_sequence_length": 20, "head": {"kind": "dot_product"}}
    training = {"learning_rate": 5e-3, "batch_tokens": 3200, "precision": "float32"}
    tree = {"model": {**model, "item_features": features}, "training": training}
    return parse_experiment(tree | {"evaluation": {"seen": "allow"}})


def warm_and_cold() -> tuple[Histories, Histories, NDArray[np.int32]]:
    """Return histories of known products, histories before new products, and these products."""
    tokens = VOCABULARY.encode(SHOP.interactions["item_id"])
    users = SHOP.interactions["user_id"].rle_id().to_numpy()
    known = ~COLD[tokens - 1]
    histories = [tokens[(users == user) & known] for user in range(users[-1] + 1)]
    positions = np.flatnonzero(~known)[::8]
    before = [tokens[:end][(users[:end] == users[end]) & known[:end]] for end in positions]
    chosen = [number for number, items in enumerate(before) if len(items) >= 3]
    return (
        Histories.from_lists([items for items in histories if len(items) > 1]),
        Histories.from_lists([before[number] for number in chosen]),
        tokens[positions[chosen]],
    )


def share_above(experiment: Experiment, products: pl.DataFrame) -> float:
    """Return the share of the catalogue ranked above the new product bought next; 0.5 by chance."""
    histories, before, targets = warm_and_cold()
    features = features_of(experiment.model, "item")
    encoder = FeatureEncoder.fit("item", features, products) if features else None
    catalogue = Catalogue.read(len(products), Encoders(encoder), products)
    model, _ = train(experiment, catalogue, histories, None, 8, lambda *_: None)
    scores = ModelScorer(model, 20).score(before).numpy()[:, PAD + 1 :]
    return float((scores > np.take_along_axis(scores, targets[:, None] - 1, axis=1)).mean())


@pytest.mark.slow
def test_new_products_are_found_by_their_category() -> None:
    """A shuffled category gives chance; without features new items were only ever negatives."""
    products = SHOP.products
    shuffled = products.with_columns(products["category"].shuffle(seed=3))
    assert share_above(make_experiment("category"), products) < 0.4
    assert 0.42 < share_above(make_experiment("category"), shuffled) < 0.58
    assert share_above(make_experiment(), products) > 0.8
