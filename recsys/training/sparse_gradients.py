"""Gradients of the rows that a step has read, of the tables with a row for each item."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recsys.model.protocols import Model
from recsys.training import processes


def use_sparse_gradients(model: Model) -> dict[str, Tensor]:
    """Make the gradients of all embedding tables with a row per item sparse.

    Returns:
        Their weights by name.
    """
    weights: dict[str, Tensor] = {}
    for name, table in model.named_modules():
        if isinstance(table, nn.Embedding) and table.num_embeddings == model.num_items + 1:
            table.sparse = True
            weights[f"{name}.weight"] = table.weight
    return weights


def mean_over_processes(gradient: Tensor) -> Tensor:
    """Return the mean of the sparse gradients [I + 1, D] of all processes, in each of them.

    The rows are exchanged and added up here, because NCCL cannot add sparse tensors. The sums have
    the same order in all processes, so that their tables stay equal.
    """
    own = gradient.coalesce()
    rows = processes.all_gather_rows(own.indices()[0])
    values = processes.all_gather_rows(own.values()) / processes.count()
    return torch.sparse_coo_tensor(rows[None], values, own.shape).coalesce()
