"""Target attention: the candidate is the query, the purchases are keys and values."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn

from recsys.model.attention import padding_mask
from recsys.model.decayed_attention import (
    averages_at_all_positions,
    sequences_together,
    sums_at_all_positions,
)
from recsys.model.dropout import Dropout
from recsys.model.heads import (
    CandidateRepresentation,
    HistoryRepresentation,
    directions,
    dot_products,
)


class TargetAttentionHead(nn.Module):
    """The candidate is the query, the purchases are keys and values; added to the dot product.

    For candidate c, position t and each attention head, with decay λ:

        w_cj(t) = exp(τ cos(W_q e_c, W_k m_j) - λ (t - j))
        a_t(c) = Σ_{j≤t} w_cj(t) (W_u e_c · W_v m_j) / Σ_{j≤t} w_cj(t)
        score_t(c) = h_t · e_c + Σ_heads a_t(c)

    Or what is above is divided by Σ_{j≤t} exp(-λ (t - j)), which knows nothing of the candidate:
    then many purchases that speak for it say more than one, which an average forgets (so DIN,
    section 4.3). An average knows something else: whether those that speak of the candidate agree,
    as where a rule asks for two of them.

    The query does not depend on t, so at all positions at once the two sums are decayed running
    sums over j of exp(τ cos) and of exp(τ cos) × (W_u e_c · W_v m_j): O(I·L·D), not O(I·L²·D).
    The temperature τ is learned and capped, so nothing overflows. W_u starts at zero: training
    starts from the dot product. Source: DIN, https://arxiv.org/abs/1706.06978, over the encoder's
    kv_source; the running-sum form is this project's.

    Args:
        half_lives: purchases after which attention halves, one per head: λ = ln 2 / half-life.
        kv_source: what keys and values are made of, item embeddings, encoder states or both.
        pooling: whether what the purchases say is averaged or summed up.
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
        kv_source: Literal["items", "states", "both"],
        pooling: Literal["average", "sum"],
        dropout: float,
    ) -> None:
        super().__init__()
        self.num_heads = len(half_lives)
        self.kv_source = kv_source
        self.pooling = pooling
        width = self.num_heads * head_dim
        kv_dim = embedding_dim * (2 if kv_source == "both" else 1)
        self.memory_norm = nn.LayerNorm(kv_dim)
        self.dropout = Dropout(dropout)
        self.query = nn.Linear(embedding_dim, width, bias=False)
        self.key = nn.Linear(kv_dim, width, bias=False)
        self.value = nn.Linear(kv_dim, width, bias=False)
        self.value_query = nn.Linear(embedding_dim, width, bias=False)
        nn.init.zeros_(self.value_query.weight)
        self.log_temperature = nn.Parameter(torch.full((self.num_heads,), math.log(3.0)))
        decays = torch.tensor([math.log(2) / half_life for half_life in half_lives])
        self.register_buffer("decays", decays)

    @property
    def reads_older_states(self) -> bool:
        """See `DotProductHead`."""
        return self.kv_source != "items"

    def represent_history(self, states: Tensor, kv_source: Tensor) -> HistoryRepresentation:
        """See `DotProductHead`; keys and values are [B, H, L, d]."""
        source = states if self.kv_source == "states" else kv_source
        if self.kv_source == "both":
            source = torch.cat([kv_source, states], dim=-1)
        source = self.dropout(self.memory_norm(source))
        keys = directions(self._split(self.key(source)))
        return states, keys, self._split(self.value(source))

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """See `DotProductHead`; queries and value_queries are [H, C, d] or [B, H, C, d]."""
        temperature = self.log_temperature.exp().clamp(max=self.max_temperature)
        queries = directions(self._split(self.query(embeddings))) * temperature[:, None, None]
        return embeddings, queries, self._split(self.value_query(embeddings))

    def logits(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `DotProductHead`."""
        states, keys, values = history
        embeddings, queries, value_queries = candidates
        scores = embeddings @ states.flatten(0, 1).T
        averages = self.pooling == "average"
        attend = averages_at_all_positions if averages else sums_at_all_positions
        for head, decay in enumerate(self.decays):
            scores += attend(
                keys[:, head], values[:, head], queries[head], value_queries[head], decay
            )
        by_position: Tensor = scores.T.unflatten(0, states.shape[:2])
        return by_position

    def paired(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `DotProductHead`: causal attention as it is written, O(L²·D)."""
        states, keys, values = history
        embeddings, queries, value_queries = candidates
        steps = torch.arange(states.shape[1], device=states.device)
        age = steps[:, None] - steps
        decay = (-self.decays[:, None, None] * age).masked_fill_(age < 0, -torch.inf)
        logits = queries @ keys.mT + decay
        weights = logits.exp()
        wholes = (weights if self.pooling == "average" else decay.exp()).sum(dim=-1, keepdim=True)
        weights = weights / wholes
        attended = (weights * (value_queries @ values.mT)).sum(dim=(1, 3))
        return (states * embeddings).sum(dim=-1) + attended

    def newest(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Tensor:
        """See `DotProductHead`."""
        scores = dot_products(history, candidates, lengths)
        for decay, weights, value_scores in self._attention(history, candidates, lengths):
            attended = decay @ (weights * value_scores) / self._whole(decay, weights)
            scores = scores + attended.squeeze(1)
        return scores

    def recent(
        self, history: HistoryRepresentation, lengths: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """See `DotProductHead`.

        What is older than the purchases kept changes, taken together, no score but in its rounding.
        """
        passed = max(0, int(lengths.min()) - self._reach(history[0].dtype))
        return tuple(side[..., passed:, :] for side in history), lengths - passed

    def chunk_rows(self, length: int, candidates: int) -> int:
        """See `DotProductHead`."""
        return sequences_together(length)

    def numbers_held(self, rows: int, positions: int) -> int:
        """See `DotProductHead`."""
        return rows * positions

    def contributions(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Tensor:
        """What each purchase adds to each candidate's score at the last item, [B, L, C].

        Their sum over L is the attended part of `newest`: the rest is the dot product.
        """
        parts = [
            decay.mT * weights * value_scores / self._whole(decay, weights)
            for decay, weights, value_scores in self._attention(history, candidates, lengths)
        ]
        return torch.stack(parts).sum(dim=0)

    def weights(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Tensor:
        """How each head spreads a candidate's attention over the purchases, at the last item.

        [B, H, L, C]; they sum to 1 over L, and are 0 on padding. Of heads that sum up, these are
        the shares.
        """
        parts = [
            decay.mT * weights / (decay @ weights)
            for decay, weights, _ in self._attention(history, candidates, lengths)
        ]
        return torch.stack(parts, dim=1)

    def _attention(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Per head, as seen from the last item.

        The decay of each purchase [B, 1, L], 0 on padding; its unnormalised attention weights
        without the decay, and its value_scores [B, L, C].
        """
        _, keys, values = history
        _, queries, value_queries = candidates
        width = keys.shape[2]
        age = lengths[:, None] - 1 - torch.arange(width, device=lengths.device)
        present = padding_mask(lengths, width)
        for head, rate in enumerate(self.decays):
            decay = torch.exp(-rate * age.clamp(min=0)) * present
            query, value_query = queries[..., head, :, :], value_queries[..., head, :, :]
            weights = (keys[:, head] @ query.mT).exp()
            yield decay[:, None].to(weights.dtype), weights, values[:, head] @ value_query.mT

    def _reach(self, dtype: torch.dtype) -> int:
        """How many of the newest purchases decide a score, to the rounding of the dtype.

        What is older has a share below ε: Σ_{age ≥ reach} exp(-λ age + 2 τ) ≤ ε, for a purchase
        that speaks for the candidate weighs up to exp(2 τ) times one that does not.
        """
        slowest = float(self.decays.min())
        if slowest == 0:
            return sys.maxsize
        temperature = min(self.max_temperature, float(self.log_temperature.detach().max().exp()))
        share = math.log(torch.finfo(dtype).eps) + math.log(-math.expm1(-slowest))
        return math.ceil((2 * temperature - share) / slowest)

    def _whole(self, decay: Tensor, weights: Tensor) -> Tensor:
        """What the sum over a history is divided by, [B, 1, C] or [B, 1, 1]; see `_attention`."""
        return decay @ weights if self.pooling == "average" else decay.sum(dim=-1, keepdim=True)

    def _split(self, x: Tensor) -> Tensor:
        """[..., N, H · d] to [..., H, N, d]."""
        narrow: Tensor = x.unflatten(-1, (self.num_heads, -1))
        return narrow.transpose(-2, -3)
