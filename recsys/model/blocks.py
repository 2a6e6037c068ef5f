"""Transformer blocks: attention and a feed-forward network, each with a residual around it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.attention import MultiHeadAttention, attend, last_states, padding_mask
from recsys.model.dropout import Dropout
from recsys.model.positions import RotaryPositions


class PreNorm(nn.LayerNorm):
    """A residual around a sub-layer: x + dropout(sublayer(norm(x))).

    Source: Xiong et al. 2020, https://arxiv.org/abs/2002.04745
    """

    def __init__(self, embedding_dim: int, dropout: float) -> None:
        super().__init__(embedding_dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        """[..., D] to [..., D]."""
        return x + self.dropout(sublayer(self.inside(x)))  # type: ignore[no-any-return]

    def inside(self, x: Tensor) -> Tensor:
        """The input of the sub-layer: norm(x)."""
        return super().forward(x)


class PostNorm(nn.LayerNorm):
    """A residual around a sub-layer: norm(x + dropout(sublayer(x))).

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762
    """

    def __init__(self, embedding_dim: int, dropout: float) -> None:
        super().__init__(embedding_dim)
        self.dropout = Dropout(dropout)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        """[..., D] to [..., D]."""
        return super().forward(x + self.dropout(sublayer(self.inside(x))))

    def inside(self, x: Tensor) -> Tensor:
        """The input of the sub-layer: x."""
        return x


class Gated(PreNorm):
    """A gated residual: x + sigmoid(W x + b) ⊙ dropout(sublayer(norm(x))).

    Sources: Borisyuk et al. 2025 (LiGR), https://arxiv.org/abs/2502.03417; Tikhonovich et al. 2025
    (eSASRec), https://arxiv.org/abs/2508.06450
    """

    def __init__(self, embedding_dim: int, dropout: float) -> None:
        super().__init__(embedding_dim, dropout)
        self.gate = nn.Linear(embedding_dim, embedding_dim)

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        """[..., D] to [..., D]."""
        added = self.dropout(sublayer(self.inside(x)))
        return x + torch.sigmoid(self.gate(x)) * added  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    """A feed-forward network with a gate: W_o dropout(silu(W_g x) ⊙ W_i x), without biases.

    Source: Shazeer 2020, https://arxiv.org/abs/2002.05202; the dropout is eSASRec's.
    """

    def __init__(self, embedding_dim: int, feed_forward_dim: int, dropout: float) -> None:
        super().__init__()
        self.gate_input = nn.Linear(embedding_dim, 2 * feed_forward_dim, bias=False)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(feed_forward_dim, embedding_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[..., D] to [..., D]."""
        gate, hidden = self.gate_input(x).chunk(2, dim=-1)
        return self.output(self.dropout(F.silu(gate) * hidden))  # type: ignore[no-any-return]


