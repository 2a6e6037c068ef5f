"""Kernel attention: target attention with a kernel of few features, as one wide dot product."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.attention import last_states
from recsys.model.encoder import Dropout
from recsys.model.heads import CandidateRepresentation, Head, HistoryRepresentation, decayed

_SHARPNESS, _MAX_SHARPNESS = 10.0, 50.0
"""τ at the start of a training, and at most."""


class KernelAttentionHead(Head, nn.Module):
    """The candidate is the query, the purchases are keys and values; added to the dot product.

    For candidate c, the embedding m_j of purchase j, position t, and P prototypes w:

        φ(x) = √P softmax(τ cos(x, w_1), ..., τ cos(x, w_P))
        w_cj(t) = exp(-λ (t - j)) φ(e_c) · φ(m_j) / Σ_{i≤t} exp(-λ (t - i))
        score_t(c) = h_t · e_c + Σ_{j≤t} w_cj(t) (W_u e_c · W_v m_j)
                   = [h_t ; S_t] · [e_c ; φ(e_c) ⊗ W_u e_c]

    S_t are the decayed means of φ(m_j) ⊗ W_v m_j, which no candidate changes.
    So all that a dot product can do, this head can: it is one of width D + P · d. Candidates and
    purchases have prototypes and τ of their own, which start equal. W_u starts at zero: training
    starts from the dot product. The kernel of features is that of linear attention
    (https://arxiv.org/abs/2006.16236).

    Args:
        embedding_dim: D.
        prototypes: P.
        value_dim: d.
        half_life: the number of purchases after which attention halves: λ = ln 2 / half-life.
        dropout: of the features of m_j.
    """

    def __init__(
        self, embedding_dim: int, prototypes: int, value_dim: int, half_life: float, dropout: float
    ) -> None:
        super().__init__()
        self.width = prototypes * value_dim
        self.dropout = Dropout(dropout)
        self.key_prototypes = nn.Parameter(torch.randn(prototypes, embedding_dim))
        self.query_prototypes = nn.Parameter(self.key_prototypes.detach().clone())
        self.log_sharpness = nn.Parameter(torch.full((2,), math.log(_SHARPNESS)))
        self.value = nn.Linear(embedding_dim, value_dim, bias=False)
        self.value_query = nn.Linear(embedding_dim, value_dim, bias=False)
        nn.init.zeros_(self.value_query.weight)
        self.register_buffer("decays", torch.tensor([math.log(2) / half_life]))

    @property
    def explains(self) -> bool:
        """True: `contributions` are the terms of the sum."""
        return True

    def represent_history(
        self, states: Tensor, embedded: Tensor, lengths: Tensor | None = None
    ) -> HistoryRepresentation:
        """[h_t ; S_t], as wide states."""
        source = self.dropout(embedded)
        features = self._features(source, self.key_prototypes, 0, self.value)
        pooled = self._means(source.shape[1]).to(features.dtype) @ features
        if states.shape[1] < pooled.shape[1] and lengths is not None:
            pooled = last_states(pooled, lengths)[:, None]
        return super().represent_history(torch.cat([states.to(pooled.dtype), pooled], -1), embedded)

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """[e_c ; φ(e_c) ⊗ W_u e_c], as wide embeddings."""
        features = self._features(embeddings, self.query_prototypes, 1, self.value_query)
        wide = torch.cat([embeddings.to(features.dtype), features], -1)
        return super().represent_candidates(wide)

    def contributions(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Tensor:
        """See `Head.contributions`: the terms of S_t are taken out of its sums again."""
        pooled = history.states[..., -self.width :]
        steps = torch.arange(pooled.shape[1], device=pooled.device)
        sums = pooled * decayed(steps, self.decays).cumsum(0)[:, None]
        terms = sums - F.pad(sums, (0, 0, 1, 0))[:, :-1] * torch.exp(-self.decays)
        weights = decayed(lengths[:, None] - 1 - steps, self.decays)
        weights = weights / weights.sum(dim=1, keepdim=True)
        added: Tensor = (weights[..., None] * terms) @ candidates.embeddings[..., -self.width :].mT
        return added

    def _features(self, x: Tensor, prototypes: Tensor, side: int, values: nn.Linear) -> Tensor:
        """φ(x) ⊗ the values of x, [..., P · d]."""
        cosines = F.normalize(x, dim=-1) @ F.normalize(prototypes, dim=-1).T
        sharpness = self.log_sharpness[side].exp().clamp(max=_MAX_SHARPNESS)
        exact = torch.promote_types(cosines.dtype, torch.float32)
        kernel = math.sqrt(len(prototypes)) * torch.softmax(sharpness * cosines.to(exact), dim=-1)
        features: Tensor = kernel[..., None] * values(x)[..., None, :]
        return features.flatten(-2)

    def _means(self, length: int) -> Tensor:
        """exp(-λ (t - j)) of purchase j at position t, each row divided by its sum: [L, L]."""
        steps = torch.arange(length, device=self.decays.device)
        decays = decayed(steps[:, None] - steps, self.decays)
        return decays / decays.sum(dim=-1, keepdim=True)
