"""The Transformer encoder: blocks of attention and feed-forward network, with residuals around."""

import math
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.config.model import NextItemConfig, TransformerConfig
from recsys.model.attention import MultiHeadAttention, RotaryPositions, last_states, padding_mask
from recsys.model.embeddings import positions_from_end

TimesRead = Literal["none", "past", "request"]
"""Which times a model reads: none; the age of each interaction when the latest one happened
(past); or its age at the time of the request (request)."""

_LEVELS = 256  # of a byte


class Dropout(nn.Module):
    """`nn.Dropout` from random bytes, in a fifth of the time; probabilities in steps of 1/256."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self._dropped = min(round(probability * _LEVELS), _LEVELS - 1)

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share of the elements and scale up the rest, in training only; any shape."""
        if not self.training or self._dropped == 0:
            return x
        words = torch.empty(-(-x.numel() // 8), dtype=torch.int64, device=x.device)
        levels = words.random_(-(2**63), None).view(torch.int8)[: x.numel()].view(x.shape)
        mask = torch.empty_like(x, requires_grad=False)
        torch.ge(levels, self._dropped - _LEVELS // 2, out=mask)
        return x * mask.mul_(_LEVELS / (_LEVELS - self._dropped))


class Residual(nn.LayerNorm):
    """A residual around a sub-layer f, with a norm and dropout.

    - pre: x + dropout(f(norm(x))). Xiong et al. 2020, https://arxiv.org/abs/2002.04745
    - post: norm(x + dropout(f(x))). Vaswani et al. 2017, https://arxiv.org/abs/1706.03762
    - gated: x + sigmoid(W x + b) ⊙ dropout(f(norm(x))). Borisyuk et al. 2025 (LiGR),
      https://arxiv.org/abs/2502.03417; Tikhonovich et al. 2025 (eSASRec),
      https://arxiv.org/abs/2508.06450
    """

    def __init__(
        self, embedding_dim: int, dropout: float, norm: Literal["pre", "post", "gated"] = "pre"
    ) -> None:
        super().__init__(embedding_dim)
        self.is_post = norm == "post"
        self.dropout = Dropout(dropout)
        self.gate = nn.Linear(embedding_dim, embedding_dim) if norm == "gated" else None

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:  # type: ignore[override]
        added = self.dropout(sublayer(self.inside(x)))
        if self.gate is not None:
            added = torch.sigmoid(self.gate(x)) * added
        return super().forward(x + added) if self.is_post else x + added

    def inside(self, x: Tensor) -> Tensor:
        """The input of the sub-layer: norm(x), or x itself."""
        return x if self.is_post else super().forward(x)


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
        gate, hidden = self.gate_input(x).chunk(2, dim=-1)
        return self.output(self.dropout(F.silu(gate) * hidden))


class CausalFilter(nn.Module):
    """Weighs the slow and the fast changes of a sequence: low + β² ⊙ (x - low), β learned.

    low_t = Σ_k w(k) x_{t-k} with w(k) = (1 + 2 cos(2πk/n) + 2 cos(4πk/n)) / n for k ≤ n/2: the
    three lowest frequencies of a window of n items, of which only the past is read.

    Source: Shin et al. 2024 (BSARec), https://arxiv.org/abs/2312.10325, whose filter wraps around.
    """

    weights: Tensor

    def __init__(self, embedding_dim: int, window: int = 20) -> None:
        super().__init__()
        angles = 2 * math.pi / window * torch.arange(window // 2 + 1, device="cpu")
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


def feed_forward(config: TransformerConfig) -> nn.Module:
    """Make the feed-forward network of a block."""
    dim, width = config.embedding_dim, config.feed_forward_dim
    if config.activation == "swiglu":
        return SwiGLU(dim, width, config.dropout)
    activation = nn.GELU() if config.activation == "gelu" else nn.ReLU()
    return nn.Sequential(nn.Linear(dim, width), activation, nn.Linear(width, dim))


class EncoderBlock(nn.Module):
    """Self-attention, perhaps with a causal filter beside it, then the feed-forward network.

    Attention and filter have residuals of their own, whose weighted mean goes on.
    """

    filter_weight = 0.7

    def __init__(self, config: TransformerConfig, rotary: RotaryPositions | None = None) -> None:
        super().__init__()
        dim, residual = config.embedding_dim, (config.embedding_dim, config.dropout, config.norm)
        self.filter: CausalFilter | None = None
        if isinstance(config, NextItemConfig) and config.filter:
            self.filter_norm = Residual(*residual)
            self.filter = CausalFilter(dim)
        self.attention_norm = Residual(*residual)
        self.attention = MultiHeadAttention(dim, config.num_heads, rotary=rotary)
        self.feed_forward_norm = Residual(*residual)
        self.feed_forward = feed_forward(config)

    def forward(self, x: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        """[B, L, D] to [B, L, D]; mask and causal: see `MultiHeadAttention.forward`."""
        mixed = self.attention_norm(x, lambda x: self.attention(x, mask=mask, causal=causal))
        if self.filter is not None:
            mixed = mixed.lerp(self.filter_norm(x, self.filter), self.filter_weight)
        return self.feed_forward_norm(mixed, self.feed_forward)

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
        return self.feed_forward_norm(mixed, self.feed_forward)[:, 0]


class Encoder(nn.Module):
    """Positions, dropout, a stack of blocks, a last norm (as in `torch.nn.Transformer`).

    Positions count from the end. In a causal encoder each sees only the items up to itself.

    Source: Kang and McAuley 2018 (SASRec, causal), https://arxiv.org/abs/1808.09781
    """

    def __init__(
        self,
        positions: nn.Module | None,
        blocks: Iterable[nn.Module],
        embedding_dim: int,
        dropout: float,
        *,
        causal: bool = True,
        times: TimesRead = "none",
    ) -> None:
        super().__init__()
        self.positions = positions
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(embedding_dim)
        self.dropout = Dropout(dropout)
        self.causal, self.times = causal, times

    def forward(self, embedded: Tensor, lengths: Tensor, times: Tensor | None = None) -> Tensor:
        """Hidden states [B, L, D] of item embeddings [B, L, D] with the given lengths [B].

        Times are ignored; `HSTUEncoder` reads them. States on padding have no meaning.
        """
        return self.norm(self._through(self.blocks, embedded, lengths))

    def encode_last(self, embedded: Tensor, lengths: Tensor, times: Tensor | None = None) -> Tensor:
        """`forward` at the last item of each sequence only, [B, D], with less of the last block."""
        last = self.blocks[-1] if len(self.blocks) else None
        if not isinstance(last, EncoderBlock):  # such as that of HSTU
            return last_states(self(embedded, lengths, times), lengths)
        x = self._through(self.blocks[:-1], embedded, lengths)
        return self.norm(last.encode_last(x, lengths))

    def _placed(self, embedded: Tensor, lengths: Tensor) -> Tensor:
        if self.positions is not None:
            embedded = embedded + self.positions(positions_from_end(lengths, embedded.shape[1]))
        return self.dropout(embedded)

    def _through(self, blocks: nn.ModuleList, embedded: Tensor, lengths: Tensor) -> Tensor:
        x = self._placed(embedded, lengths)
        # Sequences are right-padded: the causal mask alone keeps tokens from seeing padding.
        mask = None if self.causal else padding_mask(lengths, embedded.shape[1])[:, None, None]
        for block in blocks:
            x = block(x, mask, causal=self.causal)
        return x
