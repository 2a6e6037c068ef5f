"""Heads: how hidden states and candidates become scores.

Letters of shapes: B histories, L positions, D the embedding, C candidates, I items of the
catalogue, H attention heads, 0 of them where a head is a dot product alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.config.model import KernelAttention, TargetAttention
from recsys.model.attention import last_states, split_heads
from recsys.model.encoder import Dropout

MAX_TEMPERATURE = 10.0
_POSITIONS = 768
"""The positions whose logits of target attention training makes at once on a CPU. With fewer,
adding up the gradients of all candidates takes most of the time; more leave the cache."""
_HALF_LIFE = 3.0  # of kernel attention, in purchases
_KEPT = 4
"""The matrices as large as the logits that autograd keeps for each attention head."""


class HistoryRepresentation(NamedTuple):
    """States [B, L, D] or the last ones [B, 1, D]; keys and values of purchases [B, H, L, d]."""

    states: Tensor
    keys: Tensor
    values: Tensor


class LastRepresentation(NamedTuple):
    """Last states [B, D]; keys and values of purchases [B, H, L, d]; the number of these [B]."""

    state: Tensor
    keys: Tensor
    values: Tensor
    lengths: Tensor


class CandidateRepresentation(NamedTuple):
    """Embeddings [C, D] and queries [H, C, d] of candidates, shared or of each history [B, ...]."""

    embeddings: Tensor
    queries: Tensor
    value_queries: Tensor


class Head:
    """score_t(c) = h_t · e_c + Σ_heads Σ_{j≤t} w_cj(t) (u_c · v_j): see `TargetAttentionHead`.

    Histories and candidates are represented separately, once per batch. `logits` joins the two at
    every position, which training needs; `score_last` at the last one.
    """

    # Of each attention head [H]: λ, and whether its contributions are averaged or summed.
    decays: Tensor
    poolings: Sequence[Literal["average", "sum"]] = ()

    @property
    def attends(self) -> bool:
        """Whether scores depend on all purchases, not only on the state at a position."""
        return bool(self.poolings)

    @property
    def explains(self) -> bool:
        """Whether scores have a term for each purchase: its contribution."""
        return self.attends

    @property
    def dot_product(self) -> Head:
        """The head without the sums over all purchases, which finds items that are worth them."""
        return DotProductHead() if self.attends else self

    def represent_history(
        self, states: Tensor, embedded: Tensor, lengths: Tensor | None = None
    ) -> HistoryRepresentation:
        """Represent hidden states and input embeddings [B, L, D].

        ``states`` may hold the last one only, [B, 1, D]; ``lengths`` [B] say which one that is.
        """
        nothing = states.new_empty(len(states), 0, embedded.shape[1], 0)
        return HistoryRepresentation(states, nothing, nothing)

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """Represent the embeddings of candidates, shared [C, D] or of each history [B, C, D]."""
        nothing = embeddings.new_empty(*embeddings.shape[:-2], 0, embeddings.shape[-2], 0)
        return CandidateRepresentation(embeddings, nothing, nothing)

    def logits(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """Scores [B, L, C] of shared candidates at every position.

        Only the decay depends on the position: the sums are products with a triangular matrix.
        """
        states, keys, values = history
        embeddings, queries, value_queries = candidates
        if not self.attends:
            return states @ embeddings.T
        # Positions are the last dimension: products with the triangle are then twice as fast.
        scores = embeddings @ states.flatten(0, 1).T  # [C, B · L]
        for head, decay in enumerate(self._triangles(states.shape[1]).to(scores.dtype)):
            weights = (queries[head] @ keys[:, head].flatten(0, 1).T).exp_()
            weighted = weights * (value_queries[head] @ values[:, head].flatten(0, 1).T)
            attended = _past(weighted, decay)
            averages = self.poolings[head] == "average"
            scores += attended / _past(weights, decay) if averages else attended
        return scores.T.unflatten(0, states.shape[:2])

    def score_targets(
        self, history: HistoryRepresentation, targets: CandidateRepresentation
    ) -> Tensor:
        """Scores [B, L] of one candidate at each position, represented from [B, L, D]; O(L²·D)."""
        states, keys, values = history
        embeddings, queries, value_queries = targets
        scores: Tensor = (states * embeddings).sum(dim=-1)
        for head, decay in enumerate(self._triangles(states.shape[1]) if self.attends else ()):
            weights = (queries[:, head] @ keys[:, head].mT).exp() * decay
            if self.poolings[head] == "average":
                weights = weights / weights.sum(dim=-1, keepdim=True)
            scores = scores + (weights * (value_queries[:, head] @ values[:, head].mT)).sum(dim=-1)
        return scores

    def select_last(self, history: HistoryRepresentation, lengths: Tensor) -> LastRepresentation:
        """Select what `score_last` needs."""
        states, keys, values = history
        state = states[:, 0] if states.shape[1] == 1 else last_states(states, lengths)
        return LastRepresentation(state, keys, values, lengths)

    def score_last(self, last: LastRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """Scores [B, C] at each history's last item, of shared candidates or of its own."""
        scores: Tensor = (last.state[:, None] @ candidates.embeddings.mT)[:, 0]
        for decay, weights, value_scores, total in self.terms(*last[1:], candidates):
            # In place: there are as many as pairs of a purchase and a candidate.
            scores = scores + (decay @ value_scores.mul_(weights) / total).squeeze(1)
        return scores

    def contributions(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Tensor:
        """What each purchase adds to the scores at the last item, [B, L, C]; 0 on padding."""
        states, keys, values = history
        terms = states.new_zeros(len(lengths), keys.shape[2], candidates.embeddings.shape[-2])
        for decay, weights, scores, total in self.terms(keys, values, lengths, candidates):
            terms = terms + decay.mT * weights * scores / total
        return terms

    def chunk_rows(self, length: int, candidates: int, device: torch.device) -> int:
        """The number of sequences of this length whose `logits` training best makes at once.

        Those of a dot product fit into a CPU's cache, 8 MiB of bf16; a GPU needs large products.
        """
        if self.attends and device.type == "cpu":
            return max(1, _POSITIONS // length)
        most = 1 << 22 if device.type == "cpu" else 1 << 27
        return max(1, most // (max(1, _KEPT * len(self.poolings)) * length * candidates))

    def _triangles(self, length: int) -> Tensor:
        """exp(-λ (t - j)) of position t (row) and purchase j ≤ t [H, L, L]; of sums, normalised."""
        steps = torch.arange(length, device=self.decays.device)
        decay = decayed(steps[:, None] - steps, self.decays[:, None, None])
        summed = torch.tensor([pooling == "sum" for pooling in self.poolings], device=steps.device)
        return decay / decay.sum(dim=-1, keepdim=True).where(summed[:, None, None], 1)

    def terms(
        self, keys: Tensor, values: Tensor, lengths: Tensor, candidates: CandidateRepresentation
    ) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Yield decays, weights, value scores and divisors of each attention head at the last item.

        The decay of each purchase [B, 1, L] is 0 on padding; weights, before decay, and value
        scores are [B, L, C]; the divisor of the sum over a history is [B, 1, C] or [B, 1, 1].
        """
        if not self.attends:
            return
        _, queries, value_queries = candidates
        age = lengths[:, None] - 1 - torch.arange(keys.shape[2], device=lengths.device)
        for head, (rate, pooling) in enumerate(zip(self.decays, self.poolings, strict=True)):
            weights = (keys[:, head] @ queries[..., head, :, :].mT).exp_()
            value_scores = values[:, head] @ value_queries[..., head, :, :].mT
            decay = decayed(age, rate)[:, None].to(weights.dtype)
            averages = pooling == "average"
            total = decay @ weights if averages else decay.sum(dim=-1, keepdim=True)
            yield decay, weights, value_scores, total


class DotProductHead(Head, nn.Module):
    """score_t(c) = h_t · e_c: the head of SASRec."""


class TargetAttentionHead(Head, nn.Module):
    """The candidate is the query, the purchases are keys and values; added to the dot product.

    For candidate c, the embedding m_j of purchase j, position t and each attention head:

        w_cj(t) = exp(κ cos(W_q e_c, W_k m_j) - λ (t - j))
        a_t(c) = Σ_{j≤t} w_cj(t) (W_u e_c · W_v m_j) / Σ_{j≤t} w_cj(t)
        score_t(c) = h_t · e_c + Σ_heads a_t(c)

    With ``pooling="sum"`` the denominator is Σ_{j≤t} exp(-λ (t - j)), which does not depend on the
    candidate: many purchases that support it then count more than one (as in DIN, section 4.3). An
    average loses that, but shows whether the relevant purchases agree, as when a rule needs two.

    The factor κ, an inverse temperature, is learned and capped, so nothing overflows. W_u starts
    at zero: training starts from the dot product. λ is ln 2 / half-life, in purchases. Source: DIN,
    https://arxiv.org/abs/1706.06978; the form for all positions is this project's.
    """

    def __init__(self, embedding_dim: int, config: TargetAttention, dropout: float) -> None:
        super().__init__()
        self.num_heads = config.num_heads
        self.poolings = [config.pooling] * self.num_heads
        width = self.num_heads * config.head_dim
        self.kv_norm = nn.LayerNorm(embedding_dim)
        self.dropout = Dropout(dropout)
        self.query = nn.Linear(embedding_dim, width, bias=False)
        self.key = nn.Linear(embedding_dim, width, bias=False)
        self.value = nn.Linear(embedding_dim, width, bias=False)
        self.value_query = nn.Linear(embedding_dim, width, bias=False)
        nn.init.zeros_(self.value_query.weight)
        self.log_temperature = nn.Parameter(torch.full((self.num_heads,), math.log(3.0)))
        decays = torch.tensor([math.log(2) / half_life for half_life in config.half_lives])
        self.register_buffer("decays", decays)

    def represent_history(
        self, states: Tensor, embedded: Tensor, lengths: Tensor | None = None
    ) -> HistoryRepresentation:
        source = self.dropout(self.kv_norm(embedded))
        keys, values = self._directions(self.key(source)), self.value(source)
        return HistoryRepresentation(states, keys, split_heads(values, self.num_heads))

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        temperatures = self.log_temperature.exp().clamp(max=MAX_TEMPERATURE)
        queries = self._directions(self.query(embeddings)) * temperatures[:, None, None]
        value_queries = split_heads(self.value_query(embeddings), self.num_heads)
        return CandidateRepresentation(embeddings, queries, value_queries)

    def _directions(self, x: Tensor) -> Tensor:
        """[..., N, H · d] to [..., H, N, d] of length 1, in float32 at least."""
        wide = split_heads(x.to(torch.promote_types(x.dtype, torch.float32)), self.num_heads)
        return F.normalize(wide, dim=-1)


class KernelAttentionHead(Head, nn.Module):
    """Target attention with a kernel of few features: one wide dot product.

    For candidate c, the embedding m_j of purchase j, position t, and P prototypes w:

        φ(x) = √P softmax(τ cos(x, w_1), ..., τ cos(x, w_P))
        w_cj(t) = exp(-λ (t - j)) φ(e_c) · φ(m_j) / Σ_{i≤t} exp(-λ (t - i))
        score_t(c) = h_t · e_c + Σ_{j≤t} w_cj(t) (W_u e_c · W_v m_j)
                   = [h_t ; S_t] · [e_c ; φ(e_c) ⊗ W_u e_c]

    S_t are the decayed means of φ(m_j) ⊗ W_v m_j, which no candidate changes: all that a dot
    product can do, this head can. Candidates and purchases have prototypes and τ of their own,
    which start equal. W_u starts at zero: training starts from the dot product. The kernel of
    features is that of linear attention (https://arxiv.org/abs/2006.16236).
    """

    def __init__(self, embedding_dim: int, config: KernelAttention, dropout: float) -> None:
        super().__init__()
        prototypes, value_dim = config.prototypes, config.value_dim
        self.width, self.dropout = prototypes * value_dim, Dropout(dropout)
        self.candidate_dropout = Dropout(dropout * config.candidate_dropout)
        self.key_prototypes = nn.Parameter(torch.randn(prototypes, embedding_dim))
        self.query_prototypes = nn.Parameter(self.key_prototypes.detach().clone())
        self.log_sharpness = nn.Parameter(torch.full((2,), math.log(10.0)))  # of τ
        self.value = nn.Linear(embedding_dim, value_dim, bias=False)
        self.value_query = nn.Linear(embedding_dim, value_dim, bias=False)
        nn.init.zeros_(self.value_query.weight)
        self.register_buffer("decays", torch.tensor([math.log(2) / _HALF_LIFE]))

    @property
    def explains(self) -> bool:
        return True

    def represent_history(
        self, states: Tensor, embedded: Tensor, lengths: Tensor | None = None
    ) -> HistoryRepresentation:
        source = self.dropout(embedded)
        features = self._features(source, self.key_prototypes, 0, self.value)
        steps = torch.arange(source.shape[1], device=self.decays.device)
        weights = decayed(steps[:, None] - steps, self.decays)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        pooled = weights.to(features.dtype) @ features
        if states.shape[1] < pooled.shape[1] and lengths is not None:
            pooled = last_states(pooled, lengths)[:, None]
        return super().represent_history(torch.cat([states.to(pooled.dtype), pooled], -1), embedded)

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        source = self.candidate_dropout(embeddings)
        features = self._features(source, self.query_prototypes, 1, self.value_query)
        wide = torch.cat([embeddings.to(features.dtype), features], -1)
        return super().represent_candidates(wide)

    def contributions(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Tensor:
        pooled = history.states[..., -self.width :]  # its terms are taken out of the sums again
        steps = torch.arange(pooled.shape[1], device=pooled.device)
        sums = pooled * decayed(steps, self.decays).cumsum(0)[:, None]
        terms = sums - F.pad(sums, (0, 0, 1, 0))[:, :-1] * torch.exp(-self.decays)
        weights = decayed(lengths[:, None] - 1 - steps, self.decays)
        weights = weights / weights.sum(dim=1, keepdim=True)
        return (weights[..., None] * terms) @ candidates.embeddings[..., -self.width :].mT

    def _features(self, x: Tensor, prototypes: Tensor, side: int, values: nn.Linear) -> Tensor:
        """φ(x) ⊗ the values of x, [..., P · d]."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        inverse_norms = exact.square().sum(dim=-1).clamp(min=1e-24).rsqrt()
        cosines = (F.normalize(prototypes, dim=-1) @ x.mT) * inverse_norms[..., None, :]
        sharpness = self.log_sharpness[side].exp().clamp(max=50.0)
        kernel = torch.softmax(sharpness * cosines, dim=-2).mT
        # An outer product of each row, as products with matrices: half of the time on a CPU.
        count, width = len(prototypes), len(values.weight)
        repeated = math.sqrt(count) * torch.eye(count, dtype=kernel.dtype, device=x.device)
        repeated = repeated.repeat_interleave(width, dim=1)
        features: Tensor = (kernel @ repeated) * F.linear(x, values.weight.repeat(count, 1))
        return features


class AveragedHead(Head):
    """The mean of the scores of M heads: target attention with the attention heads of them all.

    Embeddings are concatenated, and so are the states, which the model divides by M, as value
    queries are here. Narrower attention heads are filled up with zeros.
    """

    def __init__(self, members: Sequence[Head], widths: Sequence[int]) -> None:
        self._members, self._widths = members, list(widths)
        self.poolings = [pooling for head in members for pooling in head.poolings]

    @property
    def dot_product(self) -> Head:
        return AveragedHead([head.dot_product for head in self._members], self._widths)

    @property
    def decays(self) -> Tensor:  # type: ignore[override]
        return torch.cat([head.decays for head in self._members if head.attends])

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        own = torch.split(embeddings, self._widths, dim=-1)
        members = [
            head.represent_candidates(columns)
            for head, columns in zip(self._members, own, strict=True)
        ]
        embeddings = torch.cat([member.embeddings for member in members], dim=-1)
        members = [member for member in members if member.queries.shape[-3]] or members[:1]
        queries = joined_heads([member.queries for member in members], dim=-3)
        value_queries = joined_heads([member.value_queries for member in members], dim=-3)
        return CandidateRepresentation(embeddings, queries, value_queries / len(self._members))


def joined_heads(members: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenate the attention heads of members, whose widths may differ."""
    width = max(member.shape[-1] for member in members)
    return torch.cat([F.pad(member, (0, width - member.shape[-1])) for member in members], dim)


def decayed(ages: Tensor, rates: Tensor) -> Tensor:
    """exp(-λ age); 0 of ages below 0: padding, and what is still to come."""
    return torch.exp(-rates * ages.clamp(min=0)) * (ages >= 0)


def _past(x: Tensor, decay: Tensor) -> Tensor:
    """Σ_{j≤t} decay[t, j] x_j at each position t of sequences of L, x being [C, B · L]."""
    return (x.view(-1, len(decay)) @ decay.T).view(x.shape)
