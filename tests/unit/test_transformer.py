"""The encoder and decoder stacks are torch's own Transformer, given the same weights."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from recsys.config import SequenceToSequenceConfig
from recsys.model.attention import causal_mask, padding_mask
from recsys.model.build import build_model
from recsys.model.encoder import BlockSettings, Encoder, EncoderBlock
from recsys.model.sequence_to_sequence import Decoder, DecoderBlock, EncodedHistory

DIM, FEED_FORWARD = 6, 10


def close(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=0, atol=1e-10)


class NoPositions(nn.Module):
    """torch leaves positions to others."""

    def forward(self, positions: Tensor) -> Tensor:
        return torch.zeros(*positions.shape, DIM, dtype=torch.float64)


def torch_name(ours: str) -> str:
    """The name in `nn.Transformer` of a parameter of our stacks."""
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
    """Our stacks and torch's, with the same random weights."""
    common = BlockSettings(
        DIM,
        heads,
        FEED_FORWARD,
        dropout=0.0,
        norm=norm,
        activation=activation,
    )
    encoder_blocks = [EncoderBlock(common) for _ in range(layers)]
    decoder_blocks = [DecoderBlock(common) for _ in range(layers)]
    encoder = Encoder(NoPositions(), encoder_blocks, DIM, 0.0, causal=False)
    decoder = Decoder(NoPositions(), decoder_blocks, DIM, 0.0)
    ours = nn.ModuleDict({"encoder": encoder, "decoder": decoder}).double()
    for weight in ours.parameters():
        nn.init.normal_(weight, std=0.5)
    theirs = nn.Transformer(
        DIM,
        heads,
        layers,
        layers,
        FEED_FORWARD,
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
    """Encoder states, output, and gradients to both inputs and every parameter, with all masks."""
    torch.manual_seed(seed)
    ours, theirs = twins(norm, activation, heads, layers)
    lengths, width = torch.tensor(histories), max(histories)
    source = torch.randn(len(lengths), width, DIM, dtype=torch.float64, requires_grad=True)
    target = torch.randn(len(lengths), generated, DIM, dtype=torch.float64, requires_grad=True)
    read = padding_mask(lengths, width)
    real_targets = padding_mask(torch.randint(1, generated + 1, lengths.shape), generated)

    encoded = ours["encoder"](source, lengths)
    found = ours["decoder"](target, EncodedHistory(encoded, read[:, None, None]))
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


def test_torch_starts_within_the_same_bounds() -> None:
    torch.manual_seed(0)
    theirs = nn.Transformer(48, 2, 1, 1, 96, batch_first=True)
    config = SequenceToSequenceConfig(
        kind="sequence_to_sequence",
        embedding_dim=48,
        feed_forward_dim=96,
        num_encoder_blocks=1,
        num_decoder_blocks=1,
    )
    ours = build_model(config, num_items=9)
    for name, weight in ours.named_parameters():
        if ".blocks." in name and weight.dim() == 2:
            other = theirs.get_parameter(torch_name(name))
            assert weight.shape == other.shape
            assert weight.abs().max().item() == pytest.approx(other.abs().max().item(), rel=0.02)
