"""Heads: how hidden states and candidates become scores.

Histories and candidates are represented apart, once per batch (`represent_history`,
`represent_candidates`). `logits` joins the two for every position, chunk by chunk in training, and
`newest` for the last position alone, which is all that scoring needs. Target attention has a file
of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.attention import last_states

HistoryRepresentation = tuple[Tensor, ...]
"""Tensors whose first dimension is B, second-last L."""
CandidateRepresentation = tuple[Tensor, ...]
"""Tensors whose second-last dimension is the number of candidates: those of all histories, or with
a first dimension B, of each history its own."""

_LOGITS_AT_ONCE = 1 << 22
"""8 MiB of bf16."""


class DotProductHead(nn.Module):
    """score_t(c) = h_t · e_c."""

    reads_one_position = True
    """A position's scores need nothing of the other positions."""
    reads_older_states = False
    """A position's scores need the hidden states of those before it."""

    def represent_history(self, states: Tensor, memory: Tensor) -> HistoryRepresentation:
        """From hidden states [B, L, D] and input item embeddings [B, L, D]."""
        return (states,)

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """From embeddings of candidates for all histories [C, D], or for each its own [B, C, D]."""
        return (embeddings,)

    def logits(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """Scores [B, L, C] of every candidate at every position, from the items up to there."""
        return history[0] @ candidates[0].T

    def paired(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """Scores [B, L] of one candidate at each position, from embeddings [B, L, D]."""
        return (history[0] * candidates[0]).sum(dim=-1)

    def newest(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Tensor:
        """Scores [B, C] at each history's last item; lengths [B] ≥ 1."""
        return dot_products(history, candidates, lengths)

    def recent(
        self, history: HistoryRepresentation, lengths: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """The end of the histories, which decides what `newest` says, and its lengths."""
        return _last_alone(history[:1], lengths)

    def chunk_rows(self, length: int, candidates: int) -> int:
        """Sequences of some length that training best makes `logits` of at once."""
        return max(1, _LOGITS_AT_ONCE // (length * candidates))

    def numbers_held(self, rows: int, positions: int) -> int:
        """How many numbers `newest` holds for each candidate at once."""
        return rows


class CosineHead(DotProductHead):
    """score_t(c) = cos(h_t, e_c) / temperature: how popular an item is shows in no length.

    Args:
        temperature: above 0; .05 is usual with losses over many candidates.
    """

    def __init__(self, temperature: float) -> None:
        super().__init__()
        self._temperature = temperature

    def represent_history(self, states: Tensor, memory: Tensor) -> HistoryRepresentation:
        """See `DotProductHead`."""
        return (directions(states) / self._temperature,)

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """See `DotProductHead`."""
        return (directions(embeddings),)


class MixtureOfLogitsHead(nn.Module):
    """A mixture of cosines, which history and candidate both weigh.

    Both sides are seen in P ways, f_i(h) and g_j(e), vectors of length 1:

        s_ij = cos(f_i(h_t), g_j(e_c)) / temperature
        score_t(c) = Σ_ij π_ij s_ij,  π = softmax_ij(A_ij(h_t) B_ij(e_c) + W_ij(e_c) s_ij)

    Source: Zhai et al. 2023, https://arxiv.org/abs/2306.04039 (mixture of logits). A
    weight of each s_ij stands in place of their network, which every position asks for every item.

    Args:
        components: P; the head costs about P² dot products of ``component_dim`` numbers.
        component_dim: width of f and g.
        temperature: above 0.
    """

    reads_one_position = True
    reads_older_states = False

    def __init__(
        self, embedding_dim: int, components: int, component_dim: int, temperature: float
    ) -> None:
        super().__init__()
        self.components = components
        self.temperature = temperature
        pairs = components**2
        self.of_history = nn.Linear(embedding_dim, components * component_dim)
        self.of_candidate = nn.Linear(embedding_dim, components * component_dim)
        self.history_gate = nn.Linear(embedding_dim, pairs)
        self.candidate_gate = nn.Linear(embedding_dim, 2 * pairs)

    def represent_history(self, states: Tensor, memory: Tensor) -> HistoryRepresentation:
        """See `DotProductHead`; the P vectors one after the other [B, L, P · d], A [B, L, P²]."""
        vectors = self._ways(self.of_history(states)) / self.temperature
        return vectors.flatten(-2), self.history_gate(states)

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """See `DotProductHead`; [C, P · d], and B with W [C, 2 P²]; or with a first dimension."""
        vectors = self._ways(self.of_candidate(embeddings))
        return vectors.flatten(-2), self.candidate_gate(embeddings)

    def logits(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `DotProductHead`."""
        vectors, gates = (side.flatten(0, 1) for side in history)
        scores: Tensor = self._mixed((vectors, gates), candidates)
        return scores.view(*history[0].shape[:2], -1)

    def paired(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `DotProductHead`."""
        one = tuple(side[..., None, :] for side in history)
        return self._mixed(one, tuple(side[..., None, :] for side in candidates))[..., 0, 0]

    def newest(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Tensor:
        """See `DotProductHead`."""
        last = tuple(last_states(side, lengths) for side in history)
        if candidates[0].dim() == 2:
            return self._mixed(last, candidates)
        return self._mixed(tuple(side[:, None] for side in last), candidates)[:, 0]

    def recent(
        self, history: HistoryRepresentation, lengths: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """See `DotProductHead`."""
        return _last_alone(history, lengths)

    def chunk_rows(self, length: int, candidates: int) -> int:
        """See `DotProductHead`."""
        return max(1, _LOGITS_AT_ONCE // (length * candidates * self.components**2))

    def numbers_held(self, rows: int, positions: int) -> int:
        """See `DotProductHead`."""
        return rows * self.components**2

    def _mixed(self, history: tuple[Tensor, ...], candidates: CandidateRepresentation) -> Tensor:
        """Scores [..., N, C] of sides [..., N, P · d] and [..., C, P · d] and their gates."""
        ways = [side.chunk(self.components, dim=-1) for side in (history[0], candidates[0])]
        cosines = torch.stack([one @ other.mT for one in ways[0] for other in ways[1]])
        own, weights = candidates[1].movedim(-1, 0)[..., None, :].chunk(2)
        gates = history[1].movedim(-1, 0)[..., None] * own + weights * cosines
        return (torch.softmax(gates, dim=0) * cosines).sum(dim=0)

    def _ways(self, x: Tensor) -> Tensor:
        """[..., P · d] to [..., P, d] of length 1."""
        return directions(x.unflatten(-1, (self.components, -1)))


def directions(x: Tensor) -> Tensor:
    """Scale to length 1 along the last dimension, in float32 at least."""
    return F.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


def dot_products(
    history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
) -> Tensor:
    """Scores [B, C] of h · e at each history's last item."""
    scores: Tensor = last_states(history[0], lengths)[:, None] @ candidates[0].mT
    return scores[:, 0]


def _last_alone(
    history: HistoryRepresentation, lengths: Tensor
) -> tuple[HistoryRepresentation, Tensor]:
    """Each history's last position as a history of one."""
    last = tuple(last_states(side, lengths)[:, None] for side in history)
    return last, torch.ones_like(lengths)
