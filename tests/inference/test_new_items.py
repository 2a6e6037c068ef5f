"""Models that read item features: their bundles, and items newer than the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from polars.testing import assert_frame_equal
from torch import nn

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.transitions import PCTM, PCTMSettings
from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.inference.catalogue import Catalogue
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from tests.helpers.random_models import random_bundle

ITEMS = pl.DataFrame(
    {
        "item_id": ["boots", "gloves", "hat", "jacket", "socks"],
        "kind": ["shoe", "hand", "head", "coat", "shoe"],
        "price": [80.0, 20.0, 30.0, None, 5.0],
        "title": ["warm boots", "warm gloves", "red hat", "red jacket", "warm red socks"],
    }
)
NEW = pl.DataFrame(
    {"item_id": ["scarf", "shoes"], "kind": ["neck", "shoe"], "price": ["9.5", "60"]}
)
HISTORY = ["hat", "gloves", "boots"]


@pytest.fixture(scope="module")
def dataset(tiny_log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(tiny_log, out=tmp_path_factory.mktemp("data") / "described", items=ITEMS)


def make_experiment(*more: dict[str, Any], head: str = "target_attention") -> Experiment:
    model = {
        "embedding_dim": 8,
        "num_blocks": 1,
        "feed_forward_dim": 16,
        "max_sequence_length": 3,
        "head": {"kind": head},
        "item_features": ["kind", {"kind": "number", "column": "price"}, *more],
    }
    return parse_experiment({"model": model})


def write(path: Path, experiment: Experiment, dataset: PreparedDataset) -> ModelBundle:
    """Random weights; gloves have not been in training, and have no row of their own."""
    counts = CountEnsemble(PCTM.fit(dataset.histories("valid"), 5, PCTMSettings()), 2.0)
    interactions = np.array([0, 2, 2, 2, 1, 1])
    return random_bundle(path, experiment, dataset, interactions, count_ensemble=counts)


@pytest.fixture(scope="module")
def bundle(dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> ModelBundle:
    words = {"kind": "categories", "column": "title", "separator": " "}
    return write(tmp_path_factory.mktemp("bundle") / "b", make_experiment(words), dataset)


@pytest.fixture(scope="module")
def untitled(dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> Recommender:
    return Recommender(write(tmp_path_factory.mktemp("bundle") / "u", make_experiment(), dataset))


def test_a_bundle_with_features_comes_back(bundle: ModelBundle, dataset: PreparedDataset) -> None:
    assert "features.json" in bundle.manifest.files
    opened = ModelBundle.open(bundle.path)
    catalogue = Catalogue.of(bundle.experiment.model, dataset)
    torch.manual_seed(0)
    model = catalogue.new_model(bundle.experiment.model, np.array([0, 2, 2, 2, 1, 1])).eval()
    model.load_state_dict(bundle.model.state_dict())
    histories = dataset.histories("test")
    expected = model.items.table()
    assert torch.equal(opened.model.items.table(), expected)
    assert torch.equal(opened.scorer.score(histories), bundle.scorer.score(histories))


def test_an_item_without_training_is_its_features_alone(dataset: PreparedDataset) -> None:
    experiment = make_experiment()
    catalogue = Catalogue.of(experiment.model, dataset)
    model = catalogue.new_model(experiment.model, np.array([0, 2, 0, 2, 1, 1]))
    nn.init.ones_(model.items.weight)
    table = model.items.table()
    assert table[[1, 3, 4, 5]].eq(1).all()
    assert table[2].eq(1).all()  # that of row 0, which is zero unless a test fills it
    with torch.no_grad():
        model.items.weight[0] = 0
    assert not model.items.table()[2].any()


def test_new_items_are_scored_by_their_features(untitled: Recommender) -> None:
    """Shoes as boots would be at that price without a row of their own."""
    extended = untitled.with_new_items(NEW)
    items, features = extended.bundle.model.items, extended.bundle.model.items.features
    assert features is not None
    prices = np.array([80, 20, 30, 5])
    mean, spread = float(prices.mean()), float(prices.std())
    shoe = features.category_weight[4]  # coat, hand, head, shoe
    by = features.number_weight[0]
    expected = torch.stack([(9.5 - mean) / spread * by, shoe + (60 - mean) / spread * by])
    assert torch.allclose(items.table()[6:], expected.float(), atol=1e-5)
    answer = extended.recommend([HISTORY], k=7, seen="allow")
    assert set(answer["item_id"]) == {*ITEMS["item_id"], "scarf", "shoes"}
    alone = answer.filter(pl.col("item_id").is_in(["scarf", "shoes"]))
    scores = extended.score([HISTORY], alone["item_id"].to_list())
    assert scores["score"].to_list() == pytest.approx(alone["score"].to_list(), abs=1e-5)


def test_the_old_items_keep_their_scores(untitled: Recommender) -> None:
    extended, histories = untitled.with_new_items(NEW), [HISTORY, ["socks"], []]
    ids = ITEMS["item_id"].to_list()
    assert_frame_equal(extended.score(histories, ids), untitled.score(histories, ids), abs_tol=1e-5)
    assert untitled.bundle.num_items == 5
    with pytest.raises(InputError, match="'shoes' is not in the catalogue"):
        untitled.score([HISTORY], ["shoes"])


def test_a_new_item_can_be_in_a_history(untitled: Recommender) -> None:
    extended = untitled.with_new_items(NEW)
    assert extended.read_histories([["shoes", "hat"]]).skipped.tolist() == [0]
    one, other = (extended.score([[item, "hat"]], ["boots"])["score"][0] for item in NEW["item_id"])
    assert one != other
    history = ["hat", "shoes"]
    parts = extended.explain(history, "scarf")
    total = parts["contribution"].sum() + parts["rest"][0]
    assert total == pytest.approx(
        extended.score([["hat", "shoes"]], ["scarf"])["score"][0], abs=1e-5
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"item_id": ["scarf", "hat"]}, "new items: item_id 'hat' is in the catalogue already"),
        ({"item_id": ["scarf", "scarf"]}, "new items: item_id 'scarf' occurs twice"),
        ({"item_id": ["scarf", None]}, "new items: an id is missing"),
        ({"price": ["9.5", "dear"]}, "number 'price': item 'shoes' has 'dear', which is not a n"),
        ({"kind": [["neck"], ["shoe"]]}, "new items: .* a column of single values"),
    ],
)
def test_wrong_new_items_are_refused(
    untitled: Recommender, changes: dict[str, list[Any]], message: str
) -> None:
    new = NEW.with_columns(pl.Series(name, values) for name, values in changes.items())
    with pytest.raises(InputError, match=message) as error:
        untitled.with_new_items(new)
    assert "\n" not in str(error.value)
