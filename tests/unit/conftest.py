"""A dataset and bundles small enough to check by hand."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn

from recsys.config import DotProduct, Experiment, NextItemConfig, TargetAttention
from recsys.data.prepared import PreparedDataset, prepare
from recsys.model.build import build_model
from recsys.model.next_item import NextItemModel
from recsys.serving.bundle import ModelBundle

PURCHASES = {
    "ann": ["boots", "gloves", "hat", "jacket"],
    "bob": ["boots", "hat", "boots", "socks"],
    "cat": ["gloves", "boots", "jacket"],
    "dan": ["socks", "jacket"],
    "eve": ["hat", "gloves", "scarf"],  # the scarf is only ever a test target: not in the catalogue
    "fay": ["jacket", "boots", "hat"],
}


@pytest.fixture(scope="session")
def tiny_log() -> pl.DataFrame:
    rows = [
        (user, item, time) for user, items in PURCHASES.items() for time, item in enumerate(items)
    ]
    return pl.DataFrame(rows, schema=["user_id", "item_id", "timestamp"], orient="row")


@pytest.fixture(scope="session")
def tiny_dataset(
    tiny_log: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> PreparedDataset:
    names = pl.DataFrame({"item_id": ["boots", "hat"], "name": ["Snow boots", "Top hat"]})
    return prepare(tiny_log, out=tmp_path_factory.mktemp("data") / "tiny", items=names)


def tiny_experiment(head: TargetAttention | DotProduct) -> Experiment:
    return Experiment(
        model=NextItemConfig(
            embedding_dim=8,
            num_blocks=1,
            feed_forward_dim=16,
            max_sequence_length=3,
            head=head,
        )
    )


def tiny_model(experiment: Experiment, num_items: int) -> NextItemModel:
    torch.manual_seed(3)
    assert isinstance(experiment.model, NextItemConfig)
    model = build_model(experiment.model, num_items)
    for weight in model.parameters():  # past the zeros that target attention starts from
        nn.init.normal_(weight, std=0.5)
    with torch.no_grad():
        model.items.weight[0] = 0
    return model


def write_tiny_bundle(
    path: Path, dataset: PreparedDataset, head: TargetAttention | DotProduct
) -> ModelBundle:
    experiment = tiny_experiment(head)
    model = tiny_model(experiment, dataset.num_items)
    return ModelBundle.write(path, model, experiment, dataset, ("train",), git_commit="c0ffee")


@pytest.fixture(scope="session")
def tiny_bundle(
    tiny_dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> ModelBundle:
    """With target attention; treat its folder as read-only."""
    head = TargetAttention(num_heads=2, head_dim=4)
    return write_tiny_bundle(tmp_path_factory.mktemp("bundle") / "ta", tiny_dataset, head)


@pytest.fixture(scope="session")
def tiny_dot_bundle(
    tiny_dataset: PreparedDataset, tmp_path_factory: pytest.TempPathFactory
) -> ModelBundle:
    """With the dot-product head; treat its folder as read-only."""
    return write_tiny_bundle(tmp_path_factory.mktemp("bundle") / "dot", tiny_dataset, DotProduct())
