"""The decoder: maps generated tokens and an encoded history to hidden states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from recsys.model.attention import padding_mask
from recsys.model.blocks import BlockCache, DecoderBlock
from recsys.model.dropout import Dropout


@dataclass(frozen=True, slots=True)
class EncodedHistory:
    """The encoder's output, which the decoder attends to."""

    states: Tensor
    """Hidden states [B, S, D]."""
    lengths: Tensor
    """The number of real states [B]."""

    @property
    def mask(self) -> Tensor:
        """The mask of the real states, [B, 1, 1, S]."""
        return padding_mask(self.lengths, self.states.shape[1])[:, None, None]


@dataclass(slots=True)
class DecoderCache:
    """Everything about the previous tokens that generating the next one needs."""

    blocks: list[BlockCache]
    encoder_mask: Tensor
    """[B, 1, 1, S]: see `EncodedHistory.mask`."""
    length: int = 0
    """The number of tokens generated so far."""

    def select(self, parents: Tensor) -> None:
        """See `BlockCache.select`."""
        for block in self.blocks:
            block.select(parents)


class Decoder(nn.Module):
    """Positions, dropout, a stack of blocks, a last norm. Positions count from the first token.

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762

    Args:
        positions: maps position numbers [n] to vectors [n, D].
        blocks: the stack.
        embedding_dim: D.
        dropout: of the sum of token embeddings and positions.
    """

    def __init__(
        self,
        positions: nn.Module,
        blocks: Iterable[DecoderBlock],
        embedding_dim: int,
        dropout: float,
    ) -> None:
        super().__init__()
        self.positions = positions
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(embedding_dim)
        self.dropout = Dropout(dropout)

    def forward(self, embedded: Tensor, encoded: EncodedHistory) -> Tensor:
        """Hidden states [B, n, D] of embedded tokens [B, n, D]; each sees those up to itself."""
        steps = torch.arange(embedded.shape[1], device=embedded.device)
        x, mask = self.dropout(embedded + self.positions(steps)), encoded.mask
        for block in self.blocks:
            x = block(x, encoded.states, mask)
        return self.norm(x)  # type: ignore[no-any-return]

    def start(self, encoded: EncodedHistory) -> DecoderCache:
        """The cache before the first token, of one hypothesis for each user."""
        return DecoderCache([block.start(encoded.states) for block in self._stack], encoded.mask)

    def step(self, embedded: Tensor, cache: DecoderCache) -> Tensor:
        """`forward` for the next token of each hypothesis only, [B, W, D] to [B, W, D]."""
        step = torch.tensor(cache.length, device=embedded.device)
        x = self.dropout(embedded + self.positions(step))
        for block, block_cache in zip(self._stack, cache.blocks, strict=True):
            x = block.step(x, block_cache, cache.encoder_mask)
        cache.length += 1
        return self.norm(x)  # type: ignore[no-any-return]

    @property
    def _stack(self) -> Iterable[DecoderBlock]:
        return cast("Iterable[DecoderBlock]", self.blocks)
