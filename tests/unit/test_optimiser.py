"""The row-wise optimiser, against those of torch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from recsys.training.optimiser import RowwiseAdamW, clip_gradients


def lookups(
    sparse: bool, rows: list[list[int]], optimizer_of: type, **settings: object
) -> nn.Embedding:
    """Train a table towards zero on some of its rows a step."""
    torch.manual_seed(0)
    table = nn.Embedding(6, 3, sparse=sparse)
    optimizer = optimizer_of(table.parameters(), lr=0.1, **settings)
    for step in rows:
        table(torch.tensor(step)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return table


def test_it_is_adamw_if_all_rows_are_read() -> None:
    every = [[0, 1, 2, 3, 4, 5, 3]] * 4
    ours = lookups(True, every, RowwiseAdamW, weight_decay=0.1, betas=(0.9, 0.98))
    plain = lookups(False, every, torch.optim.AdamW, weight_decay=0.1, betas=(0.9, 0.98))
    torch.testing.assert_close(ours.weight, plain.weight)


def test_it_is_sparse_adam_if_some_rows_are_read() -> None:
    steps = [[0, 1], [1, 1, 4], [0], [4, 5]]
    ours = lookups(True, steps, RowwiseAdamW, weight_decay=0.0)
    theirs = lookups(True, steps, torch.optim.SparseAdam)
    torch.testing.assert_close(ours.weight, theirs.weight)
    untouched = lookups(True, [], RowwiseAdamW)
    assert torch.equal(ours.weight[[2, 3]], untouched.weight[[2, 3]])


def test_dense_parameters_are_updated_as_in_adamw() -> None:
    torch.manual_seed(0)
    table, plain = nn.Embedding(4, 2, sparse=True), nn.Linear(2, 2)
    optimizer = RowwiseAdamW([*table.parameters(), *plain.parameters()], lr=0.1)
    weight = plain.weight.detach().clone()
    plain(table(torch.tensor([1, 2]))).sum().backward()
    assert plain.weight.grad is not None
    gradient = plain.weight.grad.clone()
    optimizer.step()
    copy = nn.Parameter(weight)
    reference = torch.optim.AdamW([copy], lr=0.1)
    copy.grad = gradient
    reference.step()
    torch.testing.assert_close(plain.weight, copy)
    assert set(optimizer.state[table.weight]) == {"step", "exp_avg", "exp_avg_sq"}


@pytest.mark.parametrize("max_norm", [0.5, 1e6])
def test_clipping_treats_sparse_gradients_as_dense_ones(max_norm: float) -> None:
    norms, clipped = [], []
    for sparse in (True, False):
        torch.manual_seed(0)
        weight = nn.Parameter(torch.randn(5, 3))
        other = nn.Parameter(torch.randn(3))
        read = F.embedding(torch.tensor([1, 1, 4]), weight, sparse=sparse)
        (read @ other).square().sum().backward()
        norms.append(clip_gradients([weight, other], max_norm))
        assert weight.grad is not None
        clipped.append(weight.grad.to_dense())
    torch.testing.assert_close(norms[0], norms[1])
    torch.testing.assert_close(clipped[0], clipped[1])
