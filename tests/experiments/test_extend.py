"""Bundles that are extended by the new items of a dataset, without training."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch

import recsys
from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.counts import Popularity
from recsys.baselines.transitions import PCTM, PCTMSettings
from recsys.config.data import DataConfig
from recsys.config.files import parse_experiment
from recsys.data.prepared import PreparedDataset, prepare
from recsys.errors import InputError
from recsys.serving.bundle import ModelBundle
from recsys.serving.new_items import extend
from recsys.serving.recommender import Recommender
from tests.helpers.commands import refused, run
from tests.helpers.logs import log_of
from tests.helpers.random_models import random_bundle

HISTORIES = [["boots", "hat"], ["socks"], ["jacket", "gloves", "boots"]]
MODELS = {
    "target attention": "model.head={kind: target_attention, head_dim: 4}",
    "hstu": "model={kind: hstu, embedding_dim: 8}",
    "masked item": "model={kind: masked_item, embedding_dim: 8}",
    "sequence to sequence": "model={kind: sequence_to_sequence, embedding_dim: 8}",
    "factorisation machine": "model={kind: factorisation_machine, embedding_dim: 8}",
}


@pytest.fixture(scope="module")
def later(tiny_log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    """The log with two new items: a cap after each hat, and a belt that is held out so far."""
    rows = [("gus", item) for item in ("boots", "hat", "cap", "gloves", "socks", "boots")]
    rows += [("hal", item) for item in ("hat", "cap", "socks", "belt", "hat")]
    new = log_of((*row, time) for time, row in enumerate(rows, 10))
    return prepare(pl.concat([tiny_log, new]), out=tmp_path_factory.mktemp("data") / "later")


def write(path: Path, dataset: PreparedDataset, *overrides: str) -> ModelBundle:
    experiment = parse_experiment(
        {"model": {"embedding_dim": 8, "num_blocks": 1, "head": {"kind": "dot_product"}}}, overrides
    )
    counts = None
    if experiment.count_ensemble is not None:
        counted = PCTM.fit(dataset.histories("valid"), dataset.num_items, PCTMSettings())
        counts = CountEnsemble(counted, 2.0, 0.5)
    return random_bundle(path, experiment, dataset, count_ensemble=counts)


def scores(bundle: ModelBundle, ids: list[str]) -> torch.Tensor:
    histories = Recommender(bundle).read_histories(HISTORIES).histories
    columns = torch.from_numpy(bundle.vocabulary.encode(ids)).long()
    return bundle.scorer.score(histories)[:, columns]


@pytest.mark.parametrize("model", MODELS)
def test_the_known_items_keep_their_scores(
    model: str, tiny_dataset: PreparedDataset, later: PreparedDataset, tmp_path: Path
) -> None:
    bundle = write(tmp_path / "bundle", tiny_dataset, MODELS[model])
    extended = extend(bundle, later, tmp_path / "extended")
    known = bundle.vocabulary.ids.to_list()
    assert extended.vocabulary.ids.to_list() == [*known, "belt", "cap"]
    assert torch.allclose(scores(extended, known), scores(bundle, known), atol=1e-6)
    assert extended.manifest.dataset_fingerprint == bundle.manifest.dataset_fingerprint


def test_a_new_item_is_the_mean_of_its_first_neighbours_and_recommended(
    tiny_dataset: PreparedDataset, later: PreparedDataset, tmp_path: Path
) -> None:
    """In the training part a cap stands between a hat and gloves, and between a hat and socks."""
    bundle = write(tmp_path / "bundle", tiny_dataset)
    model = recsys.extend(tmp_path / "bundle", later.path, tmp_path / "extended")
    table = model.bundle.model.items.weight

    def row(item: str) -> torch.Tensor:
        (token,) = model.bundle.vocabulary.encode([item])
        return table[token]

    assert torch.allclose(row("cap"), (2 * row("hat") + row("gloves") + row("socks")) / 4)
    everything = model.recommend(HISTORIES, k=7, seen="allow")["item_id"]
    assert {"cap", "belt"} <= set(everything)
    assert model.bundle.item_table["count"].to_list()[-2:] == [0, 0]
    assert bundle.num_items == 5


def test_counts_of_new_items_are_added(
    tiny_dataset: PreparedDataset, later: PreparedDataset, tmp_path: Path
) -> None:
    """What follows a hat is now a cap too; pairs of known items keep their counts."""
    bundle = write(tmp_path / "bundle", tiny_dataset, "count_ensemble={}")
    extended = extend(bundle, later, tmp_path / "extended")
    known = bundle.vocabulary.ids.to_list()
    assert torch.allclose(scores(extended, known), scores(bundle, known), atol=1e-6)
    assert extended.count_ensemble is not None
    counts = extended.count_ensemble.counts.log_counts
    hat, cap, belt = extended.vocabulary.encode(["hat", "cap", "belt"])
    assert counts[hat, cap] > 0
    assert counts[cap].nnz > 0
    assert counts[hat, belt] == 0
    opened = ModelBundle.open(extended.path)
    everything = [*known, "belt", "cap"]
    assert torch.equal(scores(opened, everything), scores(extended, everything))


def test_new_items_of_a_model_with_features_are_known_by_them(
    tiny_log: pl.DataFrame, later: PreparedDataset, tmp_path: Path
) -> None:
    kinds = {"boots": "shoe", "gloves": "hand", "hat": "head", "jacket": "coat", "socks": "shoe"}
    items = pl.DataFrame({"item_id": [*kinds, "cap", "belt"]}).with_columns(
        kind=pl.col("item_id").replace_strict(kinds, default="head")
    )
    old = prepare(tiny_log, out=tmp_path / "old", items=items)
    rows = later.interaction_table.drop_nulls().with_columns(timestamp=pl.int_range(pl.len()))
    new = prepare(rows, DataConfig(), tmp_path / "new", items=items)
    experiment = parse_experiment(
        {"model": {"embedding_dim": 8, "item_features": ["kind"], "head": {"kind": "dot_product"}}}
    )
    bundle = random_bundle(tmp_path / "bundle", experiment, old)
    extended = extend(bundle, new, tmp_path / "extended")
    features, table = extended.model.items.features, extended.model.items.table()
    assert features is not None
    (cap,) = extended.vocabulary.encode(["cap"])
    assert torch.equal(table[cap], features.category_weight[3])  # coat, hand, head, shoe
    known = bundle.vocabulary.ids.to_list()
    assert torch.allclose(scores(extended, known), scores(bundle, known), atol=1e-6)
    with pytest.raises(InputError, match="no column 'kind'"):
        extend(bundle, later, tmp_path / "other")


def test_the_command_and_what_it_refuses(
    tiny_dataset: PreparedDataset, later: PreparedDataset, tmp_path: Path
) -> None:
    write(tmp_path / "bundle", tiny_dataset)
    words = ["extend", tmp_path / "bundle", "--data", later.path, "--json", "--out"]
    assert '"new_items": 2' in run(*words, tmp_path / "new")
    assert Recommender.load(tmp_path / "new").bundle.num_items == 7
    assert "is the bundle that is extended" in refused(*words, tmp_path / "bundle")
    again = extend(ModelBundle.open(tmp_path / "new"), later, tmp_path / "again")
    assert again.num_items == 7
    popularity = Popularity.fit(tiny_dataset.histories("valid"), tiny_dataset.num_items)
    baseline = ModelBundle.write(
        tmp_path / "baseline",
        popularity,
        parse_experiment({"baseline": "popularity"}),
        tiny_dataset,
        ("train",),
    )
    with pytest.raises(InputError, match="holds the baseline popularity"):
        extend(baseline, later, tmp_path / "other")
