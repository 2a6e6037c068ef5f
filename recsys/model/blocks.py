"""Transformer blocks: self-attention, then a position-wise feed-forward network."""

from __future__ import annotations

from torch import Tensor, nn

from recsys.model.attention import MultiHeadAttention
from recsys.model.dropout import Dropout


def feed_forward(embedding_dim: int, hidden_dim: int) -> nn.Sequential:
    """Two linear maps with a GELU between them, applied at each position."""
    return nn.Sequential(
        nn.Linear(embedding_dim, hidden_dim), nn.GELU(), nn.Linear(hidden_dim, embedding_dim)
    )


class PreNormBlock(nn.Module):
    """x + attention(norm(x)), then x + feed_forward(norm(x)).

    Source: Xiong et al. 2020, https://arxiv.org/abs/2002.04745
    """

    def __init__(
        self, embedding_dim: int, num_heads: int, feed_forward_dim: int, dropout: float
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(embedding_dim)
        self.attention = MultiHeadAttention(embedding_dim, num_heads)
        self.feed_forward_norm = nn.LayerNorm(embedding_dim)
        self.feed_forward = feed_forward(embedding_dim, feed_forward_dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] to [B, L, D]; each position sees itself and what came before."""
        x = x + self.dropout(self.attention(self.attention_norm(x)))
        return x + self.dropout(self.feed_forward(self.feed_forward_norm(x)))  # type: ignore[no-any-return]


class PostNormBlock(nn.Module):
    """norm(x + attention(x)), then norm(x + feed_forward(x)).

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self, embedding_dim: int, num_heads: int, feed_forward_dim: int, dropout: float
    ) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(embedding_dim, num_heads)
        self.attention_norm = nn.LayerNorm(embedding_dim)
        self.feed_forward = feed_forward(embedding_dim, feed_forward_dim)
        self.feed_forward_norm = nn.LayerNorm(embedding_dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] to [B, L, D]; each position sees itself and what came before."""
        x = self.attention_norm(x + self.dropout(self.attention(x)))
        return self.feed_forward_norm(x + self.dropout(self.feed_forward(x)))  # type: ignore[no-any-return]
