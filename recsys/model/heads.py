"""Heads: how hidden states and candidates become scores.

A head sees the two sides apart. `history_side` and `candidate_side` are made once for a batch;
`logits` joins them for every position, chunk by chunk in training, and `newest` for the last
position alone, which is all that scoring needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.attention import padding_mask
from recsys.model.decayed_attention import attend_at_all_positions, sequences_together
from recsys.model.dropout import Dropout

HistorySide = tuple[Tensor, ...]
"""Tensors whose first dimension is B, second-last L."""
CandidateSide = tuple[Tensor, ...]
"""Tensors whose second-last dimension is the number of candidates: those of all histories, or with
a first dimension B, of each history its own."""

_LOGITS_AT_ONCE = 1 << 22
"""8 MiB of bf16."""


class DotProductHead(nn.Module):
    """score_t(c) = h_t · e_c."""

    reads_one_position = True
    """A position's scores need nothing of the other positions."""

    def history_side(self, states: Tensor, memory: Tensor) -> HistorySide:
        """From hidden states [B, L, D] and input item embeddings [B, L, D]."""
        return (states,)

    def candidate_side(self, embeddings: Tensor) -> CandidateSide:
        """From embeddings of candidates for all histories [C, D], or for each its own [B, C, D]."""
        return (embeddings,)

    def logits(self, history: HistorySide, candidates: CandidateSide) -> Tensor:
        """Scores [B, L, C] of every candidate at every position, from the items up to there."""
        return history[0] @ candidates[0].T

    def paired(self, history: HistorySide, candidates: CandidateSide) -> Tensor:
        """Scores [B, L] of one candidate at each position, from embeddings [B, L, D]."""
        return (history[0] * candidates[0]).sum(dim=-1)

    def newest(self, history: HistorySide, candidates: CandidateSide, lengths: Tensor) -> Tensor:
        """Scores [B, C] at each history's last item; lengths [B] ≥ 1."""
        return _dot_products(history, candidates, lengths)

    def rows_at_once(self, length: int, candidates: int) -> int:
        """Sequences of some length that training best makes `logits` of at once."""
        return max(1, _LOGITS_AT_ONCE // (length * candidates))

    def numbers_held(self, rows: int, positions: int) -> int:
        """How many numbers `newest` holds for each candidate at once."""
        return rows


class TargetAttentionHead(nn.Module):
    """The candidate is the query, the purchases are keys and values; added to the dot product.

    For candidate c, position t and each attention head, with decay λ:

        w_cj(t) = exp(τ cos(W_q e_c, W_k m_j) - λ (t - j))
        a_t(c) = Σ_{j≤t} w_cj(t) (W_u e_c · W_v m_j) / Σ_{j≤t} w_cj(t)
        score_t(c) = h_t · e_c + Σ_heads a_t(c)

    The query does not depend on t, so at all positions at once the two sums are decayed running
    sums over j of exp(τ cos) and of exp(τ cos) × (W_u e_c · W_v m_j): O(I·L·D), not O(I·L²·D).
    The temperature τ is learned and capped, so nothing overflows. W_u starts at zero: training
    starts from the dot product. Source: DIN, https://arxiv.org/abs/1706.06978, over the encoder's
    memory; the running-sum form is this project's.

    Args:
        half_lives: purchases after which attention halves, one per head: λ = ln 2 / half-life.
        from_states: keys and values from encoder states, instead of item embeddings.
        dropout: of the features of keys' and values' source.
    """

    decays: Tensor
    max_temperature = 10.0
    reads_one_position = False

    def __init__(
        self,
        embedding_dim: int,
        head_dim: int,
        half_lives: list[float],
        *,
        from_states: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.num_heads = len(half_lives)
        self.from_states = from_states
        width = self.num_heads * head_dim
        self.memory_norm = nn.LayerNorm(embedding_dim)
        self.dropout = Dropout(dropout)
        self.query = nn.Linear(embedding_dim, width, bias=False)
        self.key = nn.Linear(embedding_dim, width, bias=False)
        self.value = nn.Linear(embedding_dim, width, bias=False)
        self.use = nn.Linear(embedding_dim, width, bias=False)
        nn.init.zeros_(self.use.weight)
        self.log_temperature = nn.Parameter(torch.full((self.num_heads,), math.log(3.0)))
        decays = torch.tensor([math.log(2) / half_life for half_life in half_lives])
        self.register_buffer("decays", decays)

    def history_side(self, states: Tensor, memory: Tensor) -> HistorySide:
        """See `DotProductHead`; keys and values are [B, H, L, d]."""
        source = self.dropout(self.memory_norm(states if self.from_states else memory))
        keys = _directions(self._split(self.key(source)))
        return states, keys, self._split(self.value(source))

    def candidate_side(self, embeddings: Tensor) -> CandidateSide:
        """See `DotProductHead`; queries and uses are [H, C, d] or [B, H, C, d]."""
        temperature = self.log_temperature.exp().clamp(max=self.max_temperature)
        queries = _directions(self._split(self.query(embeddings))) * temperature[:, None, None]
        return embeddings, queries, self._split(self.use(embeddings))

    def logits(self, history: HistorySide, candidates: CandidateSide) -> Tensor:
        """See `DotProductHead`."""
        states, keys, values = history
        embeddings, queries, uses = candidates
        scores = embeddings @ states.flatten(0, 1).T
        for head in range(self.num_heads):
            scores += attend_at_all_positions(
                keys[:, head], values[:, head], queries[head], uses[head], self.decays[head]
            )
        by_position: Tensor = scores.T.unflatten(0, states.shape[:2])
        return by_position

    def paired(self, history: HistorySide, candidates: CandidateSide) -> Tensor:
        """See `DotProductHead`: causal attention as it is written, O(L²·D)."""
        states, keys, values = history
        embeddings, queries, uses = candidates
        steps = torch.arange(states.shape[1], device=states.device)
        age = steps[:, None] - steps
        fade = (-self.decays[:, None, None] * age).masked_fill_(age < 0, -torch.inf)
        weights = torch.softmax(queries @ keys.mT + fade, dim=-1)
        attended = (weights * (uses @ values.mT)).sum(dim=(1, 3))
        return (states * embeddings).sum(dim=-1) + attended

    def newest(self, history: HistorySide, candidates: CandidateSide, lengths: Tensor) -> Tensor:
        """See `DotProductHead`."""
        scores = _dot_products(history, candidates, lengths)
        for fade, weights, evidence in self._attention(history, candidates, lengths):
            scores = scores + (fade @ (weights * evidence) / (fade @ weights)).squeeze(1)
        return scores

    def rows_at_once(self, length: int, candidates: int) -> int:
        """See `DotProductHead`."""
        return sequences_together(length)

    def numbers_held(self, rows: int, positions: int) -> int:
        """See `DotProductHead`."""
        return rows * positions

    def contributions(
        self, history: HistorySide, candidates: CandidateSide, lengths: Tensor
    ) -> Tensor:
        """What each purchase adds to each candidate's score at the last item, [B, L, C].

        Their sum over L is the attended part of `newest`: the rest is the dot product.
        """
        parts = [
            fade.mT * weights * evidence / (fade @ weights)
            for fade, weights, evidence in self._attention(history, candidates, lengths)
        ]
        return torch.stack(parts).sum(dim=0)

    def weights(self, history: HistorySide, candidates: CandidateSide, lengths: Tensor) -> Tensor:
        """How each head spreads a candidate's attention over the purchases, at the last item.

        [B, H, L, C]; they sum to 1 over L, and are 0 on padding.
        """
        parts = [
            fade.mT * weights / (fade @ weights)
            for fade, weights, _ in self._attention(history, candidates, lengths)
        ]
        return torch.stack(parts, dim=1)

    def _attention(
        self, history: HistorySide, candidates: CandidateSide, lengths: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Per head, as seen from the last item.

        The decay of each purchase [B, 1, L], 0 on padding; its unnormalised attention weights
        without the decay, and its evidence [B, L, C].
        """
        _, keys, values = history
        _, queries, uses = candidates
        width = keys.shape[2]
        age = lengths[:, None] - 1 - torch.arange(width, device=lengths.device)
        present = padding_mask(lengths, width)
        for head in range(self.num_heads):
            fade = torch.exp(-self.decays[head] * age.clamp(min=0)) * present
            query, use = queries[..., head, :, :], uses[..., head, :, :]
            weights = (keys[:, head] @ query.mT).exp()
            yield fade[:, None].to(weights.dtype), weights, values[:, head] @ use.mT

    def _split(self, x: Tensor) -> Tensor:
        """[..., N, H · d] to [..., H, N, d]."""
        narrow: Tensor = x.unflatten(-1, (self.num_heads, -1))
        return narrow.transpose(-2, -3)


def _directions(x: Tensor) -> Tensor:
    """Scale to length 1 along the last dimension, in float32 at least."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


def _dot_products(history: HistorySide, candidates: CandidateSide, lengths: Tensor) -> Tensor:
    """Scores [B, C] of h · e at each history's last item."""
    scores: Tensor = last_states(history[0], lengths)[:, None] @ candidates[0].mT
    return scores[:, 0]


def last_states(states: Tensor, lengths: Tensor) -> Tensor:
    """The hidden state at each history's last item, [B, D], from [B, L, D] and lengths [B] ≥ 1."""
    return states[torch.arange(len(lengths), device=lengths.device), lengths - 1]
