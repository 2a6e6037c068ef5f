"""Gated blocks and rotary positions, and the properties of every block and position."""

from __future__ import annotations

import math
from functools import cache
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.config import (
    DotProduct,
    HSTUConfig,
    NextItemConfig,
    TransformerConfig,
    parse_experiment,
)
from recsys.errors import InputError
from recsys.model.attention import MultiHeadAttention, RotaryPositions, last_states
from recsys.model.build import build_model
from recsys.model.embeddings import NoPositions
from recsys.model.encoder import BlockSettings, CausalFilter, EncoderBlock
from recsys.model.models import ModelInputs, NextItemModel


def choices(name: str) -> tuple[str, ...]:
    return get_args(TransformerConfig.model_fields[name].annotation)


def next_item(**given: Any) -> NextItemConfig:
    small = {"embedding_dim": 8, "feed_forward_dim": 12, "max_sequence_length": 12}
    return NextItemConfig.model_validate({**small, "head": DotProduct(), **given})


def hstu(**given: Any) -> HSTUConfig:
    small = {"kind": "hstu", "embedding_dim": 8, "max_sequence_length": 12}
    return HSTUConfig.model_validate({**small, **given})


CONFIGS: list[NextItemConfig | HSTUConfig] = [
    *(
        next_item(**{name: choice})
        for name in ("norm", "activation", "positions")
        for choice in choices(name)
    ),
    next_item(norm="gated", activation="swiglu", positions="rotary"),
    next_item(norm="post", filter=True),
    next_item(norm="gated", activation="swiglu", positions="rotary", filter=True),
    next_item(positions="none", filter=True),
    hstu(times="none"),
    hstu(times="past"),
    hstu(times="request"),
]


def differences(config: NextItemConfig | HSTUConfig) -> str:
    """The settings of a config that differ from the defaults, as a test id."""
    return " ".join(
        str(getattr(config, name))
        for name in ("kind", "norm", "activation", "positions", "times", "filter")
        if name in config.model_fields_set
    )


@cache
def make(config: NextItemConfig | HSTUConfig) -> NextItemModel:
    """A model in float64, with weights so large that no effect is lost in rounding."""
    torch.manual_seed(1)
    model = build_model(config, num_items=20).double().eval()
    for weight in model.parameters():
        nn.init.normal_(weight, std=0.4)
    with torch.no_grad():
        model.items.weight[0] = 0
    return model


def histories(rows: int, length: int) -> tuple[Tensor, Tensor]:
    """Items [rows, length], and ascending times [rows, length + 1]."""
    return torch.randint(1, 21, (rows, length)), torch.randint(0, 5_000, (rows, length + 1)).cumsum(
        1
    )


