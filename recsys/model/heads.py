"""Heads without attention over the history: dot product, cosine, mixture of logits.

See `Head` for the protocol. Target attention has a module of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recsys.model.attention import last_states
from recsys.model.chunk_size import logits_per_chunk
from recsys.model.directions import directions
from recsys.model.protocols import (
    CandidateRepresentation,
    HistoryRepresentation,
    KVSource,
    LastRepresentation,
)


class DotProductHead(nn.Module):
    """score_t(c) = h_t · e_c."""

    kv_source: KVSource | None = None

    @property
    def first_stage(self) -> DotProductHead:
        """The head itself."""
        return self

    def represent_history(self, states: Tensor, embedded: Tensor) -> HistoryRepresentation:
        """The states."""
        return (states,)

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """The embeddings."""
        return (embeddings,)

    def logits(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `Head.logits`."""
        return history[0] @ candidates[0].T

    def score_targets(
        self, history: HistoryRepresentation, targets: CandidateRepresentation
    ) -> Tensor:
        """See `Head.score_targets`."""
        return (history[0] * targets[0]).sum(dim=-1)

    def select_last(self, history: HistoryRepresentation, lengths: Tensor) -> LastRepresentation:
        """The last state [B, D]."""
        return (last_position(history[0], lengths),)

    def score_last(self, last: LastRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `Head.score_last`."""
        return dot_products(last, candidates)

    def attention(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> None:
        """None: the head has no attention."""

    def chunk_rows(self, length: int, candidates: int, device: torch.device) -> int:
        """See `Head.chunk_rows`."""
        return max(1, logits_per_chunk(device) // (length * candidates))

    def elements_per_candidate(self, last: LastRepresentation) -> int:
        """One per history."""
        return len(last[0])


class CosineHead(DotProductHead):
    """score_t(c) = cos(h_t, e_c) / temperature: no item is favoured for the length of its vector.

    Args:
        temperature: above 0; .05 is usual with losses over many candidates.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self._temperature = temperature

    def represent_history(self, states: Tensor, embedded: Tensor) -> HistoryRepresentation:
        """The directions of the states, divided by the temperature."""
        return (directions(states) / self._temperature,)

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """The directions of the embeddings."""
        return (directions(embeddings),)


class MixtureOfLogitsHead(nn.Module):
    """A mixture of cosines, weighted by both history and candidate.

    Both representations are projected P times, f_i(h) and g_j(e), to vectors of length 1:

        s_ij = cos(f_i(h_t), g_j(e_c)) / temperature
        score_t(c) = Σ_ij π_ij s_ij,  π = softmax_ij(A_ij(h_t) B_ij(e_c) + W_ij(e_c) s_ij)

    Source: Zhai et al. 2023, https://arxiv.org/abs/2306.04039 (mixture of logits). A weight for
    each s_ij replaces their network, which would run for every pair of position and item.

    Args:
        components: P; the head costs about P² dot products of ``component_dim`` numbers.
        component_dim: d, the width of f and g.
        temperature: above 0.
    """

    kv_source: KVSource | None = None
    first_stage: None = None

    def __init__(
        self, embedding_dim: int, components: int, component_dim: int, temperature: float
    ) -> None:
        super().__init__()
        self.components = components
        self.temperature = temperature
        pairs = components**2
        self.history_projection = nn.Linear(embedding_dim, components * component_dim)
        self.candidate_projection = nn.Linear(embedding_dim, components * component_dim)
        self.history_gate = nn.Linear(embedding_dim, pairs)
        self.candidate_gate = nn.Linear(embedding_dim, 2 * pairs)

    def represent_history(self, states: Tensor, embedded: Tensor) -> HistoryRepresentation:
        """The P vectors, concatenated [B, L, P · d], and A [B, L, P²]."""
        vectors = self._unit_vectors(self.history_projection(states)) / self.temperature
        return vectors.flatten(-2), self.history_gate(states)

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """The P vectors, concatenated [..., C, P · d], and B with W [..., C, 2 P²]."""
        vectors = self._unit_vectors(self.candidate_projection(embeddings))
        return vectors.flatten(-2), self.candidate_gate(embeddings)

    def logits(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `Head.logits`."""
        vectors, gates = (part.flatten(0, 1) for part in history)
        scores: Tensor = self._mixed((vectors, gates), candidates)
        return scores.view(*history[0].shape[:2], -1)

    def score_targets(
        self, history: HistoryRepresentation, targets: CandidateRepresentation
    ) -> Tensor:
        """See `Head.score_targets`."""
        one = tuple(part[..., None, :] for part in history)
        return self._mixed(one, tuple(part[..., None, :] for part in targets))[..., 0, 0]

    def select_last(self, history: HistoryRepresentation, lengths: Tensor) -> LastRepresentation:
        """The last vectors [B, P · d] and A [B, P²]."""
        return tuple(last_position(part, lengths) for part in history)

    def score_last(self, last: LastRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `Head.score_last`."""
        if candidates[0].dim() == 2:
            return self._mixed(last, candidates)
        return self._mixed(tuple(part[:, None] for part in last), candidates)[:, 0]

    def attention(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> None:
        """None: the head has no attention."""

    def chunk_rows(self, length: int, candidates: int, device: torch.device) -> int:
        """See `Head.chunk_rows`."""
        return max(1, logits_per_chunk(device) // (length * candidates * self.components**2))

    def elements_per_candidate(self, last: LastRepresentation) -> int:
        """P² per history."""
        return len(last[0]) * self.components**2

    def _mixed(self, history: tuple[Tensor, ...], candidates: CandidateRepresentation) -> Tensor:
        """Scores [..., N, C] from [..., N, P · d] and [..., C, P · d] and their gates."""
        vectors = [part.chunk(self.components, dim=-1) for part in (history[0], candidates[0])]
        cosines = torch.stack([one @ other.mT for one in vectors[0] for other in vectors[1]])
        own, weights = candidates[1].movedim(-1, 0)[..., None, :].chunk(2)
        gates = history[1].movedim(-1, 0)[..., None] * own + weights * cosines
        return (torch.softmax(gates, dim=0) * cosines).sum(dim=0)

    def _unit_vectors(self, x: Tensor) -> Tensor:
        """[..., P · d] to [..., P, d] of length 1."""
        return directions(x.unflatten(-1, (self.components, -1)))


def last_position(x: Tensor, lengths: Tensor) -> Tensor:
    """The last real position [B, D] of [B, L, D], or of [B, 1, D] which holds no other."""
    return x[:, 0] if x.shape[1] == 1 else last_states(x, lengths)


def dot_products(last: LastRepresentation, candidates: CandidateRepresentation) -> Tensor:
    """Scores [B, C] of h · e at each history's last item."""
    scores: Tensor = last[0][:, None] @ candidates[0].mT
    return scores[:, 0]
