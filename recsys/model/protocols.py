"""What training, scoring and serving may call of a head and of a model.

Letters of shapes: B histories, L positions, D the
embedding, C candidates, I items of the catalogue, H attention heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import torch
from torch import Tensor, nn

from recsys.model.item_embeddings import ItemFeatureEmbeddings
from recsys.model.model_inputs import ModelInputs, TimesRead

HistoryRepresentation = tuple[Tensor, ...]
"""Tensors whose first dimension is B and whose second-last is L."""
LastRepresentation = tuple[Tensor, ...]
"""Tensors whose first dimension is B: what scoring at the last item of each history needs. The
first one is the state there, [B, D]."""
CandidateRepresentation = tuple[Tensor, ...]
"""Tensors whose second-last dimension is the number of candidates: shared by all histories, or with
a first dimension B, where each history has its own."""
KVSource = Literal["items", "states", "both"]
"""The source of a head's keys and values: item embeddings, encoder states or both."""


@dataclass(frozen=True, slots=True)
class HeadAttention:
    """What the attention of a head adds to the scores at the last item, purchase by purchase."""

    contributions: Tensor
    """[B, L, C]: what each purchase adds to each candidate's score; 0 on padding."""
    rest: Tensor
    """[B, C]: the rest of the score, such as the dot product of the last state and candidate."""


class Head(Protocol):
    """How hidden states and candidates become scores.

    Histories and candidates are represented separately, once per batch. `logits` then joins the two
    at every position, chunk by chunk in training; `score_last` joins them at the last position
    only, which is all that scoring needs.
    """

    @property
    def kv_source(self) -> KVSource | None:
        """The source of the keys and values of the head's attention over the history.

        If None, the head has no attention: the scores at a position depend on the state there only.
        If "items", they also depend on the item embeddings up to that position, but on no earlier
        state.
        """
        ...

    def represent_history(self, states: Tensor, embedded: Tensor) -> HistoryRepresentation:
        """Represent histories by hidden states [B, L, D] and input embeddings [B, L, D].

        Unless keys and values are made of states, ``states`` may hold the last one only, [B, 1, D];
        `select_last` is then all that the representation is good for.
        """
        ...

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """Represent candidates by their embeddings, shared [C, D] or of each history [B, C, D].

        Each candidate by its own only: a process may represent a share of the catalogue.
        """
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

    def attention(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> HeadAttention | None:
        """The attention at the last item of histories of lengths [B]; None if there is none."""
        ...

    def chunk_rows(self, length: int, candidates: int, device: torch.device) -> int:
        """The number of sequences of this length whose `logits` training best makes at once."""
        ...

    def elements_per_candidate(self, last: LastRepresentation) -> int:
        """The number of elements that `score_last` holds in memory for each candidate."""
        ...


class Items(Protocol):
    """The embeddings of the items: `ItemEmbeddings`, or a share of them in each process."""

    embedding_dim: int
    """D."""

    @property
    def weight(self) -> Tensor:
        """The rows of this process: all [I + 1, D], or its share."""
        ...

    @property
    def features(self) -> ItemFeatureEmbeddings | None:
        """Embeds the features of the items; None if they have none."""
        ...

    def __call__(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of item tokens [...]."""
        ...

    def table(self) -> Tensor:
        """The embeddings of PAD and all items [I + 1, D]."""
        ...


class Model(nn.Module):
    """A model that can be trained, and scores the items of a catalogue."""

    num_items: int
    """The size of the catalogue, I: item tokens are 1 to I."""
    items: Items
    """The embeddings of the items, as inputs and as candidates."""
    head: Head
    """The head that turns representations into scores."""
    times: TimesRead = "none"
    """Which times the model reads."""

    if TYPE_CHECKING:

        def __call__(self, inputs: ModelInputs) -> HistoryRepresentation:
            """See `forward`."""

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        """Represent histories: at every item, or [B, 1, ...] if only the end can be scored at.

        Raises:
            ValueError: the model reads features, or times, and there are none.
        """
        raise NotImplementedError

    def encode_last(self, inputs: ModelInputs) -> LastRepresentation:
        """Encode what `Head.score_last` needs, with less work than calling the model.

        Raises:
            ValueError: the model reads features, or times, and there are none.
        """
        return self.head.select_last(self(inputs), inputs.lengths)

    def teacher_forced(
        self, inputs: ModelInputs, targets: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """Represent histories at n positions, for the n targets [B, n] that are predicted there.

        Features and times are those of the items: none of a target are read.

        Returns:
            The representation, its L being n; and item tokens [B, N] of which the first
            N - n + 1 + t were seen before target t. Here each item's successor is its target.
        """
        return self(inputs), inputs.items
