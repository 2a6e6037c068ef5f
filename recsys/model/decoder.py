"""The decoder: what is written so far and the encoder's memory in, hidden states out."""

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
class Memory:
    """What the encoder hands to the decoder."""

    states: Tensor
    """Hidden states [B, S, D]."""
    lengths: Tensor
    """How many of them are real [B]."""

    @property
    def mask(self) -> Tensor:
        """Which states may be seen, [B, 1, 1, S]."""
        return padding_mask(self.lengths, self.states.shape[1])[:, None, None]


@dataclass(slots=True)
class DecoderCache:
    """All that writing the next token needs of those before."""

    blocks: list[BlockCache]
    memory_mask: Tensor
    length: int = 0
    """Tokens written so far."""

    def select(self, parents: Tensor) -> None:
        """See `BlockCache.select`."""
        for block in self.blocks:
            block.select(parents)


class Decoder(nn.Module):
    """Positions, dropout, a stack of blocks, a last norm. Positions count from the first token.

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762

    Args:
        positions: position numbers [n] to vectors [n, D].
        blocks: the stack.
        embedding_dim: D.
        dropout: of the sum of tokens and positions.
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

    def forward(self, embedded: Tensor, memory: Memory) -> Tensor:
        """Hidden states [B, n, D] of embedded tokens [B, n, D]; each sees those up to itself."""
        steps = torch.arange(embedded.shape[1], device=embedded.device)
        x, mask = self.dropout(embedded + self.positions(steps)), memory.mask
        for block in self.blocks:
            x = block(x, memory.states, mask)
        return self.norm(x)  # type: ignore[no-any-return]

    def start(self, memory: Memory) -> DecoderCache:
        """The cache before the first token, of one hypothesis for each user."""
        return DecoderCache([block.start(memory.states) for block in self._stack], memory.mask)

    def step(self, embedded: Tensor, cache: DecoderCache) -> Tensor:
        """`forward` for the next token of each hypothesis alone, [B, W, D] to [B, W, D]."""
        step = torch.tensor(cache.length, device=embedded.device)
        x = self.dropout(embedded + self.positions(step))
        for block, block_cache in zip(self._stack, cache.blocks, strict=True):
            x = block.step(x, block_cache, cache.memory_mask)
        cache.length += 1
        return self.norm(x)  # type: ignore[no-any-return]

    @property
    def _stack(self) -> Iterable[DecoderBlock]:
        return cast("Iterable[DecoderBlock]", self.blocks)
