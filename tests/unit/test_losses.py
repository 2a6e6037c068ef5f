"""Cross-entropy: by hand, against torch with label smoothing, at once and in chunks."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from recsys.model.heads import DotProductHead
from recsys.model.target_attention import TargetAttentionHead
from recsys.training.losses import SeenItems, chunked_cross_entropy, cross_entropy


def test_cross_entropy_by_hand() -> None:
    """Three items with odds 1 : 2 : 5; target 3; item 2 included, then excluded."""
    logits = torch.tensor([[[99.0, 0.0, math.log(2.0), math.log(5.0)]]])
    targets = torch.tensor([[3]])
    full = cross_entropy(logits.clone(), targets)
    assert full.item() == pytest.approx(-math.log(5 / 8))
    without = cross_entropy(logits.clone(), targets, torch.tensor([[[2, 0]]]))
    assert without.item() == pytest.approx(-math.log(5 / 6))


def test_the_target_is_never_excluded_and_padding_adds_nothing() -> None:
    logits = torch.randn(1, 2, 4, requires_grad=True)
    targets = torch.tensor([[3, 0]])
    excluded = torch.tensor([[[3], [3]]])
    loss = cross_entropy(logits * 1, targets, excluded)
    expected = F.cross_entropy(logits[0, :1, 1:], torch.tensor([2]), reduction="sum")
    assert loss.item() == pytest.approx(expected.item(), abs=1e-6)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert not gradient[0, 1].any()
    assert not gradient[..., 0].any()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 4),
    st.integers(1, 6),
    st.integers(2, 9),
    st.integers(0, 2**16),
)
def test_cross_entropy_equals_torch_with_gradients(
    batch: int, length: int, items: int, seed: int
) -> None:
    """Position by position, over the items that remain."""
    torch.manual_seed(seed)
    logits = torch.randn(batch, length, items + 1, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, items + 1, (batch, length))
    history = torch.randint(0, items + 1, (batch, length))
    expected = torch.zeros((), dtype=torch.float64) + 0 * logits.sum()
    for b in range(batch):
        for t in range(length):
            target = int(targets[b, t])
            if target:
                seen = set(history[b, : t + 1].tolist()) - {target}
                left = [item for item in range(1, items + 1) if item not in seen]
                expected = expected + F.cross_entropy(
                    logits[b, t, left], torch.tensor(left.index(target))
                )
    seen_before = SeenItems.up_to(history, length).before(slice(None))
    found = cross_entropy(logits * 1, targets, seen_before)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6, abs=1e-5)
    (one,) = torch.autograd.grad(found, logits)
    (other,) = torch.autograd.grad(expected, logits)
    assert torch.allclose(one, other, rtol=0, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_seen_items_are_those_up_to_each_of_the_last_positions(
    row: list[int], data: st.DataObject
) -> None:
    steps = data.draw(st.integers(1, len(row)))
    found = SeenItems.up_to(torch.tensor([row, row[::-1]]), steps).before(slice(None))
    assert found.shape == (2, steps, len(row))
    for items, before in zip([row, row[::-1]], found.tolist(), strict=True):
        for step in range(steps):
            count = len(row) - steps + 1 + step
            assert before[step] == items[:count] + [0] * (len(row) - count)


@pytest.mark.parametrize("kind", ["dot product", "target attention"])
@pytest.mark.parametrize("rows_per_chunk", [1, 2, 100])
@pytest.mark.parametrize("before", [0, 3])
def test_chunks_change_nothing(kind: str, rows_per_chunk: int, before: int) -> None:
    """The chunked loss and its gradients equal those of all rows at once, for both heads; also if
    more items were seen than there are positions with targets."""
    torch.manual_seed(0)
    batch, length, items, dim = 5, 7, 11, 6
    head: DotProductHead | TargetAttentionHead = DotProductHead()
    if kind == "target attention":
        head = TargetAttentionHead(
            dim, 4, [2.0, 9.0], kv_source="items", pooling="average", dropout=0.0
        )
        torch.nn.init.normal_(head.value_query.weight)
    head = head.double()
    states = torch.randn(batch, length, dim, dtype=torch.float64, requires_grad=True)
    memory = torch.randn(batch, length, dim, dtype=torch.float64, requires_grad=True)
    table = torch.randn(items + 1, dim, dtype=torch.float64, requires_grad=True)
    seen = torch.randint(1, items + 1, (batch, before + length))
    targets = torch.randint(0, items + 1, (batch, length))
    sides = head.represent_history(states, memory), head.represent_candidates(table)
    count = int((targets > 0).sum())
    logits = head.logits(*sides)
    earlier = SeenItems.up_to(seen, length)
    full = cross_entropy(logits, targets, earlier.before(slice(None))) / count
    chunked = chunked_cross_entropy(
        head.logits,
        *sides,
        targets,
        earlier,
        chunk_rows=rows_per_chunk,
    )
    assert chunked.item() == pytest.approx(full.item(), rel=1e-6)
    leaves = [states, table, *head.parameters()]
    if kind == "target attention":
        leaves.append(memory)
    ours = torch.autograd.grad(chunked, leaves, retain_graph=True)
    theirs = torch.autograd.grad(full, leaves)
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one, other, rtol=1e-6, atol=1e-7)


def test_seen_items_can_stay_in_the_softmax() -> None:
    """Under `seen: allow` nothing but PAD is excluded."""
    torch.manual_seed(0)
    states, table = torch.randn(2, 3, 4), torch.randn(6, 4)
    targets = torch.randint(1, 6, (2, 3))
    head = DotProductHead()
    found = chunked_cross_entropy(head.logits, (states,), (table,), targets, None)
    logits = (states @ table.T)[..., 1:]
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten() - 1)
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("options", [None, torch.nn.LinearCrossEntropyOptions()])
def test_chunks_equal_linear_cross_entropy_of_torch(
    options: torch.nn.LinearCrossEntropyOptions | None,
) -> None:
    """Where no items are excluded, values and gradients; torch has no row for PAD."""
    torch.manual_seed(0)
    states = torch.randn(7, 5, 8, dtype=torch.float64, requires_grad=True)
    table = torch.randn(31, 8, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 31, (7, 5))
    ours = chunked_cross_entropy(
        DotProductHead().logits,
        (states,),
        (table,),
        targets,
        None,
        chunk_rows=2,
    )
    theirs = F.linear_cross_entropy(
        states.flatten(0, 1),
        table[1:],
        targets.flatten() - 1,
        ignore_index=-1,
        options=options,
    )
    torch.testing.assert_close(ours.double(), theirs)
    for mine, expected in zip(
        torch.autograd.grad(ours, (states, table)),
        torch.autograd.grad(theirs, (states, table)),
        strict=True,
    ):
        torch.testing.assert_close(mine, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", ["dot product", "target attention"])
def test_a_gpu_has_the_gradients_of_the_cpu(kind: str) -> None:
    """In float32 to its rounding, in bf16 to that of bf16: large logits would overflow float16."""
    torch.manual_seed(0)
    head: DotProductHead | TargetAttentionHead = DotProductHead()
    if kind == "target attention":
        head = TargetAttentionHead(
            16, 8, [2.0, 8.0], kv_source="items", pooling="average", dropout=0.0
        )
        torch.nn.init.normal_(head.value_query.weight, std=0.2)
    states, table = torch.randn(6, 20, 16), torch.randn(50, 16)
    targets = torch.randint(1, 50, (6, 20))

    def gradients(device: str, *, bf16: bool) -> list[torch.Tensor]:
        head.to(device)
        sides = [side.to(device).requires_grad_() for side in (states, table)]
        with torch.autocast(device, torch.bfloat16, enabled=bf16):
            loss = chunked_cross_entropy(
                head.logits,
                head.represent_history(sides[0], sides[0]),
                head.represent_candidates(sides[1]),
                targets.to(device),
                None,
                chunk_rows=4,
            )
        return [gradient.cpu() for gradient in torch.autograd.grad(loss, sides)]

    exact = gradients("cpu", bf16=False)
    for bf16, tolerance in ((False, 1e-3), (True, 5e-2)):
        for found, expected in zip(gradients("cuda", bf16=bf16), exact, strict=True):
            assert (found - expected).norm() <= tolerance * expected.norm()
