"""HSTU: blocks whose attention weighs each pair separately, by content, distance and time."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.attention import split_heads
from recsys.model.encoder import Dropout, Encoder

NUM_TIME_BUCKETS = 128
_BUCKET_WIDTH = 0.301  # a bucket's gaps are up to e^.301 = 1.35 times its shortest, as published


def time_buckets(gaps: Tensor) -> Tensor:
    """The bucket numbers of time gaps, 0 to 128: ⌊ln(max(gap, 1)) / 0.301⌋; any shape, int32.

    >>> time_buckets(torch.tensor([-5, 0, 1, 2, 60, 3_600, 86_400, 31_536_000])).tolist()
    [0, 0, 0, 2, 13, 27, 37, 57]
    """
    # In place: there are as many gaps as pairs of purchases, and this doubles the speed.
    logarithms = gaps.to(torch.float32).clamp_(min=1).log_().div_(_BUCKET_WIDTH)
    return logarithms.clamp_(max=NUM_TIME_BUCKETS).int()


class HSTUBlock(nn.Module):
    """x + W_o dropout(norm(Σ_{j≤t} silu(q_t · k_j + b(t, j)) v_j / N) ⊙ u), t the position.

    u, v, q and k are silu(W norm(x)), the norms without weights; N is the longest sequence. The
    bias b is the sum of a parameter for the distance t - j and one for the bucket of the time gap;
    heads share it. Without a softmax the effect of many similar items is not averaged out. u
    replaces the feed-forward network.

    Source: Zhai et al. 2024, section 3, https://arxiv.org/abs/2402.17152, and the code published
    with it. ``timed`` says whether there is a bias for time gaps.
    """

    def __init__(
        self, embedding_dim: int, num_heads: int, max_length: int, dropout: float, *, timed: bool
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.max_length = max_length
        self.norm = nn.LayerNorm(embedding_dim, eps=1e-6, elementwise_affine=False)
        self.gate_value_query_key = nn.Linear(embedding_dim, 4 * embedding_dim, bias=False)
        self.position_bias = nn.Parameter(torch.empty(max_length))
        self.time_bias = nn.Parameter(torch.empty(NUM_TIME_BUCKETS + 1)) if timed else None
        self.output = nn.Linear(embedding_dim, embedding_dim)
        self.dropout = Dropout(dropout)
        for weight in (self.gate_value_query_key.weight, self.position_bias, self.time_bias):
            if weight is not None:
                nn.init.normal_(weight, std=0.02)
        nn.init.xavier_uniform_(self.output.weight)

    def forward(self, x: Tensor, buckets: Tensor | None = None) -> Tensor:
        """[B, L, D] to [B, L, D]; ``buckets`` [B, L, L] are those of the times since purchases."""
        projected = F.silu(self.gate_value_query_key(self.norm(x)))
        gate, *sides = projected.chunk(4, dim=-1)
        value, query, key = (split_heads(side, self.num_heads) for side in sides)
        scores = query @ key.mT
        positions = torch.arange(x.shape[1], device=x.device)
        bias = self.position_bias[(positions[:, None] - positions).clamp(min=0)]
        if self.time_bias is not None and buckets is not None:
            bias = bias + _of_buckets(self.time_bias, buckets)[:, None]
        weights = F.silu(scores + bias.to(scores.dtype)).tril()
        attended = weights @ (value / self.max_length)
        joined = self.norm(attended.transpose(1, 2).flatten(2))
        return x + self.output(self.dropout(joined * gate))


def _of_buckets(weight: Tensor, buckets: Tensor) -> Tensor:
    """The numbers of a weight [129] for buckets of any shape.

    On a CPU the backward pass of `index_select` takes a tenth of the time of that of `F.embedding`,
    which sorts first; on a GPU its atomic additions wait for each other.
    """
    if buckets.device.type == "cpu":
        return weight.index_select(0, buckets.flatten()).view_as(buckets)
    return F.embedding(buckets, weight.unsqueeze(-1)).squeeze(-1)


class HSTUEncoder(Encoder):
    """An encoder of `HSTUBlock`s, which are timed unless ``times`` is "none"."""

    def forward(self, embedded: Tensor, lengths: Tensor, times: Tensor | None = None) -> Tensor:
        x, buckets = self._placed(embedded, lengths), self._buckets(times)
        for block in self.blocks:
            x = block(x, buckets)
        return self.norm(x)

    def _buckets(self, times: Tensor | None) -> Tensor | None:
        """The buckets of the age of each item when each position is scored, [B, L, L]."""
        if self.times == "none":
            return None
        if times is None:
            raise ValueError("this model reads times, and there are none")
        item_times = times[:, :-1]
        scoring_times = times[:, 1:] if self.times == "request" else item_times
        return time_buckets(scoring_times[:, :, None] - item_times[:, None, :])
