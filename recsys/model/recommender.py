"""The model: item embedding, encoder, head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recsys.config import DotProduct, ModelConfig
from recsys.model.blocks import PostNormBlock, PreNormBlock
from recsys.model.encoder import Encoder
from recsys.model.heads import DotProductHead, HistorySide, TargetAttentionHead
from recsys.model.positions import LearnedPositions, SinusoidalPositions


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


def build_model(config: ModelConfig, num_items: int) -> SequenceRecommender:
    """A freshly initialised model; seed torch before calling."""
    dim = config.embedding_dim
    kind = {"learned": LearnedPositions, "sinusoidal": SinusoidalPositions}[config.positions]
    block = {"pre": PreNormBlock, "post": PostNormBlock}[config.norm]
    blocks = [
        block(dim, config.num_heads, config.feed_forward_dim, config.dropout)
        for _ in range(config.num_blocks)
    ]
    encoder = Encoder(kind(config.max_sequence_length, dim), blocks, dim, config.dropout)
    head: DotProductHead | TargetAttentionHead
    if isinstance(config.head, DotProduct):
        head = DotProductHead()
    else:
        shortest, longest = config.head.half_life
        steps = max(config.head.num_heads - 1, 1)
        half_lives = [
            shortest * (longest / shortest) ** (step / steps)
            for step in range(config.head.num_heads)
        ]
        head = TargetAttentionHead(
            dim,
            config.head.head_dim,
            half_lives,
            from_states=config.head.memory == "states",
            dropout=config.dropout,
        )
    return SequenceRecommender(num_items, dim, encoder, head)
