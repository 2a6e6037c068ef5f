"""The encoder's parts by their published formulas; the stacks are torch's Transformer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.config.files import parse_experiment
from recsys.config.model import NextItemConfig, SequenceToSequenceConfig
from recsys.model.attention import (
    MultiHeadAttention,
    RotaryPositions,
    attention_weights,
    causal_mask,
    padding_mask,
)
from recsys.model.build import build_model
from recsys.model.embeddings import SinusoidalPositions
from recsys.model.encoder import CausalFilter, Dropout, Encoder, EncoderBlock
from recsys.model.models import ModelInputs
from recsys.model.sequence_to_sequence import Decoder, DecoderBlock, EncodedHistory
from tests.helpers.random_models import drawn

DIM, FEED_FORWARD = 6, 10


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


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 199), st.integers(1, 33), st.data())
def test_both_published_formulas(position: int, dim: int, data: st.DataObject) -> None:
    """PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i + 1) = cos(p / 10000^(2i/D)), D odd or even."""
    feature = data.draw(st.integers(0, dim - 1))
    angle = position / 10_000 ** (2 * (feature // 2) / dim)
    found = SinusoidalPositions(200, dim)(torch.tensor([position]))[0, feature]
    assert found.item() == pytest.approx([math.sin, math.cos][feature % 2](angle), abs=1e-6)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("positions", ["learned", "sinusoidal", "rotary", "none"])
def test_order_matters_but_without_positions_only_by_causality(heads: int, positions: str) -> None:
    """One block without positions: the last state reads the earlier items as a bag."""
    sizes = {"embedding_dim": 8, "num_blocks": 1, "num_heads": heads, "positions": positions}
    config = parse_experiment({"model": {**sizes, "head": {"kind": "dot_product"}}}).model
    torch.manual_seed(1)
    model = drawn(build_model(config, 20).double().eval(), 0.4)
    items, lengths = torch.tensor([[3, 5, 7, 9], [7, 3, 5, 9]]), torch.tensor([4, 4])
    first, second = model(ModelInputs(items, lengths)).states[:, -1]
    assert ((first - second).abs().max() < 1e-12) == (positions == "none")


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
    config = NextItemConfig(
        embedding_dim=8, feed_forward_dim=12, dropout=0, norm="post", filter=True
    )
    block, x = EncoderBlock(config).double(), torch.randn(2, 5, 8, dtype=torch.float64)
    assert block.filter is not None
    attended = F.layer_norm(x + block.attention(x, causal=True), (8,))
    filtered = F.layer_norm(x + block.filter(x), (8,))
    mixed = 0.7 * filtered + 0.3 * attended
    expected = F.layer_norm(mixed + block.feed_forward(mixed), (8,))
    torch.testing.assert_close(block(x, causal=True), expected, rtol=0, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**16), st.sampled_from([1, 2, 3]), st.integers(1, 6))
def test_the_gated_block_is_that_of_esasrec(seed: int, heads: int, length: int) -> None:
    """x + sigmoid(W x) ⊙ sublayer(norm(x)): attention, then a SwiGLU network without biases."""
    torch.manual_seed(seed)
    dim, wide = 6, 10
    config = NextItemConfig(
        embedding_dim=dim,
        num_heads=heads,
        feed_forward_dim=wide,
        dropout=0,
        norm="gated",
        activation="swiglu",
    )
    block = drawn(EncoderBlock(config).double())
    first, second = (
        dict(module.named_parameters())
        for module in (block.attention_norm, block.feed_forward_norm)
    )
    network = dict(block.feed_forward.named_parameters())
    assert set(network) == {"gate_input.weight", "output.weight"}

    def gated(x: Tensor, norm: Mapping[str, Tensor], added: Tensor) -> Tensor:
        return x + torch.sigmoid(x @ norm["gate.weight"].T + norm["gate.bias"]) * added

    x = torch.randn(2, length, dim, dtype=torch.float64)
    normed = F.layer_norm(x, (dim,), first["weight"], first["bias"])
    mixed = gated(x, first, block.attention(normed, causal=True))
    normed = F.layer_norm(mixed, (dim,), second["weight"], second["bias"])
    swish, linear = (normed @ network["gate_input.weight"].T).split(wide, dim=-1)
    hidden = swish * torch.sigmoid(swish) * linear
    expected = gated(mixed, second, hidden @ network["output.weight"].T)
    assert close(block(x, causal=True), expected)


@settings(max_examples=25, deadline=None)
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
    torch.manual_seed(0)
    turned = RotaryPositions(12, 4).double()
    layer = MultiHeadAttention(8, 2, rotary=turned).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    far = torch.cat([torch.randn(1, 3, 8, dtype=torch.float64), x], dim=1)
    query, (key, value) = layer.queries(x), layer.keys_values(x)
    near = attention_weights(turned(query), turned(key))
    shifted = attention_weights(turned(layer.queries(far)), turned(layer.keys_values(far)[0]))
    shifted = shifted[:, :, 3:, 3:]
    shifted = shifted / shifted.sum(dim=-1, keepdim=True)
    assert torch.allclose(near, shifted, rtol=0, atol=1e-6)
    # Values do not turn.
    attended = attention_weights(turned(query), turned(key), causal=True) @ value
    joined = layer.output(attended.transpose(1, 2).flatten(2))
    assert torch.allclose(layer(x, causal=True), joined, rtol=0, atol=1e-12)
    with torch.no_grad():  # the fused kernel
        assert torch.allclose(layer(x, causal=True), joined, rtol=0, atol=1e-12)
    plain = MultiHeadAttention(8, 2).double()
    plain.load_state_dict(layer.state_dict())  # rotary positions have nothing to store
    assert not torch.allclose(layer(x), plain(x), rtol=0, atol=1e-3)


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-10)


def torch_name(ours: str) -> str:
    last_norm = "norm2" if ours.startswith("encoder") else "norm3"
    for name, theirs in {
        ".blocks.": ".layers.",
        ".attention.": ".self_attn.",
        ".cross_attention.": ".multihead_attn.",
        "query_key_value.": "in_proj_",
        ".output.": ".out_proj.",
        "feed_forward.0": "linear1",
        "feed_forward.2": "linear2",
        "attention_norm": "norm1",
        "cross_norm": "norm2",
        "feed_forward_norm": last_norm,
    }.items():
        ours = ours.replace(name, theirs)
    return ours


def twins(
    norm: Literal["pre", "post"], activation: Literal["gelu", "relu"], heads: int, layers: int
) -> tuple[nn.ModuleDict, nn.Transformer]:
    config = SequenceToSequenceConfig(
        kind="sequence_to_sequence",
        embedding_dim=DIM,
        num_heads=heads,
        feed_forward_dim=FEED_FORWARD,
        dropout=0,
        norm=norm,
        activation=activation,
    )
    encoder_blocks = [EncoderBlock(config) for _ in range(layers)]
    decoder_blocks = [DecoderBlock(config) for _ in range(layers)]
    encoder = Encoder(None, encoder_blocks, DIM, 0.0, causal=False)
    decoder = Decoder(None, decoder_blocks, DIM, 0.0)
    ours = drawn(nn.ModuleDict({"encoder": encoder, "decoder": decoder}).double())
    theirs = nn.Transformer(
        *(DIM, heads, layers, layers, FEED_FORWARD),
        dropout=0.0,
        activation=activation,
        batch_first=True,
        norm_first=norm == "pre",
        dtype=torch.float64,
    )
    theirs.load_state_dict({torch_name(name): w for name, w in ours.state_dict().items()})
    return ours, theirs


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("activation", ["gelu", "relu"])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    heads=st.sampled_from([1, 2, 3]),
    layers=st.integers(1, 2),
    histories=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    generated=st.integers(1, 6),
)
def test_the_transformer_equals_torch(
    norm: Literal["pre", "post"],
    activation: Literal["gelu", "relu"],
    seed: int,
    heads: int,
    layers: int,
    histories: list[int],
    generated: int,
) -> None:
    torch.manual_seed(seed)
    ours, theirs = twins(norm, activation, heads, layers)
    lengths, width = torch.tensor(histories), max(histories)
    source = torch.randn(len(lengths), width, DIM, dtype=torch.float64, requires_grad=True)
    target = torch.randn(len(lengths), generated, DIM, dtype=torch.float64, requires_grad=True)
    read = padding_mask(lengths, width)
    real_targets = padding_mask(torch.randint(1, generated + 1, lengths.shape), generated)

    encoded = ours["encoder"](source, lengths)
    keys_values = [block.cross_attention.keys_values(encoded) for block in ours["decoder"].blocks]  # type: ignore[union-attr]
    found = ours["decoder"](target, EncodedHistory(keys_values, read[:, None, None]))
    their_encoded = theirs.encoder(source, src_key_padding_mask=~read)
    expected = theirs(
        source,
        target,
        tgt_mask=~causal_mask(generated),
        src_key_padding_mask=~read,
        tgt_key_padding_mask=~real_targets,  # ours needs only causality: right padding
        memory_key_padding_mask=~read,
    )
    assert close(encoded[read], their_encoded[read])
    assert close(found[real_targets], expected[real_targets])

    direction = torch.randn_like(found) * real_targets[:, :, None]
    names, weights = zip(*ours.named_parameters(), strict=True)
    our_gradients = torch.autograd.grad((found * direction).sum(), [source, target, *weights])
    their_weights = [theirs.get_parameter(torch_name(name)) for name in names]
    their_gradients = torch.autograd.grad(
        (expected * direction).sum(), [source, target, *their_weights]
    )
    for name, one, other in zip(
        ["source", "target", *names], our_gradients, their_gradients, strict=True
    ):
        assert close(one, other), name
