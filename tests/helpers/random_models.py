"""Models with random weights, past the zeros that many start from; and their bundles."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import nn

from recsys.config.experiment import Experiment
from recsys.data.histories import Int64s
from recsys.data.prepared import PreparedDataset
from recsys.inference.catalogue import Catalogue
from recsys.model.embeddings import ItemEmbeddings
from recsys.serving.bundle import ModelBundle

Module = TypeVar("Module", bound=nn.Module)


def drawn(model: Module, std: float = 0.5) -> Module:
    """Draw all weights of a model; embeddings of PAD stay zero."""
    for weight in model.parameters():
        nn.init.normal_(weight, std=std)
    for module in model.modules():
        if isinstance(module, ItemEmbeddings):
            module.weight.data[0] = 0
    return model


def random_bundle(
    path: Path,
    experiment: Experiment,
    dataset: PreparedDataset,
    interactions: Int64s | None = None,
    std: float = 0.5,
    **more: Any,
) -> ModelBundle:
    """Write a bundle; each item was in training if interactions [I + 1] do not say otherwise."""
    catalogue = Catalogue.of(experiment.model, dataset)
    if interactions is None:
        interactions = np.ones(dataset.num_items + 1, dtype=np.int64)
    torch.manual_seed(3)
    model = drawn(catalogue.new_model(experiment.model, interactions), std)
    return ModelBundle.write(
        path, model, experiment, dataset, ("train",), encoders=catalogue.encoders, **more
    )
