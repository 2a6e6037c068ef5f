"""The models: item embedding, encoder and head; and how a config becomes one."""

from __future__ import annotations

import math
from typing import overload

import torch
from torch import Tensor, nn

from recsys.config import (
    DotProduct,
    FactorisationMachineConfig,
    MaskedItemConfig,
    ModelConfig,
    NextItemConfig,
    SequenceToSequenceConfig,
    TransformerConfig,
)
from recsys.model.blocks import BlockSettings, DecoderBlock, EncoderBlock, PostNorm, PreNorm
from recsys.model.decoder import Decoder
from recsys.model.encoder import Encoder
from recsys.model.factorisation import FactorisationMachine
from recsys.model.heads import DotProductHead, HistorySide, TargetAttentionHead
from recsys.model.masked import MaskedRecommender
from recsys.model.positions import LearnedPositions, SinusoidalPositions
from recsys.model.sequence_to_sequence import SequenceToSequence


class SequenceRecommender(nn.Module):
    """Item tokens in; what the head needs to score candidates out.

    Row 0 of the item embedding is PAD: it stays zero and is never a candidate worth scoring.
    """

    def __init__(
        self,
        num_items: int,
        embedding_dim: int,
        encoder: Encoder,
        head: DotProductHead | TargetAttentionHead,
    ) -> None:
        super().__init__()
        self.num_items = num_items
        self.items = nn.Embedding(num_items + 1, embedding_dim, padding_idx=0)
        self.encoder = encoder
        self.head = head
        nn.init.normal_(self.items.weight, std=0.02)
        with torch.no_grad():
            self.items.weight[0] = 0

    def forward(self, items: Tensor, lengths: Tensor) -> HistorySide:
        """The history side of the head, from right-padded item tokens [B, L] and lengths [B]."""
        embedded = self.items(items) * math.sqrt(self.items.embedding_dim)
        return self.head.history_side(self.encoder(embedded, lengths), embedded)

    def teacher_forced(
        self, items: Tensor, lengths: Tensor, targets: Tensor
    ) -> tuple[HistorySide, Tensor]:
        """What is foretold of the targets [B, L] that follow each of the items [B, L].

        Returns:
            The history side; and item tokens [B, L] whose first 1 + t were had before target t.
        """
        return self(items, lengths), items


Model = SequenceRecommender | MaskedRecommender | SequenceToSequence | FactorisationMachine
"""What can be trained. All have item embeddings and a head, turn histories into what the head needs
(`forward`), and targets too where they are known (`teacher_forced`)."""


@overload
def build_model(config: NextItemConfig, num_items: int) -> SequenceRecommender: ...
@overload
def build_model(config: MaskedItemConfig, num_items: int) -> MaskedRecommender: ...
@overload
def build_model(config: SequenceToSequenceConfig, num_items: int) -> SequenceToSequence: ...
@overload
def build_model(config: FactorisationMachineConfig, num_items: int) -> FactorisationMachine: ...
@overload
def build_model(config: ModelConfig, num_items: int) -> Model: ...


def build_model(config: ModelConfig, num_items: int) -> Model:
    """A freshly initialised model; seed torch before calling."""
    dim = config.embedding_dim
    if isinstance(config, FactorisationMachineConfig):
        return FactorisationMachine(num_items, dim, config.dropout)
    if isinstance(config, SequenceToSequenceConfig):
        settings, longest = _block_settings(config), config.max_generated
        encoder = _encoder(config, config.num_encoder_blocks, causal=False)
        blocks = [DecoderBlock(settings) for _ in range(config.num_decoder_blocks)]
        decoder = Decoder(_positions(config, longest), blocks, dim, config.dropout)
        return SequenceToSequence(num_items, dim, encoder, decoder, longest)
    if isinstance(config, MaskedItemConfig):
        encoder = _encoder(config, config.num_blocks, causal=False, appended=1)
        return MaskedRecommender(num_items, dim, encoder)
    encoder = _encoder(config, config.num_blocks, causal=True)
    return SequenceRecommender(num_items, dim, encoder, _head(config))


def _block_settings(config: TransformerConfig) -> BlockSettings:
    return BlockSettings(
        config.embedding_dim,
        config.num_heads,
        config.feed_forward_dim,
        config.dropout,
        norm=PreNorm if config.norm == "pre" else PostNorm,
        activation=nn.GELU if config.activation == "gelu" else nn.ReLU,
        wide_heads=config.wide_heads,
    )


def _positions(config: TransformerConfig, longest: int) -> nn.Module:
    kind = {"learned": LearnedPositions, "sinusoidal": SinusoidalPositions}[config.positions]
    return kind(longest, config.embedding_dim)


def _encoder(
    config: TransformerConfig, num_blocks: int, *, causal: bool, appended: int = 0
) -> Encoder:
    settings = _block_settings(config)
    blocks = [EncoderBlock(settings) for _ in range(num_blocks)]
    positions = _positions(config, config.max_sequence_length + appended)
    return Encoder(positions, blocks, config.embedding_dim, config.dropout, causal=causal)


def _head(config: NextItemConfig) -> DotProductHead | TargetAttentionHead:
    if isinstance(config.head, DotProduct):
        return DotProductHead()
    shortest, longest = config.head.half_life
    steps = max(config.head.num_heads - 1, 1)
    half_lives = [
        shortest * (longest / shortest) ** (step / steps) for step in range(config.head.num_heads)
    ]
    return TargetAttentionHead(
        config.embedding_dim,
        config.head.head_dim,
        half_lives,
        from_states=config.head.memory == "states",
        dropout=config.dropout,
    )