@pytest.mark.parametrize("config", CONFIGS, ids=differences)
@settings(max_examples=10, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 999))
def test_padding_and_other_rows_change_no_state(
    config: NextItemConfig | HSTUConfig, length: int, extra: int, seed: int
) -> None:
    model = make(config)
    torch.manual_seed(seed)
    items, times = histories(2, length + extra)
    lengths = torch.tensor([length + extra, length])
    items[1, length:] = 0
    batch, *_ = model(ModelInputs(items, lengths, times))
    single, *_ = model(ModelInputs(items[1:, :length], lengths[1:], times[1:, : length + 1]))
    assert torch.allclose(batch[1, :length], single[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("config", CONFIGS, ids=differences)
@settings(max_examples=10, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=4), st.integers(0, 999))
def test_encode_last_is_the_last_state_of_the_full_pass(
    config: NextItemConfig | HSTUConfig, lengths: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    items, times = histories(len(lengths), max(lengths))
    for model in (make(config), make(config.model_copy(update={"num_blocks": 0}))):
        inputs = ModelInputs(items, torch.tensor(lengths), times)
        (full, *_), (last, *_) = model(inputs), model.encode_last(inputs)
        expected = last_states(full, torch.tensor(lengths))
        assert torch.allclose(last, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("config", CONFIGS, ids=differences)
@settings(max_examples=10, deadline=None)
@given(st.integers(2, 9), st.integers(0, 999), st.data())
def test_the_future_changes_no_earlier_state(
    config: NextItemConfig | HSTUConfig, length: int, seed: int, data: st.DataObject
) -> None:
    """Neither its items nor its times: scoring at t reads the times up to there."""
    model = make(config)
    torch.manual_seed(seed)
    now = data.draw(st.integers(0, length - 2))
    items, times = histories(3, length)
    lengths = torch.full((3,), length)
    before, *_ = model(ModelInputs(items, lengths, times))
    later_items, later_times = items.clone(), times.clone()
    later_items[:, now + 1 :] = torch.randint(1, 21, (3, length - now - 1))
    readable = now + 1 if isinstance(config, HSTUConfig) and config.times == "request" else now
    later_times[:, readable + 1 :] += torch.randint(1, 10**6, (3, length - readable))
    after, *_ = model(ModelInputs(later_items, lengths, later_times))
    assert torch.allclose(before[:, : now + 1], after[:, : now + 1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("config", CONFIGS, ids=differences)
def test_every_earlier_item_reaches_the_last_state_and_every_weight_learns(
    config: NextItemConfig | HSTUConfig,
) -> None:
    model = make(config)
    torch.manual_seed(3)
    items, times = histories(4, 6)
    lengths = torch.full((4,), 6)
    states, *_ = model(ModelInputs(items, lengths, times))
    for place in range(6):
        changed = items.clone()
        changed[:, place] = changed[:, place] % 20 + 1
        other, *_ = model(ModelInputs(changed, lengths, times))
        assert ((other - states)[:, -1].abs().amax(dim=1) > 1e-6).all(), place
    (states * torch.randn_like(states)).sum().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().max() > 1e-9, name


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("positions", choices("positions"))
def test_order_matters_but_without_positions_only_by_causality(heads: int, positions: str) -> None:
    """One block without positions: the last state reads the earlier items as a bag."""
    model = make(next_item(num_blocks=1, num_heads=heads, positions=positions))
    one, other = torch.tensor([[3, 5, 7, 9]]), torch.tensor([[7, 3, 5, 9]])
    lengths = torch.tensor([4])
    (first, *_), (second, *_) = model(ModelInputs(one, lengths)), model(ModelInputs(other, lengths))
    difference = (first - second)[0, -1].abs().max().item()
    assert (difference < 1e-12) == (positions == "none")


# The published forms.


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 30), st.integers(1, 40), st.integers(0, 999))
def test_the_filter_by_its_formula(window: int, length: int, seed: int) -> None:
    torch.manual_seed(seed)
    causal_filter = CausalFilter(3, window).double()
    x, beta = torch.randn(2, length, 3, dtype=torch.float64), causal_filter.beta.detach()
    for now in range(length):
        low = torch.zeros(2, 3, dtype=torch.float64)
        for ago in range(min(window // 2, now) + 1):
            angle = 2 * math.pi * ago / window
            weight = (1 + 2 * math.cos(angle) + 2 * math.cos(2 * angle)) / window
            low += weight * x[:, now - ago]
        expected = low + beta**2 * (x[:, now] - low)
        torch.testing.assert_close(causal_filter(x)[:, now], expected, rtol=0, atol=1e-6)


def test_a_block_mixes_the_normed_filter_and_the_normed_attention() -> None:
    torch.manual_seed(0)
    common = BlockSettings(8, 2, 12, 0.0, norm="post", filtered=True)
    block, x = EncoderBlock(common).double(), torch.randn(2, 5, 8, dtype=torch.float64)
    assert block.filter is not None
    attended = F.layer_norm(x + block.attention(x, causal=True), (8,))
    filtered = F.layer_norm(x + block.filter(x), (8,))
    mixed = 0.7 * filtered + 0.3 * attended
    expected = F.layer_norm(mixed + block.feed_forward(mixed), (8,))
    torch.testing.assert_close(block(x, causal=True), expected, rtol=0, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**16), st.sampled_from([1, 2, 3]), st.integers(1, 6))
def test_the_gated_block_is_that_of_esasrec(seed: int, heads: int, length: int) -> None:
    """x + sigmoid(W x) ⊙ sublayer(norm(x)): torch's attention, then a SwiGLU network."""
    torch.manual_seed(seed)
    dim, wide = 6, 10
    common = BlockSettings(dim, heads, wide, 0.0, norm="gated", activation="swiglu")
    block = EncoderBlock(common).double()
    for weight in block.parameters():
        nn.init.normal_(weight, std=0.5)
    attention = nn.MultiheadAttention(dim, heads, batch_first=True, dtype=torch.float64)
    ours = block.attention.state_dict()
    names = {"in_proj_": "query_key_value.", "out_proj.": "output."}
    attention.load_state_dict(
        {
            theirs: ours[name]
            for theirs in attention.state_dict()
            for part, own in names.items()
            if (name := theirs.replace(part, own)) in ours
        }
    )
    x = torch.randn(2, length, dim, dtype=torch.float64)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    part = {name: dict(module.named_parameters()) for name, module in block.named_children()}
    norm, gate = part["attention_norm"], torch.sigmoid
    y = F.layer_norm(x, (dim,), norm["weight"], norm["bias"])
    attended, _ = attention(y, y, y, attn_mask=future)
    x1 = x + gate(x @ norm["gate.weight"].T + norm["gate.bias"]) * attended
    norm, network = part["feed_forward_norm"], part["feed_forward"]
    y = F.layer_norm(x1, (dim,), norm["weight"], norm["bias"])
    swish, linear = (y @ network["gate_input.weight"].T).split(wide, dim=-1)
    hidden = swish * torch.sigmoid(swish) * linear
    expected = x1 + gate(x1 @ norm["gate.weight"].T + norm["gate.bias"]) * (
        hidden @ network["output.weight"].T
    )
    assert torch.allclose(block(x, causal=True), expected, rtol=0, atol=1e-10)
    assert set(network) == {"gate_input.weight", "output.weight"}  # no biases


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5), st.integers(1, 20), st.data())
def test_rotary_positions_by_the_published_matrix(
    half: int, length: int, data: st.DataObject
) -> None:
    """R_p x: features 2i, 2i + 1 as a complex number, times exp(i p / 10000^(2i/d))."""
    place = data.draw(st.integers(0, length - 1))
    torch.manual_seed(length)
    x = torch.randn(2, length, 2 * half, dtype=torch.float64)
    found = RotaryPositions(20, 2 * half).double()(x)
    for row in range(2):
        for pair in range(half):
            number = complex(*x[row, place, 2 * pair : 2 * pair + 2].tolist())
            angle = place / 10_000 ** (2 * pair / (2 * half))
            turned = number * complex(math.cos(angle), math.sin(angle))
            expected = pytest.approx([turned.real, turned.imag], abs=1e-6)
            assert found[row, place, 2 * pair : 2 * pair + 2].tolist() == expected


def test_rotary_attention_depends_on_distances_only() -> None:
    """The same items three positions later have the same weights among them."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(8, 2, rotary=RotaryPositions(12, 4)).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    far = torch.cat([torch.randn(1, 3, 8, dtype=torch.float64), x], dim=1)
    near, shifted = layer.weights(x), layer.weights(far)[:, :, 3:, 3:]
    shifted = shifted / shifted.sum(dim=-1, keepdim=True)
    assert torch.allclose(near, shifted, rtol=0, atol=1e-6)
    attended = layer.weights(x, causal=True) @ layer.keys_values(x)[1]  # values do not turn
    assert torch.allclose(layer(x, causal=True), layer.join(attended), rtol=0, atol=1e-12)
    with torch.no_grad():  # the fused kernel
        assert torch.allclose(layer(x, causal=True), layer.join(attended), rtol=0, atol=1e-12)
    plain = MultiHeadAttention(8, 2).double()
    plain.load_state_dict(layer.state_dict())  # rotary positions have nothing to store
    assert not torch.allclose(near, plain.weights(x), rtol=0, atol=1e-3)


def test_rotary_positions_rotate_pairs() -> None:
    with pytest.raises(ValueError, match="3 is odd"):
        RotaryPositions(5, 3)
    narrow = {"embedding_dim": 6, "num_heads": 2, "positions": "rotary"}
    with pytest.raises(InputError, match=r"model.positions: .*heads have 3"):
        parse_experiment({"model": narrow})
    with pytest.raises(InputError, match=r"model.positions: .*'learned' or 'sinusoidal'"):
        parse_experiment({"model": {"kind": "sequence_to_sequence", "positions": "rotary"}})


def test_no_positions_add_nothing() -> None:
    x = torch.randn(2, 3, 4, dtype=torch.bfloat16)
    assert torch.equal(x + NoPositions()(torch.zeros(2, 3, dtype=torch.long)), x)
