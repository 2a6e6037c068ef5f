"""Cross-entropy over the catalogue: by hand, and in chunks against torch, with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.config.experiment import CrossEntropy
from recsys.config.model import DotProduct, NextItemConfig, TargetAttention
from recsys.model.build import build_model
from recsys.model.heads import DotProductHead, TargetAttentionHead
from recsys.model.models import ModelInputs
from recsys.training import losses
from recsys.training.losses import chunked_cross_entropy, mean_loss, seen_before


def make_head(kind: str, dim: int) -> DotProductHead | TargetAttentionHead:
    if kind == "dot product":
        return DotProductHead()
    torch.manual_seed(0)
    config = TargetAttention(head_dim=4, half_life=(2.0, 9.0))
    head = TargetAttentionHead(dim, config, dropout=0.0)
    torch.nn.init.normal_(head.value_query.weight, std=0.3)
    return head


@pytest.mark.parametrize("kind", ["dot product", "target attention"])
@settings(max_examples=25, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 6), st.integers(2, 11)),
    chunk_rows=st.integers(1, 5),
    earlier=st.integers(0, 3),
    exclude=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_chunks_equal_torch_position_by_position(
    kind: str, shape: tuple[int, int, int], chunk_rows: int, earlier: int, exclude: bool, seed: int
) -> None:
    batch, length, items = shape
    head = make_head(kind, 6).double()
    torch.manual_seed(seed)
    sizes = (batch, length, 6), (batch, length, 6), (items + 1, 6)
    leaves = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    leaves += head.parameters()
    states, embedded, table = leaves[:3]
    targets = torch.randint(0, items + 1, (batch, length))
    seen = torch.randint(0, items + 1, (batch, earlier + length))
    history, candidates = head.represent_history(states, embedded), head.represent_candidates(table)
    losses: list[Tensor] = []
    for row, scores in enumerate(head.logits(history, candidates)):
        for t, target in enumerate(targets[row].tolist()):
            if target:
                before = set(seen[row, : earlier + t + 1].tolist() if exclude else []) - {target}
                left = [item for item in range(1, items + 1) if item not in before]
                index = torch.tensor(left.index(target))
                losses.append(F.cross_entropy(scores[t, left], index))
    expected = torch.stack(losses).mean() if losses else 0 * states.sum()
    positions = torch.arange(batch * length).view(batch, length)
    found = chunked_cross_entropy(
        head.logits,
        history,
        candidates,
        targets,
        (lambda rows: seen_before(seen, positions[rows], length)) if exclude else None,
        chunk_rows=chunk_rows,
    )
    assert found.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-6)
    ours = torch.autograd.grad(
        found, leaves, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    theirs = torch.autograd.grad(expected, leaves, allow_unused=True, materialize_grads=True)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("num_items", [7, 30])
@pytest.mark.parametrize("head", [DotProduct(), TargetAttention()])
def test_what_a_teacher_teaches_is_the_gradient_of_a_soft_cross_entropy(
    head: Any, num_items: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine tenths are the teacher's softmax without PAD and what is excluded; the rest, the target.

    Of a large catalogue both are over the targets and a sample; the value is that of the targets.
    """
    monkeypatch.setattr(losses, "_TAUGHT_ITEMS", 8)
    torch.manual_seed(0)
    model = build_model(NextItemConfig(dropout=0.0, head=head), num_items=num_items).double()
    nn.init.normal_(model.items.weight)
    items = torch.tensor([[1, 2, 3], [4, 5, 0]])
    targets, lengths = torch.tensor([[2, 3, 4], [5, 0, 0]]), torch.tensor([3, 1])
    taught = torch.randn(2, 3, 5, dtype=torch.float64), torch.randn(num_items + 1, 5).double()
    history, seen = model.teacher_forced(ModelInputs(items, lengths), targets)
    torch.manual_seed(1)
    drawn = losses.draw_taught(targets, num_items + 1, min(16, num_items + 1)).tolist()
    assert {0, 2, 3, 4, 5} < set(drawn)
    torch.manual_seed(1)
    found = mean_loss(CrossEntropy(), model, history, targets, seen, taught)
    scores = model.head.logits(history, model.head.represent_candidates(model.items.table()))
    expected, value = torch.zeros((), dtype=torch.float64), 0.0
    for row, t in ((0, 0), (0, 1), (0, 2), (1, 0)):
        target = targets[row, t]
        left = [i for i in drawn[1:] if i == target or i not in items[row, : t + 1].tolist()]
        soft = torch.softmax((taught[0][row, t] @ taught[1].T)[left], 0) * 0.9
        soft[left.index(int(target))] += 0.1
        logs = torch.log_softmax(scores[row, t, left], 0)
        expected = expected - (soft * logs).sum() / 4
        value -= logs[left.index(int(target))].item() / 4
    assert found.item() == pytest.approx(value)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    options: Any = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    ours = torch.autograd.grad(found, weights, **options)
    for mine, other in zip(ours, torch.autograd.grad(expected, weights, **options), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)
