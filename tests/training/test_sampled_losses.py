"""Losses of sampled negatives: by hand, against plain formulas and the full catalogue."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.config.experiment import (
    BinaryCrossEntropy,
    CrossEntropy,
    GeneralisedBinaryCrossEntropy,
    LossConfig,
    SampledLossConfig,
    SampledSoftmax,
    TrainingConfig,
)
from recsys.config.model import DotProduct, NextItemConfig, TargetAttention
from recsys.model.build import build_model
from recsys.model.models import Model, ModelInputs
from recsys.training.losses import (
    NO_NEGATIVE,
    binary_cross_entropy,
    draw_negatives,
    mask_negatives,
    mean_loss,
    sampled_softmax,
)
from recsys.training.module import Schedule, TrainingModule
from tests.helpers.random_models import drawn

ITEMS = 11
"""As many interactions of each item as its token."""
HEADS: list[DotProduct | TargetAttention] = [DotProduct(), TargetAttention(num_heads=2, head_dim=4)]
# The last sequence is padded, and items repeat.
INPUTS = ModelInputs(
    torch.tensor([[3, 7, 3, 9, 1], [2, 2, 8, 11, 5], [4, 6, 1, 0, 0]]), torch.tensor([5, 5, 3])
)
TARGETS = torch.tensor([[7, 3, 9, 1, 10], [2, 8, 11, 5, 4], [6, 1, 2, 0, 0]])


def make_model(head: DotProduct | TargetAttention) -> Model:
    torch.manual_seed(5)
    config = NextItemConfig(embedding_dim=8, feed_forward_dim=16, head=head, dropout=0)
    return drawn(build_model(config, ITEMS), 0.3).double()


def plain_softmax(target: Tensor, negatives: Tensor) -> Tensor:
    return torch.cat([target[..., None], negatives], -1).logsumexp(-1) - target


def plain_binary(target: Tensor, negatives: Tensor) -> Tensor:
    wrong = F.softplus(negatives).sum(-1)
    return (0.3 * F.softplus(-target) + wrong) / (1 + (negatives > NO_NEGATIVE).sum(-1))


@pytest.mark.parametrize(
    ("loss", "plain"),
    [
        (sampled_softmax, plain_softmax),
        (partial(binary_cross_entropy, target_weight=0.3), plain_binary),
    ],
)
def test_the_gradients_are_those_of_autograd(
    loss: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]],
    plain: Callable[[Tensor, Tensor], Tensor],
) -> None:
    """At one position with all negatives masked, too, and at ones with extreme logits."""
    generator = torch.Generator().manual_seed(1)
    target = 3 * torch.randn(4, 6, dtype=torch.float64, generator=generator)
    negatives = 3 * torch.randn(4, 6, 8, dtype=torch.float64, generator=generator)
    negatives[..., 3], negatives[0, 0] = NO_NEGATIVE, NO_NEGATIVE
    target[1, :2] = torch.tensor([300.0, -300.0])
    leaves = target.requires_grad_(), negatives.clone().requires_grad_()
    wanted = plain(*leaves)
    gradients = torch.autograd.grad(wanted.sum(), leaves)
    losses, of_target = loss(target.detach(), negatives)
    torch.testing.assert_close(losses, wanted.detach())
    torch.testing.assert_close((of_target, negatives), gradients)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("exclude_seen", [True, False])
def test_all_items_as_negatives_give_full_cross_entropy(
    head: DotProduct | TargetAttention, exclude_seen: bool
) -> None:
    model = make_model(head)
    sampled = SampledSoftmax(kind="sampled_softmax", num_negatives=ITEMS)
    found = []
    for config in (CrossEntropy(), sampled):
        history, seen = model.teacher_forced(INPUTS, TARGETS)
        value = mean_loss(config, model, history, TARGETS, seen if exclude_seen else None)
        gradients = torch.autograd.grad(
            value, list(model.parameters()), allow_unused=True, materialize_grads=True
        )
        found.append((value, gradients))
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-7, check_dtype=False)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "config",
    [
        SampledSoftmax(kind="sampled_softmax", num_negatives=4),
        BinaryCrossEntropy(kind="bce", num_negatives=4),
        GeneralisedBinaryCrossEntropy(kind="gbce", num_negatives=4),
        GeneralisedBinaryCrossEntropy(kind="gbce", num_negatives=4, calibration=0),
    ],
)
def test_the_loss_equals_the_plain_formula_at_each_position(
    config: SampledLossConfig, head: DotProduct | TargetAttention
) -> None:
    model = make_model(head)
    history, seen = model.teacher_forced(INPUTS, TARGETS)
    torch.manual_seed(1)
    found = mean_loss(config, model, history, TARGETS, seen)
    torch.manual_seed(1)
    negatives = draw_negatives(4, ITEMS, TARGETS.device)
    scores = model.head.logits(history, model.head.represent_candidates(model.items.weight))
    losses = []
    for b in range(3):
        for t in range(int(INPUTS.lengths[b])):
            target, before = int(TARGETS[b, t]), set(INPUTS.items[b, : t + 1].tolist())
            counts = [n != target and n not in before for n in negatives.tolist()]
            right, wrong = scores[b, t, target], scores[b, t, negatives[counts]]
            if isinstance(config, SampledSoftmax):
                denominator = right.exp() + (wrong - math.log(4 / ITEMS)).exp().sum()
                losses.append(denominator.log() - right)
                continue
            weight = 1.0
            if isinstance(config, GeneralisedBinaryCrossEntropy):
                weight = 1 - config.calibration * (1 - 4 / (ITEMS - 1))
            parts = [-weight * F.logsigmoid(right), *(-F.logsigmoid(-wrong))]
            losses.append(torch.stack(parts).mean())
    assert found.item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


def test_negatives_are_equally_likely() -> None:
    torch.manual_seed(0)
    device = torch.device("cpu")
    counts = torch.bincount(draw_negatives(9_999, 10_000, device), minlength=10_001)
    assert (counts[0].item(), counts.sum().item()) == (0, 9_999)
    assert counts.count_nonzero().item() == pytest.approx(10_000 * (1 - math.exp(-1)), rel=0.05)
    assert draw_negatives(7, 5, device).tolist() == [1, 2, 3, 4, 5]


def test_repeated_negatives_and_more_seen_items_than_positions() -> None:
    candidates = torch.tensor([5, 9, 5, 1])
    targets = torch.tensor([[9, 2]])
    seen = torch.tensor([[4, 5, 1]])  # before target 0: 4, 5; before target 1: 1 too
    expected = [[[True, True, True, False], [True, False, True, True]]]
    assert masked(candidates, targets, seen) == expected
    alone = [[[False, True, False, False], [False, False, False, False]]]
    assert masked(candidates, targets, None) == alone
    twice = torch.tensor([[5, 4, 5]])  # from its first place on
    assert masked(candidates, targets, twice) == [
        [[True, True, True, False], [True, False, True, False]]
    ]


def masked(items: Tensor, targets: Tensor, seen: Tensor | None) -> list[list[list[bool]]]:
    logits = torch.zeros(*targets.shape, len(items))
    mask_negatives(logits, items, targets, seen)
    return (logits == NO_NEGATIVE).tolist()


def test_only_rows_that_are_read_have_a_gradient() -> None:
    model = make_model(HEADS[0])
    config = SampledSoftmax(kind="sampled_softmax", num_negatives=2)
    TrainingModule(model, TrainingConfig(loss=config), Schedule(1, 1, 1), exclude_seen=False)
    history, seen = model.teacher_forced(
        ModelInputs(INPUTS.items[:1], INPUTS.lengths[:1]), TARGETS[:1]
    )
    mean_loss(config, model, history, TARGETS[:1], seen).backward()
    gradient = model.items.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    rows = set(gradient.coalesce().indices()[0].tolist())
    assert {3, 7, 9, 1, 10} <= rows
    assert len(rows - {3, 7, 9, 1, 10}) <= 2


@pytest.mark.parametrize(
    "config", [CrossEntropy(), SampledSoftmax(kind="sampled_softmax", num_negatives=4)]
)
def test_a_step_without_targets_costs_nothing_and_teaches_nothing(config: LossConfig) -> None:
    model, nothing = make_model(DotProduct()), torch.zeros_like(TARGETS)
    history, seen = model.teacher_forced(INPUTS, nothing)
    loss = mean_loss(config, model, history, nothing, seen)
    assert loss.item() == 0
    loss.backward()
    assert all(weight.grad is None or not weight.grad.any() for weight in model.parameters())