class CausalFilter(nn.Module):
    """Weighs the slow and the fast changes of a sequence: low + β² ⊙ (x - low), β learned.

    low_t = Σ_k w(k) x_{t-k} with w(k) = (1 + 2 cos(2πk/n) + 2 cos(4πk/n)) / n for k ≤ n/2: the
    three lowest frequencies of a window of n items, of which only the past is read. Items before
    the first count as 0.

    Source: Shin et al. 2024 (BSARec), https://arxiv.org/abs/2312.10325, whose filter wraps around:
    there the first items of a history read the last ones.

    Args:
        embedding_dim: D.
        window: n; the filter reads half of it, and the item itself.
    """

    weights: Tensor

    def __init__(self, embedding_dim: int, window: int = 20) -> None:
        super().__init__()
        angles = 2 * math.pi / window * torch.arange(window // 2 + 1)
        weights = (1 + 2 * angles.cos() + 2 * (2 * angles).cos()) / window
        self.register_buffer("weights", weights, persistent=False)
        self.beta = nn.Parameter(torch.randn(embedding_dim))

    def forward(self, x: Tensor) -> Tensor:
        """[B, L, D] to [B, L, D]; each position reads only those up to itself."""
        steps = torch.arange(x.shape[1], device=x.device)
        distances = steps[:, None] - steps
        weights = F.pad(self.weights, (1, 1))  # 0 for the future and for what is too long ago
        low = weights[(1 + distances).clamp(0, len(weights) - 1)] @ x
        return low + self.beta.square() * (x - low)


@dataclass(frozen=True, slots=True)
class BlockSettings:
    """The settings that all blocks of a stack share."""

    embedding_dim: int
    num_heads: int
    feed_forward_dim: int
    dropout: float
    norm: type[PreNorm | PostNorm] = PreNorm
    activation: type[nn.Module] = nn.GELU
    """The function between the two maps of the feed-forward network; `SwiGLU` replaces them all."""
    rotary: RotaryPositions | None = None
    """Rotates the queries and keys of self-attention; shared, since it learns nothing."""
    filtered: bool = False
    """Whether an encoder block has a `CausalFilter` beside its self-attention."""

    def attention(self) -> MultiHeadAttention:
        """A new attention layer."""
        return MultiHeadAttention(self.embedding_dim, self.num_heads, rotary=self.rotary)

    def feed_forward(self) -> nn.Module:
        """A new network that is applied at each position."""
        if self.activation is SwiGLU:
            return SwiGLU(self.embedding_dim, self.feed_forward_dim, self.dropout)
        return nn.Sequential(
            nn.Linear(self.embedding_dim, self.feed_forward_dim),
            self.activation(),
            nn.Linear(self.feed_forward_dim, self.embedding_dim),
        )

    def residual(self) -> PreNorm | PostNorm:
        """A new residual with its norm."""
        return self.norm(self.embedding_dim, self.dropout)


class EncoderBlock(nn.Module):
    """Self-attention, perhaps with a causal filter beside it, then the feed-forward network.

    Attention and filter have residuals of their own, whose weighted mean goes on.
    """

    filter_weight = 0.7

    def __init__(self, settings: BlockSettings) -> None:
        super().__init__()
        self.filter: CausalFilter | None = None
        if settings.filtered:
            self.filter_norm = settings.residual()
            self.filter = CausalFilter(settings.embedding_dim)
        self.attention_norm = settings.residual()
        self.attention = settings.attention()
        self.feed_forward_norm = settings.residual()
        self.feed_forward = settings.feed_forward()

    def forward(self, x: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        """[B, L, D] to [B, L, D]; mask and causal: see `MultiHeadAttention.forward`."""
        mixed = self.attention_norm(x, lambda x: self.attention(x, mask=mask, causal=causal))
        if self.filter is not None:
            mixed = mixed.lerp(self.filter_norm(x, self.filter), self.filter_weight)
        return self.feed_forward_norm(mixed, self.feed_forward)  # type: ignore[no-any-return]

    def encode_last(self, x: Tensor, lengths: Tensor) -> Tensor:
        """`forward` at the last item of each sequence only, which sees all items: [B, D]."""
        context, mask = self.attention_norm.inside(x), padding_mask(lengths, x.shape[1])
        last = last_states(x, lengths)[:, None]
        mixed = self.attention_norm(
            last, lambda last: self.attention(last, context, mask[:, None, None], lengths - 1)
        )
        if self.filter is not None:
            filtered = last_states(self.filter(self.filter_norm.inside(x)), lengths)[:, None]
            mixed = mixed.lerp(self.filter_norm(last, lambda _: filtered), self.filter_weight)
        return self.feed_forward_norm(mixed, self.feed_forward)[:, 0]  # type: ignore[no-any-return]


@dataclass(slots=True)
class BlockCache:
    """Keys and values that a decoder block need not compute again; W hypotheses for each user."""

    encoder_keys_values: tuple[Tensor, Tensor]
    """Keys and values of the encoder's states, [B, H, S, d] each."""
    generated_keys_values: tuple[Tensor, Tensor]
    """Keys and values of the tokens generated so far, [B, W, H, t, d] each; t grows by one a
    step."""

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append those of the latest tokens [B, W, H, 1, d]; return all keys and values."""
        keys, values = self.generated_keys_values
        keys, values = torch.cat([keys, key], dim=3), torch.cat([values, value], dim=3)
        self.generated_keys_values = keys, values
        return keys, values

    def select(self, parents: Tensor) -> None:
        """Continue from hypotheses given by number [B, W'], some perhaps several times."""
        keys, values = self.generated_keys_values
        rows = torch.arange(len(parents), device=parents.device)[:, None]
        self.generated_keys_values = keys[rows, parents], values[rows, parents]


class DecoderBlock(nn.Module):
    """Causal self-attention, cross-attention to the encoder's states, the feed-forward network.

    Source: Vaswani et al. 2017, section 3.1, https://arxiv.org/abs/1706.03762
    """

    def __init__(self, settings: BlockSettings) -> None:
        super().__init__()
        self.attention_norm = settings.residual()
        self.attention = settings.attention()
        self.cross_norm = settings.residual()
        self.cross_attention = settings.attention()
        self.feed_forward_norm = settings.residual()
        self.feed_forward = settings.feed_forward()

    def forward(self, x: Tensor, encoder_states: Tensor, encoder_mask: Tensor) -> Tensor:
        """[B, n, D] to [B, n, D]; each position sees those up to itself, and the history.

        Args:
            x: the generated tokens, [B, n, D].
            encoder_states: [B, S, D].
            encoder_mask: which of them may be seen, broadcastable to [B, H, n, S].
        """
        x = self.attention_norm(x, lambda x: self.attention(x, causal=True))
        x = self.cross_norm(x, lambda x: self.cross_attention(x, encoder_states, encoder_mask))
        return self.feed_forward_norm(x, self.feed_forward)  # type: ignore[no-any-return]

    def start(self, encoder_states: Tensor) -> BlockCache:
        """The cache before the first token, one hypothesis for each user; states are [B, S, D]."""
        keys, values = self.cross_attention.keys_values(encoder_states)
        nothing = keys[:, None, :, :0]
        return BlockCache((keys, values), (nothing, nothing))

    def step(self, x: Tensor, cache: BlockCache, encoder_mask: Tensor) -> Tensor:
        """`forward` for the latest token of each hypothesis only, [B, W, D] to [B, W, D]."""

        def attend_to_generated(x: Tensor) -> Tensor:
            tokens = x.flatten(0, 1)[:, None]  # each hypothesis is a sequence of its own
            new = (part.unflatten(0, x.shape[:2]) for part in self.attention.keys_values(tokens))
            keys, values = (part.flatten(0, 1) for part in cache.extend(*new))
            attended = attend(self.attention.queries(tokens), keys, values)
            return self.attention.join(attended).view_as(x)

        def attend_to_history(x: Tensor) -> Tensor:  # which all hypotheses share
            queries = self.cross_attention.queries(x)
            attended = attend(queries, *cache.encoder_keys_values, encoder_mask)
            return self.cross_attention.join(attended)

        x = self.cross_norm(self.attention_norm(x, attend_to_generated), attend_to_history)
        return self.feed_forward_norm(x, self.feed_forward)  # type: ignore[no-any-return]
