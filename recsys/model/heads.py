"""Heads: how hidden states and candidates become scores. The protocol, and the dot product.

Letters of shapes: B histories, L positions, D the embedding, C candidates, I items of the
catalogue, H attention heads, 0 of them where a head has no attention.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from recsys.model.attention import last_states

KVSource = Literal["items", "states", "both"]
"""The source of a head's keys and values: item embeddings, encoder states or both."""


class HistoryRepresentation(NamedTuple):
    """What a head makes of histories."""

    states: Tensor
    """[B, L, D]; or only the last of each, [B, 1, D]."""
    keys: Tensor
    """Of the purchases, [B, H, L, d]."""
    values: Tensor
    """[B, H, L, d]."""


class LastRepresentation(NamedTuple):
    """What scoring at the last item of each history needs."""

    state: Tensor
    """[B, D]."""
    keys: Tensor
    """Of the latest purchases, [B, H, l, d]."""
    values: Tensor
    """[B, H, l, d]."""
    lengths: Tensor
    """How many of them are real, [B]."""


class CandidateRepresentation(NamedTuple):
    """What a head makes of candidates, each by itself: shared, or of each history [B, ...]."""

    embeddings: Tensor
    """[C, D]."""
    queries: Tensor
    """[H, C, d]."""
    value_queries: Tensor
    """[H, C, d]."""


class Head(Protocol):
    """How hidden states and candidates become scores.

    Histories and candidates are represented separately, once per batch. `logits` then joins the two
    at every position, chunk by chunk in training; `score_last` joins them at the last position
    only, which is all that scoring needs.
    """

    @property
    def kv_source(self) -> KVSource | None:
        """The source of the keys and values of the head's attention; None without attention.

        Without it the scores at a position depend on the state there only. If "items", they also
        depend on the item embeddings up to that position, but on no earlier state.
        """
        ...

    def represent_history(self, states: Tensor, embedded: Tensor) -> HistoryRepresentation:
        """Represent histories by hidden states [B, L, D] and input embeddings [B, L, D].

        Unless keys and values are made of states, ``states`` may hold the last one only, [B, 1, D].
        """
        ...

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """Represent candidates by their embeddings, shared [C, D] or of each history [B, C, D]."""
        ...

    def logits(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """Scores [B, L, C] of shared candidates at every position, from the items up to there."""
        ...

    def score_targets(
        self, history: HistoryRepresentation, targets: CandidateRepresentation
    ) -> Tensor:
        """Scores [B, L] of one candidate at each position, represented from [B, L, D]."""
        ...

    def select_last(self, history: HistoryRepresentation, lengths: Tensor) -> LastRepresentation:
        """Select what `score_last` needs, for histories of lengths [B] ≥ 1."""
        ...

    def score_last(self, last: LastRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """Scores [B, C] at each history's last item, of shared candidates or of its own."""
        ...

    def contributions(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Tensor:
        """What each purchase adds to the scores at the last item, [B, L, C]; 0 on padding.

        The rest of a score is the dot product of the last state and the candidate.
        """
        ...

    def chunk_rows(self, length: int, candidates: int, device: torch.device) -> int:
        """The number of sequences of this length whose `logits` training best makes at once."""
        ...

    def elements_per_candidate(self, last: LastRepresentation) -> int:
        """The number of elements that `score_last` holds in memory for each candidate."""
        ...


class DotProductHead(nn.Module):
    """score_t(c) = h_t · e_c: the head of SASRec."""

    kv_source: KVSource | None = None

    def represent_history(self, states: Tensor, embedded: Tensor) -> HistoryRepresentation:
        """The states."""
        nothing = states.new_empty(len(states), 0, embedded.shape[1], 0)
        return HistoryRepresentation(states, nothing, nothing)

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """The embeddings."""
        nothing = embeddings.new_empty(*embeddings.shape[:-2], 0, embeddings.shape[-2], 0)
        return CandidateRepresentation(embeddings, nothing, nothing)

    def logits(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `Head.logits`."""
        return history.states @ candidates.embeddings.T

    def score_targets(
        self, history: HistoryRepresentation, targets: CandidateRepresentation
    ) -> Tensor:
        """See `Head.score_targets`."""
        return (history.states * targets.embeddings).sum(dim=-1)

    def select_last(self, history: HistoryRepresentation, lengths: Tensor) -> LastRepresentation:
        """The last state."""
        states, keys, values = history
        return LastRepresentation(last_position(states, lengths), keys, values, lengths)

    def score_last(self, last: LastRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `Head.score_last`."""
        return dot_products(last, candidates)

    def contributions(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> Tensor:
        """Nothing: zeros."""
        width, count = history.keys.shape[2], candidates.embeddings.shape[-2]
        return history.states.new_zeros(len(lengths), width, count)

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


def logits_per_chunk(device: torch.device) -> int:
    """The number of logits that training makes at once on a device.

    On a CPU 8 MiB of bf16: what fits into its cache is not written to memory. On a GPU 256 MiB,
    which needs large products; a launch costs the same whatever its size. That is not measured yet.
    """
    return 1 << 22 if device.type == "cpu" else 1 << 27
