"""Losses of sampled negatives: by hand, against plain formulas and the full catalogue."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from recsys.config import (
    BinaryCrossEntropy,
    CrossEntropy,
    DotProduct,
    GeneralisedBinaryCrossEntropy,
    NextItemConfig,
    SampledLossConfig,
    SampledSoftmax,
    TargetAttention,
)
from recsys.model.build import build_model
from recsys.model.models import Model, ModelInputs
from recsys.training import module as objectives
from recsys.training.losses import (
    NO_NEGATIVE,
    NegativeSampler,
    SampledLoss,
    binary_cross_entropy,
    mask_negatives,
    sampled_softmax,
)
from recsys.training.module import Objective, use_sparse_gradients

ITEMS = 11
FULL = Objective(CrossEntropy(), torch.ones(ITEMS + 1))
HEADS: list[DotProduct | TargetAttention] = [DotProduct(), TargetAttention(num_heads=2, head_dim=4)]


def make_model(head: DotProduct | TargetAttention) -> Model:
    torch.manual_seed(5)
    config = NextItemConfig(embedding_dim=8, feed_forward_dim=16, head=head, dropout=0)
    model = build_model(config, ITEMS)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    with torch.no_grad():
        model.items.weight[0] = 0
    return model.double()


def make_batch() -> tuple[Tensor, Tensor, Tensor]:
    """Items, lengths and targets; the last sequence is padded, and items repeat."""
    items = torch.tensor([[3, 7, 3, 9, 1], [2, 2, 8, 11, 5], [4, 6, 1, 0, 0]])
    targets = torch.tensor([[7, 3, 9, 1, 10], [2, 8, 11, 5, 4], [6, 1, 2, 0, 0]])
    return items, torch.tensor([5, 5, 3]), targets


def test_sampled_losses_by_hand() -> None:
    """Odds 5 for the target, 1 and 2 for the negatives; the third negative is masked."""
    target, negatives = torch.tensor(5.0).log(), torch.tensor([0.0, math.log(2.0), NO_NEGATIVE])
    losses, _ = sampled_softmax(target, negatives.clone())
    assert losses.item() == pytest.approx(-math.log(5 / 8))
    parts = [math.log(6 / 5), math.log(2), math.log(3)]
    losses, _ = binary_cross_entropy(target, negatives.clone())
    assert losses.item() == pytest.approx(sum(parts) / 3)
    half, _ = binary_cross_entropy(target, negatives, target_weight=0.5)
    assert half.item() == pytest.approx((parts[0] / 2 + parts[1] + parts[2]) / 3)


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
    loss: SampledLoss, plain: Callable[[Tensor, Tensor], Tensor]
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
    model, (items, lengths, targets) = make_model(head), make_batch()
    loss = SampledSoftmax(kind="sampled_softmax", num_negatives=ITEMS)
    found = []
    for objective in (
        FULL,
        Objective(loss, torch.ones(ITEMS + 1)),
    ):
        history, seen = model.teacher_forced(ModelInputs(items, lengths), targets)
        value = objective(model, history, targets, seen if exclude_seen else None)
        weights = [weight for weight in model.parameters() if weight is not model.items.weight]
        gradients = torch.autograd.grad(value, [model.items.weight, *weights], allow_unused=True)
        found.append((value, gradients))
    (one, ours), (other, theirs) = found
    assert one.item() == pytest.approx(other.item(), rel=1e-6)
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-7)


def test_the_last_chunk_has_few_sizes() -> None:
    counts = range(5_000, 20_000)
    padded = [objectives._padded_count(count, 1227) for count in counts]
    assert len({size % 1227 for size in padded}) == 20
    assert all(0 <= size - count < 64 for count, size in zip(counts, padded, strict=True))


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    "config",
    [
        SampledSoftmax(kind="sampled_softmax", num_negatives=4, negatives="popularity"),
        BinaryCrossEntropy(kind="bce", num_negatives=4),
        GeneralisedBinaryCrossEntropy(kind="gbce", num_negatives=4, negatives="in_batch"),
        GeneralisedBinaryCrossEntropy(kind="gbce", num_negatives=4, calibration=0),
    ],
)
def test_the_objective_equals_the_plain_formula_at_each_position(
    config: SampledLossConfig, head: DotProduct | TargetAttention
) -> None:
    model, (items, lengths, targets) = make_model(head), make_batch()
    interactions = torch.arange(ITEMS + 1.0)
    objective = Objective(config, interactions)
    history, seen = model.teacher_forced(ModelInputs(items, lengths), targets)
    torch.manual_seed(1)
    found = objective(model, history, targets, seen)
    torch.manual_seed(1)
    assert objective.negatives is not None
    drawn = objective.negatives(targets)
    scores = model.head.logits(history, model.head.represent_candidates(model.items.weight))
    losses = []
    for b in range(3):
        for t in range(int(lengths[b])):
            target, before = int(targets[b, t]), set(items[b, : t + 1].tolist())
            others = [int(n) for n in drawn.items if int(n) != target and int(n) not in before]
            right, wrong = scores[b, t, target], scores[b, t, others]
            if isinstance(config, SampledSoftmax):
                share = interactions[others] / interactions.sum()
                denominator = right.exp() + (wrong.exp() / (4 * share)).sum()
                losses.append(denominator.log() - right)
                continue
            weight = 1.0
            if isinstance(config, GeneralisedBinaryCrossEntropy):
                weight = 1 - config.calibration * (1 - 4 / (ITEMS - 1))
            parts = [-weight * F.logsigmoid(right), *(-F.logsigmoid(-wrong))]
            losses.append(torch.stack(parts).mean())
    assert found.item() == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


def test_uniform_draws_and_all_of_a_small_catalogue() -> None:
    torch.manual_seed(0)
    targets = make_batch()[2]
    every = NegativeSampler("uniform", torch.ones(ITEMS + 1), 20)(targets)
    assert every.items.tolist() == list(range(1, ITEMS + 1))
    assert not every.log_expected.any()
    counts = torch.zeros(ITEMS + 1)
    for _ in range(3000):
        drawn = NegativeSampler("uniform", torch.ones(ITEMS + 1), 4)(targets)
        counts += torch.bincount(drawn.items, minlength=ITEMS + 1)
    expected = drawn.log_expected[0].exp() * 3000
    assert counts[0] == 0
    torch.testing.assert_close(counts[1:], expected.expand(ITEMS), rtol=0.15, atol=0)


def test_popular_and_in_batch_draws_have_their_expected_frequency() -> None:
    torch.manual_seed(0)
    interactions = torch.tensor([99, 1, 2, 0, 4, 3])
    targets = torch.repeat_interleave(torch.arange(6), interactions)[None]  # PAD is no target
    for kind in ("popularity", "in_batch"):
        sampler = NegativeSampler(kind, interactions, 50)
        counts, expected = torch.zeros(6), torch.zeros(6)
        for _ in range(400):
            drawn = sampler(targets)
            counts += torch.bincount(drawn.items, minlength=6)
            expected[drawn.items] = drawn.log_expected.exp()
        assert counts[[0, 3]].tolist() == [0, 0]
        torch.testing.assert_close(counts / 400, expected, rtol=0.1, atol=0)


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
    model, (items, lengths, targets) = make_model(HEADS[0]), make_batch()
    use_sparse_gradients(model)
    config = SampledSoftmax(kind="sampled_softmax", num_negatives=2)
    objective = Objective(config, torch.ones(ITEMS + 1))
    history, seen = model.teacher_forced(ModelInputs(items[:1], lengths[:1]), targets[:1])
    objective(model, history, targets[:1], seen).backward()
    gradient = model.items.weight.grad
    assert gradient is not None
    assert gradient.is_sparse
    rows = set(gradient.coalesce().indices()[0].tolist())
    assert {3, 7, 9, 1, 10} <= rows
    assert len(rows - {3, 7, 9, 1, 10}) <= 2


@pytest.mark.parametrize("config", [None, SampledSoftmax(kind="sampled_softmax", num_negatives=4)])
def test_a_step_without_targets_costs_nothing_and_teaches_nothing(
    config: SampledSoftmax | None,
) -> None:
    """As of a process that has no row of a batch: no mean of nothing, which is not a number."""
    model, (items, lengths, targets) = make_model(DotProduct()), make_batch()
    objective = FULL
    if config is not None:
        objective = Objective(config, torch.ones(ITEMS + 1))
    nothing = torch.zeros_like(targets)
    history, had = model.teacher_forced(ModelInputs(items, lengths), nothing)
    loss = objective(model, history, nothing, had)
    assert loss.item() == 0
    loss.backward()
    assert all(one.grad is None or not one.grad.any() for one in model.parameters())
