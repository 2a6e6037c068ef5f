"""Attention: plain, scaled, additive and multi-head; masks; rotary positions.

A mask is True where a key may be seen.
"""

import math
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

_MOST_SEQUENCES = 65_535
"""A limit of torch's fused kernels on a GPU: https://github.com/pytorch/pytorch/issues/142228"""
_GPU_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""Not cuDNN's, which torch prefers on an H100: it builds a plan for each shape, and hardly two
batches have the same (https://github.com/meta-pytorch/torchtune/issues/1652)."""


KeysValues = tuple[Tensor, Tensor]
"""[B, H, K, d] each."""


def causal_mask(length: int, device: torch.device | None = None) -> Tensor:
    """The mask of the keys that each query may see, [L, L].

    >>> causal_mask(3).int()
    tensor([[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


def padding_mask(lengths: Tensor, width: int) -> Tensor:
    """The mask of the real tokens of a right-padded batch, [B, width], from lengths [B].

    >>> padding_mask(torch.tensor([2, 0]), 3).int()
    tensor([[1, 1, 0],
            [0, 0, 0]], dtype=torch.int32)
    """
    return torch.arange(width, device=lengths.device) < lengths[:, None]


def last_states(states: Tensor, lengths: Tensor) -> Tensor:
    """The hidden state at each history's last item, [B, D], from [B, L, D] and lengths [B] ≥ 1."""
    return states[torch.arange(len(lengths), device=lengths.device), lengths - 1]


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """[..., L, H · d] to [..., H, L, d]."""
    heads: Tensor = x.unflatten(-1, (num_heads, -1))
    return heads.transpose(-2, -3)


def attention_weights(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale · query · keyᵀ) over the keys that may be seen, [..., Q, K].

    The mask is broadcastable; a query that may see no key gets weights of 0. If causal, each query
    sees only the keys up to its own position (Q = K). The scale is 1/√d if None.

    Source: Vaswani et al. 2017, equation 1, https://arxiv.org/abs/1706.03762
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query * scale @ key.transpose(-1, -2)
    if causal:
        # Every query sees at least itself, so adding -inf is safe; and cheaper than filling.
        hidden = torch.zeros(query.shape[-2], key.shape[-2], dtype=query.dtype, device=query.device)
        future = ~causal_mask(query.shape[-2], query.device)
        scores = scores + hidden.masked_fill_(future, -torch.inf)
    return _masked_softmax(scores, mask)


def _masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.softmax(scores, dim=-1)
    # A large negative number in place of -inf: a row without any allowed key stays finite.
    weights = torch.softmax(scores.masked_fill(~mask, torch.finfo(scores.dtype).min), dim=-1)
    return weights.masked_fill(~mask, 0)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The sum of the values [..., K, e], weighted by `attention_weights`: [..., Q, e].

    The fused kernel of torch does it, except for training on a CPU, where its backward pass took
    twice as long as the plain formula, and for more sequences than it takes on a GPU.
    """
    is_cpu = query.device.type == "cpu"
    if torch.is_grad_enabled() if is_cpu else len(query) > _MOST_SEQUENCES:
        return attention_weights(query, key, mask, causal=causal, scale=scale) @ value
    if causal and mask is not None:
        mask, causal = mask & causal_mask(query.shape[-2], query.device), False
    with nullcontext() if is_cpu else sdpa_kernel(_GPU_KERNELS):
        return F.scaled_dot_product_attention(
            query, key, value, mask, is_causal=causal, scale=scale
        )


class AdditiveAttention(nn.Module):
    """score(q, k) = v · tanh(W_q q + W_k k): a small network in place of the dot product.

    Source: Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473, appendix A.1.2
    """

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int) -> None:
        super().__init__()
        self.query = nn.Linear(query_dim, hidden_dim, bias=False)
        self.key = nn.Linear(key_dim, hidden_dim)
        self.score = nn.Linear(hidden_dim, 1, bias=False)

    def weights(self, query: Tensor, key: Tensor, mask: Tensor | None = None) -> Tensor:
        """[..., Q, K] from queries [..., Q, query_dim] and keys [..., K, key_dim]."""
        hidden = torch.tanh(self.query(query)[..., :, None, :] + self.key(key)[..., None, :, :])
        return _masked_softmax(self.score(hidden).squeeze(-1), mask)


class RotaryPositions(nn.Module):
    """Rotates features 2i and 2i + 1 at position p by p / 10000^(2i/d).

    The product of a rotated query and a rotated key depends on the two vectors and their distance
    only. Source: Su et al. 2021 (RoFormer), https://arxiv.org/abs/2104.09864
    """

    cosines: Tensor
    sines: Tensor

    def __init__(self, max_length: int, width: int) -> None:
        super().__init__()
        angle = position_angles(max_length, width)
        self.register_buffer("cosines", angle.cos().float(), persistent=False)
        self.register_buffer("sines", angle.sin().float(), persistent=False)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """Rotate [..., L, d] by positions 0 to L - 1, or the one query of rows by these [B]."""
        index = slice(x.shape[-2]) if positions is None else positions[:, None, None]
        rotations = torch.complex(self.cosines[index], self.sines[index])
        # As complex numbers, in full precision: 5.1 ms; 18 with the four products written out.
        pairs = torch.view_as_complex(x.to(self.cosines.dtype).unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * rotations).flatten(-2).to(x.dtype)


def position_angles(max_length: int, width: int) -> Tensor:
    """Angles p / 10000^(2i/width) of positions p and pairs i, float64 [max_length, width / 2]."""
    even = torch.arange(0, width, 2, dtype=torch.float64)
    position = torch.arange(max_length, dtype=torch.float64)[:, None]
    return position * torch.exp(even * (-math.log(10_000.0) / width))


class MultiHeadAttention(nn.Module):
    """Attention in H heads of D / H features each, whose outputs are joined by a linear map.

    Without a context it is self-attention, with one cross-attention. ``rotary`` rotates queries and
    keys by their positions, if both are of the same sequence.

    Source: Vaswani et al. 2017, section 3.2.2, https://arxiv.org/abs/1706.03762
    """

    def __init__(
        self, embedding_dim: int, num_heads: int, *, rotary: RotaryPositions | None = None
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.query_key_value = nn.Linear(embedding_dim, 3 * embedding_dim)
        self.output = nn.Linear(embedding_dim, embedding_dim)
        self.rotary = rotary

    def forward(
        self,
        x: Tensor,
        context: Tensor | KeysValues | None = None,
        mask: Tensor | None = None,
        query_positions: Tensor | None = None,
        *,
        causal: bool = False,
        past: list[Tensor] | None = None,
    ) -> Tensor:
        """Attend from x [B, Q, D] to a context [B, K, D], its keys and values, or x itself.

        Args:
            x: the source of the queries.
            context: the source of keys and values, or these; x itself if None.
            mask: broadcastable to [B, H, Q, K].
            query_positions: the position of the one query of each row in the context [B]. Only with
                these are the keys of a context rotated: nothing in another sequence is near or far.
            causal: whether each position sees only those up to itself.
            past: keys and values of positions before x, to which those of x are appended.
        """
        if context is None:
            query, key, value = self._heads(x, slice(None), 3)
        else:
            query = self.queries(x)
            key, value = self.keys_values(context) if isinstance(context, Tensor) else context
        if self.rotary is not None and (context is None or query_positions is not None):
            query, key = self.rotary(query, query_positions), self.rotary(key)
        if past is not None:
            if past:
                key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
            past[:] = key, value
        attended = attend(query, key, value, mask, causal=causal)
        return self.output(attended.transpose(1, 2).flatten(2))

    def queries(self, x: Tensor) -> Tensor:
        """[B, Q, D] to [B, H, Q, d]."""
        return self._heads(x, slice(x.shape[-1]), 1)[0]

    def keys_values(self, context: Tensor) -> KeysValues:
        """[B, K, D] to keys and values."""
        key, value = self._heads(context, slice(context.shape[-1], None), 2)
        return key, value

    def _heads(self, x: Tensor, rows: slice, count: int) -> list[Tensor]:
        weight, bias = self.query_key_value.weight[rows], self.query_key_value.bias[rows]
        sides = F.linear(x, weight, bias).chunk(count, dim=-1)
        return [split_heads(side, self.num_heads) for side in sides]
