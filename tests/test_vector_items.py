"""New items are found by vectors and categories that tell what their ids cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest

from recsys.config.files import parse_experiment
from recsys.data.features import Encoders, FeatureEncoder, features_of
from recsys.data.histories import Histories
from recsys.inference.catalogue import Catalogue
from recsys.inference.model_scorer import ModelScorer
from recsys.training.loop import train

CATEGORIES, ITEMS, USERS, LENGTH = 4, 80, 300, 8
CATEGORY = np.arange(ITEMS) % CATEGORIES
NEW = np.arange(ITEMS) >= 60
"""The last 20 items, five of each category, have never been bought."""


def directions(rng: np.random.Generator) -> np.ndarray:
    """The centre of each item's category with noise, in 16 dimensions."""
    centres = rng.normal(size=(CATEGORIES, 16))
    return centres[CATEGORY] + 0.3 * rng.normal(size=(ITEMS, 16))


def share_of_own_category(
    feature: str | dict[str, str] | None, values: np.ndarray, *, item_ids: bool = True
) -> float:
    """Train on users who buy in one category; return its share of their five best new items."""
    rng = np.random.default_rng(1)
    liked = rng.integers(CATEGORIES, size=USERS)
    bought = [rng.choice(np.flatnonzero((c == CATEGORY) & ~NEW), LENGTH) + 1 for c in liked]
    model: dict[str, Any] = {
        "embedding_dim": 16,
        "num_blocks": 1,
        "feed_forward_dim": 32,
        "dropout": 0.0,
    }
    model |= {"max_sequence_length": LENGTH, "head": {"kind": "dot_product"}}
    model |= {"item_features": [feature] if feature else [], "item_ids": item_ids}
    training = {"learning_rate": 1e-2, "batch_tokens": 800, "precision": "float32"}
    experiment = parse_experiment(
        {"model": model, "training": training, "evaluation": {"seen": "allow"}}
    )
    items = pl.DataFrame({"item_id": np.arange(ITEMS), "told": values})
    features = features_of(experiment.model, "item")
    encoder = FeatureEncoder.fit("item", features, items)
    catalogue = Catalogue.read(ITEMS, Encoders(encoder), items)
    histories = Histories.from_lists(bought)
    trained, _ = train(experiment, catalogue, histories, None, 6, lambda *_: None)
    scores = ModelScorer(trained, LENGTH).score(histories).numpy()[:, 1:][:, NEW]
    best = np.argsort(-scores, axis=1)[:, :5]
    return float((CATEGORY[NEW][best] == liked[:, None]).mean())


@pytest.mark.slow
def test_features_tell_what_ids_cannot() -> None:
    """A quarter is chance; without features new items are negatives alone, and come last."""
    rng = np.random.default_rng(0)
    vector, vectors = {"kind": "vector", "column": "told"}, directions(rng)
    assert share_of_own_category(vector, vectors) > 0.9
    assert share_of_own_category(vector, vectors, item_ids=False) > 0.9
    assert share_of_own_category(vector, rng.permutation(vectors)) < 0.5
    names = CATEGORY.astype(str)
    assert share_of_own_category("told", names) > 0.9
    assert share_of_own_category("told", rng.permutation(names)) < 0.5
    assert share_of_own_category(None, names) < 0.5
