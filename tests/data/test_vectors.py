"""Models that read vectors of items: their arithmetic, their bundles, and new items."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recsys.config.experiment import Experiment
from recsys.config.files import parse_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.folders import file_sha256, tree_sha256
from recsys.inference.catalogue import Catalogue
from recsys.model.embeddings import VectorEmbeddings
from recsys.model.models import Model
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender
from tests.helpers.random_models import drawn, random_bundle

IDS = ["boots", "gloves", "hat", "jacket", "socks"]
ITEMS = pl.DataFrame(
    {
        "item_id": IDS,
        "kind": ["shoe", "hand", "head", "coat", "shoe"],
        "text": [[2.0, 0.0, 0.0], [0.0, 3.0, 4.0], [0.0, 0.0, -1.0], None, [1.0, 1.0, 0.0]],
    }
)
NEW = pl.DataFrame(
    {"item_id": ["scarf", "shoes", "coin"], "text": [[0.0, 5.0, 0.0], [7.0, 0.0, 0.0], None]}
)
HISTORY = ["hat", "gloves", "boots"]
INTERACTIONS = np.array([0, 2, 0, 2, 1, 1])
"""Gloves have not been in training."""


@pytest.fixture(scope="module")
def dataset(tiny_log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    return prepare(tiny_log, out=tmp_path_factory.mktemp("data") / "vectors", items=ITEMS)


def experiment_of(**model: Any) -> Experiment:
    feature = {"kind": "vector", "column": "text"}
    tree: dict[str, Any] = {"embedding_dim": 8, "num_blocks": 1, "feed_forward_dim": 16}
    tree["max_sequence_length"] = 3
    tree |= {"head": {"kind": "dot_product"}, "item_features": [feature], **model}
    training = {"learning_rate": 1e-2, "batch_tokens": 60, "precision": "float32", "max_epochs": 2}
    tracked = {"training": training, "evaluation": {"seen": "allow"}}
    return parse_experiment({"model": tree, **tracked})


def drawn_model(experiment: Experiment, dataset: PreparedDataset) -> Model:
    catalogue = Catalogue.of(experiment.model, dataset)
    torch.manual_seed(3)
    return drawn(catalogue.new_model(experiment.model, INTERACTIONS))


def vectors_of(model: Model) -> VectorEmbeddings:
    assert model.items.features is not None
    (found,) = model.items.features.vectors
    assert isinstance(found, VectorEmbeddings)
    return found


V = torch.tensor(
    [[0, 0, 0], [1, 0, 0], [0, 0.6, 0.8], [0, 0, -1], [0, 0, 0], [0.5**0.5, 0.5**0.5, 0]]
)


@pytest.mark.parametrize("item_ids", [True, False])
def test_projected_vectors_are_added(dataset: PreparedDataset, item_ids: bool) -> None:
    """e_i = E[i] + v_i P; gloves, which were not in training, have only v_i P."""
    model = drawn_model(experiment_of(item_ids=item_ids), dataset)
    own = torch.zeros(6, 8)
    if item_ids:
        own[[1, 3, 4, 5]] = model.items.weight[[1, 3, 4, 5]].detach()
    assert len(model.items.weight) == (6 if item_ids else 1)
    expected = own + V @ vectors_of(model).weight
    assert torch.allclose(model.items.table(), expected, atol=1e-3)
    tokens = torch.tensor([[2, 0], [5, 1]])
    assert torch.equal(model.items(tokens), model.items.table()[tokens])
    assert model.num_items == 5


@pytest.fixture(scope="module")
def bundle(dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory) -> ModelBundle:
    path = tmp_path_factory.mktemp("bundle") / "b"
    return random_bundle(path, experiment_of(), dataset, INTERACTIONS)


def test_a_bundle_keeps_vectors_in_half_precision_and_reads_them_once(bundle: ModelBundle) -> None:
    assert "text" not in bundle.item_table.columns
    assert "kind" in bundle.item_table.columns
    with safe_open(bundle.path / "vectors.safetensors", framework="pt") as file:
        assert file.get_tensor("text").dtype == torch.float16
    opened = ModelBundle.open(bundle.path)
    maps = Path("/proc/self/maps")  # the file may be replaced while a server answers
    assert not maps.exists() or str(bundle.path / "vectors.safetensors") not in maps.read_text()
    assert torch.allclose(opened.vectors["text"].float(), V, atol=1e-3)


@pytest.mark.parametrize(
    "tensors",
    [
        {},
        {"text": torch.zeros(6, 3)},
        {"text": torch.zeros(6, 3).half(), "x": torch.zeros(1)},
    ],
)
def test_a_bundle_with_other_vectors_is_refused(
    bundle: ModelBundle, tmp_path: Path, tensors: Mapping[str, Tensor]
) -> None:
    bundle.copy_to(tmp_path / "copy")
    save_file(dict(tensors), tmp_path / "copy" / "vectors.safetensors")
    with pytest.raises(InputError, match=r"vectors\.safetensors: SHA-256"):
        ModelBundle.open(tmp_path / "copy")
    reseal(tmp_path / "copy")
    expected = r"vectors\.safetensors: has the vectors .*, not .*text.*float16.*6, 3"
    with pytest.raises(InputError, match=expected):
        ModelBundle.open(tmp_path / "copy")


def reseal(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"] = {name: file_sha256(folder / name) for name in manifest["files"]}
    manifest["digest"] = tree_sha256(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("item_ids", [True, False])
def test_new_items_are_scored_by_their_vectors(
    dataset: PreparedDataset, tmp_path: Path, item_ids: bool
) -> None:
    """Shoes point where boots do, without what training knows of boots; a coin has no vector."""
    experiment = experiment_of(item_ids=item_ids)
    recommender = Recommender(random_bundle(tmp_path / "b", experiment, dataset, INTERACTIONS))
    extended = recommender.with_new_items(NEW.head(1)).with_new_items(NEW.tail(2))
    assert len(extended.bundle.vectors["text"]) == 9
    model = extended.bundle.model
    projection = vectors_of(model).weight
    expected = torch.stack([projection[1], projection[0], torch.zeros(8)])
    assert torch.allclose(model.items.table()[6:], expected, atol=1e-5)
    assert torch.equal(model.items.table()[:6], recommender.bundle.model.items.table())
    scores = extended.score([HISTORY], NEW["item_id"].to_list())["score"].to_list()
    assert len(set(scores)) == 3


def test_new_items_that_are_refused(bundle: ModelBundle, tmp_path: Path) -> None:
    recommender = Recommender(bundle)
    new = tmp_path / "new.parquet"
    for rows, message in (
        ({"kind": ["shoe"]}, "no column 'text' among item_id, kind"),
        ({"text": [[1.0, 2.0]]}, "vector 'text': item 'x' has no 3 finite numbers"),
        ({"text": ["[1, 2, 3]"]}, "vector 'text': must be a column of lists of floats, not of Str"),
    ):
        pl.DataFrame({"item_id": ["x"], **rows}).write_parquet(new)
        with pytest.raises(InputError) as caught:
            recommender.with_new_items(new)
        assert str(caught.value).startswith(f"{new}: ")
        assert message in str(caught.value)
