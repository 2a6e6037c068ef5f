"""Scoring some ten thousand pairs of a user and an item over a catalogue of twenty thousand."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from recsys.baselines.count_ensemble import CountEnsemble
from recsys.baselines.transitions import PCTM
from recsys.config import Experiment, NextItemConfig, TargetAttention
from recsys.data.prepared import PreparedDataset, prepare
from recsys.inference.catalogue import Catalogue
from recsys.serving.bundle import ModelBundle
from recsys.serving.recommender import Recommender

ITEMS, USERS, INTERACTIONS, ROWS = 19_384, 12_000, 400_000, 11_635


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> PreparedDataset:
    rng = np.random.default_rng(0)
    popular = rng.zipf(1.2, 4 * INTERACTIONS)
    items = np.concatenate([np.arange(ITEMS), popular[popular <= ITEMS][:INTERACTIONS] - 1])
    users = rng.integers(0, USERS, len(items))
    log = pl.DataFrame({"user_id": users, "item_id": items, "timestamp": np.arange(len(items))})
    return prepare(log, out=tmp_path_factory.mktemp("data") / "synthetic")


@pytest.fixture(scope="module", params=[False, True], ids=["model", "model and counts"])
def recommender(
    request: pytest.FixtureRequest,
    dataset: PreparedDataset,
    tmp_path_factory: pytest.TempPathFactory,
) -> Recommender:
    """An untrained model with target attention: how good it is does not matter here."""
    model = NextItemConfig(embedding_dim=64, max_sequence_length=50, head=TargetAttention())
    experiment = Experiment(model=model)
    histories = dataset.histories("test")
    torch.manual_seed(0)
    interactions = np.bincount(histories.items, minlength=dataset.num_items + 1)
    network = Catalogue.of(model, dataset).new_model(model, interactions)
    for weight in network.parameters():
        nn.init.normal_(weight, std=0.05)
    counts = CountEnsemble(PCTM.fit(histories, dataset.num_items), 1.0, repeat_weight=1.0)
    bundle = ModelBundle.write(
        tmp_path_factory.mktemp("bundle") / "bundle",
        *(network, experiment, dataset, ("train",)),
        count_ensemble=counts if request.param else None,
    )
    return Recommender(bundle, dataset)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def pairs(dataset: PreparedDataset, users: int) -> pl.DataFrame:
    rng = np.random.default_rng(1)
    rows = np.sort(rng.integers(0, users, ROWS))
    items = rng.integers(1, dataset.num_items + 1, ROWS)
    return pl.DataFrame(
        {
            "user_id": dataset.user_ids.gather(rng.permutation(dataset.num_users)[rows]),
            "item_id": dataset.vocabulary.decode(items),
        }
    ).sample(fraction=1, shuffle=True, seed=0)


@pytest.mark.benchmark
@pytest.mark.parametrize("users", [200, 2_000, 11_000])
def test_candidate_rows_take_seconds(
    recommender: Recommender, dataset: PreparedDataset, users: int, tmp_path: Path
) -> None:
    candidates = pairs(dataset, users)
    candidates.write_parquet(tmp_path / "candidates.parquet")
    recommender.score(candidates=candidates.head(10))
    took = seconds(lambda: recommender.score(candidates=tmp_path / "candidates.parquet"))
    print(f"{ROWS:,} candidates of {users:,} users, {dataset.num_items:,} items: {took:.2f} s")
    assert took < 30


@pytest.mark.benchmark
def test_most_of_the_catalogue_costs_less_than_twice_the_catalogue(
    recommender: Recommender, dataset: PreparedDataset
) -> None:
    users = dataset.user_ids.head(128).to_list()
    items = dataset.vocabulary.ids.head(int(0.9 * dataset.num_items))
    histories = recommender.read_histories(users=users)
    recommender.recommend(histories, k=10)
    all_items = min(seconds(lambda: recommender.recommend(histories, k=10)) for _ in range(3))
    most = min(seconds(lambda: recommender.score(histories, items)) for _ in range(3))
    print(
        f"128 users, 90% of {dataset.num_items:,} items: {most:.2f} s; best ten: {all_items:.2f} s"
    )
    answer = len(users) * len(items)
    assert most < 2 * all_items + answer * 1e-6  # a microsecond for each row of the answer
