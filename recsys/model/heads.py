"""The dot product of state and candidate: the head of SASRec, and a part of target attention.

See `Head` for the protocol. Target attention has a module of its own.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recsys.model.attention import last_states
from recsys.model.chunk_size import logits_per_chunk
from recsys.model.protocols import (
    CandidateRepresentation,
    HistoryRepresentation,
    KVSource,
    LastRepresentation,
)


class DotProductHead(nn.Module):
    """score_t(c) = h_t · e_c."""

    kv_source: KVSource | None = None

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


def last_position(x: Tensor, lengths: Tensor) -> Tensor:
    """The last real position [B, D] of [B, L, D], or of [B, 1, D] which holds no other."""
    return x[:, 0] if x.shape[1] == 1 else last_states(x, lengths)


def dot_products(last: LastRepresentation, candidates: CandidateRepresentation) -> Tensor:
    """Scores [B, C] of h · e at each history's last item."""
    scores: Tensor = last[0][:, None] @ candidates[0].mT
    return scores[:, 0]
