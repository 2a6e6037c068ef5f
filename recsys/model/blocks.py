"""Transformer blocks: attention and a feed-forward network, each with a residual around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from recsys.model.attention import MultiHeadAttention, attend
from recsys.model.dropout import Dropout


class PreNorm(nn.LayerNorm):
    """A residual around a sub-layer: x + dropout(sublayer(norm(x))).

    Source: Xiong et al. 2020, https://arxiv.org/abs/2002.04745
    """

    def __init__(self, embedding_dim: int, dropout: float) -> None:
        super().__init__(embedding_dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        """Any shape [..., D], kept."""
        return x + self.dropout(sublayer(super().forward(x)))  # type: ignore[no-any-return]


class PostNorm(nn.LayerNorm):
    """A residual around a sub-layer: norm(x + dropout(sublayer(x))).

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762
    """

    def __init__(self, embedding_dim: int, dropout: float) -> None:
        super().__init__(embedding_dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        """Any shape [..., D], kept."""
        return super().forward(x + self.dropout(sublayer(x)))


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """What the blocks of a stack have in common."""

    embedding_dim: int
    num_heads: int
    feed_forward_dim: int
    dropout: float
    norm: type[PreNorm | PostNorm] = PreNorm
    activation: type[nn.Module] = nn.GELU
    wide_heads: bool = False

    def attention(self) -> MultiHeadAttention:
        """A fresh attention layer."""
        return MultiHeadAttention(self.embedding_dim, self.num_heads, wide=self.wide_heads)

    def feed_forward(self) -> nn.Sequential:
        """Two linear maps with a non-linearity between them, applied at each position."""
        return nn.Sequential(
            nn.Linear(self.embedding_dim, self.feed_forward_dim),
            self.activation(),
            nn.Linear(self.feed_forward_dim, self.embedding_dim),
        )

    def residual(self) -> PreNorm | PostNorm:
        """A fresh residual with its norm."""
        return self.norm(self.embedding_dim, self.dropout)


class EncoderBlock(nn.Module):
    """Self-attention, then the feed-forward network."""

    def __init__(self, settings: BlockSettings) -> None:
        super().__init__()
        self.attention_norm = settings.residual()
        self.attention = settings.attention()
        self.feed_forward_norm = settings.residual()
        self.feed_forward = settings.feed_forward()

    def forward(self, x: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        """[B, L, D] to [B, L, D]; mask and causal: see `MultiHeadAttention.forward`."""
        x = self.attention_norm(x, lambda x: self.attention(x, mask=mask, causal=causal))
        return self.feed_forward_norm(x, self.feed_forward)  # type: ignore[no-any-return]


@dataclass(slots=True)
class BlockCache:
    """Keys and values that a decoder block need not make again; W hypotheses for each user."""

    memory: tuple[Tensor, Tensor]
    """Of the encoder's states, [B, H, S, d] each."""
    written: tuple[Tensor, Tensor]
    """Of the tokens written so far, [B, W, H, t, d] each; grows by one a step."""

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values with those of the newest tokens [B, W, H, 1, d] behind."""
        keys, values = self.written
        self.written = torch.cat([keys, key], dim=3), torch.cat([values, value], dim=3)
        return self.written

    def select(self, parents: Tensor) -> None:
        """Go on from some of the hypotheses, by number [B, W'], some of them several times."""
        keys, values = self.written
        rows = torch.arange(len(parents), device=parents.device)[:, None]
        self.written = keys[rows, parents], values[rows, parents]


class DecoderBlock(nn.Module):
    """Causal self-attention, attention over the encoder's memory, the feed-forward network.

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762
    """

    def __init__(self, settings: BlockSettings) -> None:
        super().__init__()
        self.attention_norm = settings.residual()
        self.attention = settings.attention()
        self.memory_norm = settings.residual()
        self.memory_attention = settings.attention()
        self.feed_forward_norm = settings.residual()
        self.feed_forward = settings.feed_forward()

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor) -> Tensor:
        """[B, n, D] to [B, n, D]; each position sees itself, what came before, and the memory.

        Args:
            x: what is written, [B, n, D].
            memory: encoder states [B, S, D].
            memory_mask: which of them may be seen, broadcastable to [B, H, n, S].
        """
        x = self.attention_norm(x, lambda x: self.attention(x, causal=True))
        x = self.memory_norm(x, lambda x: self.memory_attention(x, memory, memory_mask))
        return self.feed_forward_norm(x, self.feed_forward)  # type: ignore[no-any-return]

    def start(self, memory: Tensor) -> BlockCache:
        """The cache before the first token, one hypothesis for each user; memory [B, S, D]."""
        keys, values = self.memory_attention.keys_values(memory)
        nothing = keys[:, None, :, :0]
        return BlockCache((keys, values), (nothing, nothing))

    def step(self, x: Tensor, cache: BlockCache, memory_mask: Tensor) -> Tensor:
        """`forward` for the newest token of each hypothesis alone, [B, W, D] to [B, W, D]."""

        def written(x: Tensor) -> Tensor:
            tokens = x.flatten(0, 1)[:, None]  # each hypothesis is a sequence of its own
            new = (part.unflatten(0, x.shape[:2]) for part in self.attention.keys_values(tokens))
            keys, values = (part.flatten(0, 1) for part in cache.extend(*new))
            attended = attend(self.attention.queries(tokens), keys, values)
            return self.attention.join(attended).view_as(x)

        def memory(x: Tensor) -> Tensor:  # which all hypotheses share
            attended = attend(self.memory_attention.queries(x), *cache.memory, memory_mask)
            return self.memory_attention.join(attended)

        x = self.memory_norm(self.attention_norm(x, written), memory)
        return self.feed_forward_norm(x, self.feed_forward)  # type: ignore[no-any-return]
