"""Target attention: each candidate attends to the purchases of a history."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.attention import padding_mask
from recsys.model.chunk_size import logits_per_chunk
from recsys.model.dropout import Dropout
from recsys.model.heads import dot_products, last_position
from recsys.model.protocols import (
    CandidateRepresentation,
    HeadAttention,
    HistoryRepresentation,
    KVSource,
    LastRepresentation,
)

_POSITIONS = 768
"""The positions whose logits training makes at once on a CPU. With fewer, adding up the gradients
of all candidates takes most of the time; with more, the matrices leave the cache."""
_KEPT = 4
"""The matrices as large as the logits that autograd keeps for each attention head."""


class TargetAttentionHead(nn.Module):
    """The candidate is the query, the purchases are keys and values; added to the dot product.

    For candidate c, position t and each attention head, with decay λ:

        w_cj(t) = exp(κ cos(W_q e_c, W_k m_j) - λ (t - j))
        a_t(c) = Σ_{j≤t} w_cj(t) (W_u e_c · W_v m_j) / Σ_{j≤t} w_cj(t)
        score_t(c) = h_t · e_c + Σ_heads a_t(c)

    With ``pooling="sum"`` the denominator is Σ_{j≤t} exp(-λ (t - j)), which does not depend on the
    candidate: many purchases that support it then count more than one (as in DIN, section 4.3). An
    average loses that, but shows whether the relevant purchases agree, as when a rule needs two.

    Only the decay depends on t. So the sums at all positions are one product of exp(κ cos) and of
    exp(κ cos) × (W_u e_c · W_v m_j) with a triangular matrix of decays: no [I, L, L] weights.
    The factor κ, an inverse temperature, is learned and capped, so nothing overflows. W_u starts
    at zero: training starts from the dot product. Source: DIN, https://arxiv.org/abs/1706.06978,
    over the encoder's kv_source; the form for all positions is this project's.

    Args:
        half_lives: numbers of purchases after which attention halves, one per head:
            λ = ln 2 / half-life.
        kv_source: the source of keys and values, m_j.
        pooling: whether the contributions of the purchases are averaged or summed.
        dropout: of the features of m_j.
    """

    decays: Tensor
    max_temperature = 10.0

    def __init__(
        self,
        embedding_dim: int,
        head_dim: int,
        half_lives: list[float],
        *,
        kv_source: KVSource,
        pooling: Literal["average", "sum"],
        dropout: float,
    ) -> None:
        super().__init__()
        self.num_heads = len(half_lives)
        self.kv_source: KVSource = kv_source
        self.pooling = pooling
        width = self.num_heads * head_dim
        kv_dim = embedding_dim * (2 if kv_source == "both" else 1)
        self.kv_norm = nn.LayerNorm(kv_dim)
        self.dropout = Dropout(dropout)
        self.query = nn.Linear(embedding_dim, width, bias=False)
        self.key = nn.Linear(kv_dim, width, bias=False)
        self.value = nn.Linear(kv_dim, width, bias=False)
        self.value_query = nn.Linear(embedding_dim, width, bias=False)
        nn.init.zeros_(self.value_query.weight)
        self.log_temperature = nn.Parameter(torch.full((self.num_heads,), math.log(3.0)))
        decays = torch.tensor([math.log(2) / half_life for half_life in half_lives])
        self.register_buffer("decays", decays)

    def represent_history(self, states: Tensor, embedded: Tensor) -> HistoryRepresentation:
        """The states; keys and values [B, H, L, d]."""
        source = states if self.kv_source == "states" else embedded
        if self.kv_source == "both":
            source = torch.cat([embedded, states], dim=-1)
        source = self.dropout(self.kv_norm(source))
        return states, self._directions(self.key(source)), self._split(self.value(source))

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """The embeddings; queries κ W_q e and value queries W_u e, [H, C, d] or [B, H, C, d]."""
        temperature = self.log_temperature.exp().clamp(max=self.max_temperature)
        queries = self._directions(self.query(embeddings)) * temperature[:, None, None]
        return embeddings, queries, self._split(self.value_query(embeddings))

    def logits(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `Head.logits`.

        Positions are the last dimension: products with the triangle are then twice as fast.
        """
        states, keys, values = history
        embeddings, queries, value_queries = candidates
        scores = embeddings @ states.flatten(0, 1).T  # [C, B · L]
        for head, decay in enumerate(self._triangles(states.shape[1]).to(scores.dtype)):
            weights = (queries[head] @ keys[:, head].flatten(0, 1).T).exp_()
            weighted = weights * (value_queries[head] @ values[:, head].flatten(0, 1).T)
            attended = _past(weighted, decay)
            scores += attended / _past(weights, decay) if self.pooling == "average" else attended
        by_position: Tensor = scores.T.unflatten(0, states.shape[:2])
        return by_position

    def score_targets(
        self, history: HistoryRepresentation, targets: CandidateRepresentation
    ) -> Tensor:
        """See `Head.score_targets`; plain causal attention, O(L²·D)."""
        states, keys, values = history
        embeddings, queries, value_queries = targets
        weights = (queries @ keys.mT).exp() * self._triangles(states.shape[1])
        if self.pooling == "average":
            weights = weights / weights.sum(dim=-1, keepdim=True)
        attended = (weights * (value_queries @ values.mT)).sum(dim=(1, 3))
        return (states * embeddings).sum(dim=-1) + attended

    def select_last(self, history: HistoryRepresentation, lengths: Tensor) -> LastRepresentation:
        """The last state [B, D]; the latest keys and values [B, H, l, d], and how many of them [B].

        Older purchases than these change no score by more than its rounding, even taken together.
        """
        states, keys, values = history
        skipped = self._skipped(lengths, states.dtype)
        last = last_position(states, lengths)
        return last, keys[..., skipped:, :], values[..., skipped:, :], lengths - skipped

    def score_last(self, last: LastRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `Head.score_last`."""
        _, keys, values, lengths = last
        scores = dot_products(last, candidates)
        for decay, weights, value_scores in self._per_head(keys, values, candidates, lengths):
            # In place: there are as many as pairs of a purchase and a candidate.
            attended = decay @ value_scores.mul_(weights) / self._denominator(decay, weights)
            scores = scores + attended.squeeze(1)
        return scores

    def attention(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> HeadAttention:
        """See `Head.attention`."""
        states, keys, values = history
        contributions = [
            decay.mT * weights * value_scores / self._denominator(decay, weights)
            for decay, weights, value_scores in self._per_head(keys, values, candidates, lengths)
        ]
        return HeadAttention(
            torch.stack(contributions).sum(dim=0),
            dot_products((last_position(states, lengths),), candidates),
        )

    def chunk_rows(self, length: int, candidates: int, device: torch.device) -> int:
        """See `Head.chunk_rows`; what all attention heads keep for backward is there at once."""
        if device.type == "cpu":
            return max(1, _POSITIONS // length)
        kept = _KEPT * self.num_heads * length * candidates
        return max(1, logits_per_chunk(device) // kept)

    def elements_per_candidate(self, last: LastRepresentation) -> int:
        """One per history and purchase."""
        keys = last[1]
        return keys.shape[0] * keys.shape[2]

    def _triangles(self, length: int) -> Tensor:
        """exp(-λ (t - j)) of purchase j as seen from position t, 0 where j > t: [H, L, L].

        Where contributions are summed, each row is divided by its sum.
        """
        steps = torch.arange(length, device=self.decays.device)
        age = steps[:, None] - steps
        decay = torch.exp(-self.decays[:, None, None] * age.clamp(min=0)) * (age >= 0)
        return decay if self.pooling == "average" else decay / decay.sum(dim=-1, keepdim=True)

    def _per_head(
        self, keys: Tensor, values: Tensor, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield three tensors for each attention head, as seen from the last item.

        The decay of each purchase [B, 1, L], 0 on padding; its attention weights, neither decayed
        nor normalised, and its value scores [B, L, C].
        """
        _, queries, value_queries = candidates
        age = lengths[:, None] - 1 - torch.arange(keys.shape[2], device=lengths.device)
        present = padding_mask(lengths, keys.shape[2])
        for head, rate in enumerate(self.decays):
            decay = torch.exp(-rate * age.clamp(min=0)) * present
            weights = (keys[:, head] @ queries[..., head, :, :].mT).exp_()
            value_scores = values[:, head] @ value_queries[..., head, :, :].mT
            yield decay[:, None].to(weights.dtype), weights, value_scores

    def _denominator(self, decay: Tensor, weights: Tensor) -> Tensor:
        """The divisor of the sum over a history, [B, 1, C] or [B, 1, 1]; see `_per_head`."""
        return decay @ weights if self.pooling == "average" else decay.sum(dim=-1, keepdim=True)

    def _skipped(self, lengths: Tensor, dtype: torch.dtype) -> int:
        """The number of first purchases that change no score of any history.

        They have a share below the ε of the dtype: Σ_{age ≥ reach} exp(-λ age + 2 κ) ≤ ε, since the
        weight of a purchase that supports the candidate is up to exp(2 κ) times that of one that
        does not.
        """
        if torch.compiler.is_exporting():  # a graph has no lengths to decide by
            return 0
        # These are read together, since each read waits for a GPU.
        highest = self.log_temperature.detach().max().exp().clamp(max=self.max_temperature)
        parts = lengths.min().view(1), highest.view(1), self.decays.min().view(1)
        shortest, temperature, rate = torch.cat([part.double() for part in parts]).tolist()
        if rate == 0:
            return 0
        share = math.log(torch.finfo(dtype).eps) + math.log(-math.expm1(-rate))
        reach: int = math.ceil((2 * temperature - share) / rate)
        return max(0, int(shortest) - reach)

    def _directions(self, x: Tensor) -> Tensor:
        """[..., N, H · d] to [..., H, N, d] of length 1, in float32 at least."""
        wide = self._split(x.to(torch.promote_types(x.dtype, torch.float32)))
        return F.normalize(wide, dim=-1)

    def _split(self, x: Tensor) -> Tensor:
        """[..., N, H · d] to [..., H, N, d]."""
        narrow: Tensor = x.unflatten(-1, (self.num_heads, -1))
        return narrow.transpose(-2, -3)


def _past(x: Tensor, decay: Tensor) -> Tensor:
    """Σ_{j≤t} decay[t, j] x_j at each position t of sequences of L, x being [C, B · L]."""
    return (x.view(-1, len(decay)) @ decay.T).view(x.shape)
