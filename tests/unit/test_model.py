"""The encoder and the whole model: causality, padding invariance, parity, learnability."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.config import DotProduct, ModelConfig, TargetAttention
from recsys.model.attention import (
    MultiHeadAttention,
    attend,
    attention_weights,
    causal_attention,
    causal_mask,
)
from recsys.model.dropout import Dropout
from recsys.model.positions import SinusoidalPositions
from recsys.model.recommender import SequenceRecommender, build_model

Norm = Literal["pre", "post"]
HEADS = [
    DotProduct(),
    TargetAttention(num_heads=2, head_dim=4),
    TargetAttention(num_heads=1, head_dim=4, memory="states"),
]


def make_model(head: DotProduct | TargetAttention, norm: Norm = "pre") -> SequenceRecommender:
    torch.manual_seed(1)
    config = ModelConfig(
        embedding_dim=8, feed_forward_dim=16, max_sequence_length=12, head=head, norm=norm
    )
    model = build_model(config, num_items=20).double().eval()
    for weight in model.parameters():  # past the zero initialisation of the head
        nn.init.normal_(weight, std=0.3)
    with torch.no_grad():
        model.items.weight[0] = 0
    return model


def newest_scores(model: SequenceRecommender, items: Tensor, lengths: Tensor) -> Tensor:
    candidates = model.head.candidate_side(model.items.weight)
    return model.head.newest(model(items, lengths), candidates, lengths)


@pytest.mark.parametrize("head", HEADS)
@settings(max_examples=15, deadline=None)
@given(length=st.integers(1, 6), extra=st.integers(1, 6), seed=st.integers(0, 999))
def test_padding_and_company_change_nothing(
    head: DotProduct | TargetAttention, length: int, extra: int, seed: int
) -> None:
    model = make_model(head)
    torch.manual_seed(seed)
    items = torch.randint(1, 21, (1, length))
    alone = newest_scores(model, items, torch.tensor([length]))
    padded = F.pad(items, (0, extra))
    other = torch.randint(1, 21, (1, length + extra))
    both, lengths = torch.cat([other, padded]), torch.tensor([length + extra, length])
    together = newest_scores(model, both, lengths)
    assert torch.allclose(together[1], alone[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("head", HEADS)
def test_the_future_changes_nothing(head: DotProduct | TargetAttention, norm: Norm) -> None:
    model = make_model(head, norm)
    items = torch.randint(1, 21, (3, 9))
    lengths = torch.full((3,), 9)
    candidates = model.head.candidate_side(model.items.weight)
    before = model.head.logits(model(items, lengths), candidates)
    changed = items.clone()
    changed[:, 6:] = torch.randint(1, 21, (3, 3))
    after = model.head.logits(model(changed, lengths), candidates)
    assert torch.allclose(before[:, :6], after[:, :6], rtol=0, atol=1e-12)
    assert not torch.allclose(before[:, 6:], after[:, 6:])


def test_attention_equals_torch_in_both_of_its_ways() -> None:
    query, key, value = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    mask = torch.rand(2, 1, 1, 5) > 0.3
    mask[..., 0] = True
    expected = F.scaled_dot_product_attention(query, key, value, mask & causal_mask(5))
    assert torch.allclose(attend(query, key, value, mask & causal_mask(5)), expected, atol=1e-12)
    plain = causal_attention(query, key, value)
    with torch.no_grad():
        fused = causal_attention(query, key, value)
    assert torch.allclose(plain, fused, atol=1e-12)
    assert torch.allclose(plain, attend(query, key, value, causal_mask(5)), atol=1e-12)
    assert not attention_weights(query, key, torch.zeros(5, 5, dtype=torch.bool)).any()


def test_multi_head_attention_equals_torch() -> None:
    ours = MultiHeadAttention(8, 2).double()
    theirs = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        theirs.in_proj_weight.copy_(ours.query_key_value.weight)
        theirs.in_proj_bias.copy_(ours.query_key_value.bias)
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.out_proj.bias.copy_(ours.output.bias)
    x = torch.randn(3, 7, 8, dtype=torch.float64)
    expected, _ = theirs(x, x, x, attn_mask=~causal_mask(7), need_weights=False)
    assert torch.allclose(ours(x), expected, atol=1e-10)


def test_sinusoidal_positions_by_hand() -> None:
    table = SinusoidalPositions(5, 4)
    found = table(torch.tensor([3]), 3)  # positions count from the newest item: 2, 1, 0
    for row, position in enumerate((2, 1, 0)):
        expected = [
            math.sin(position),
            math.cos(position),
            math.sin(position / 100),
            math.cos(position / 100),
        ]
        assert found[0, row].tolist() == pytest.approx(expected, abs=1e-6)


def test_dropout_keeps_its_share_and_its_mean() -> None:
    torch.manual_seed(0)
    dropout = Dropout(0.25)
    x = torch.ones(400, 501, requires_grad=True)
    y = dropout(x)
    assert (y == 0).double().mean().item() == pytest.approx(0.25, abs=0.005)
    assert y.mean().item() == pytest.approx(1, abs=0.01)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(gradient, y.detach())
    assert dropout.eval()(x) is x
    with pytest.raises(ValueError, match="dropout"):
        Dropout(1.0)


def test_heads_must_divide_the_embedding() -> None:
    with pytest.raises(ValueError, match="3 does not divide 8"):
        MultiHeadAttention(8, 3)
