"""The mean of several models: its scores are the mean of theirs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn

from recsys.model.model_inputs import ModelInputs, TimesRead
from recsys.model.protocols import (
    CandidateRepresentation,
    Head,
    HeadAttention,
    HistoryRepresentation,
    Items,
    KVSource,
    LastRepresentation,
    Model,
)

_TIMES: tuple[TimesRead, ...] = ("none", "past", "request")
"""What a model reads of times, from least to most."""


class AveragedModel(Model):
    """score(c) = 1/M Σ_m score_m(c), of M models that were trained one by one.

    The scores of a model that is trained with a softmax are logits: their mean ranks as the
    geometric mean of the probabilities of the members. A history is read once by each member.

    Args:
        members: models of the same catalogue, which read as many items of a history and no
            features.
    """

    def __init__(self, members: Sequence[Model]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._models = list(members)
        self.num_items = members[0].num_items
        self.items = AveragedItems([member.items for member in members])
        self.head = AveragedHead(members)
        self.times = max((member.times for member in members), key=_TIMES.index)

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        """The representations of all members, one after the other; see `Model.forward`."""
        return tuple(part for member in self._models for part in member(inputs))

    def encode_last(self, inputs: ModelInputs) -> LastRepresentation:
        """See `Model.encode_last`."""
        return joined_last([member.encode_last(inputs) for member in self._models])

    def teacher_forced(
        self, inputs: ModelInputs, targets: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """Refuse: the members are trained one by one.

        Raises:
            TypeError: always.
        """
        raise TypeError("the members of an averaged model are trained one by one")


class AveragedItems:
    """The embeddings of the members, concatenated: [..., D] with D = Σ_m D_m.

    Not a module: the weights belong to the members.
    """

    features: None = None
    """Members read no features."""

    def __init__(self, members: Sequence[Items]) -> None:
        self._members = members
        self.embedding_dim = sum(items.embedding_dim for items in members)

    @property
    def weight(self) -> Tensor:
        """The rows of the first member, which say on which device all are."""
        return self._members[0].weight

    def __call__(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of item tokens [...]."""
        return torch.cat([items(tokens) for items in self._members], dim=-1)

    def table(self) -> Tensor:
        """The embeddings of PAD and all items [I + 1, D]."""
        return torch.cat([items.table() for items in self._members], dim=-1)


class _Parts(NamedTuple):
    """How many tensors the representations of a member have."""

    history: int
    candidates: int
    last: int


class AveragedHead:
    """The mean of the scores of the members' heads.

    A representation has the tensors of all members, one member after the other. Those of the last
    item and of candidates begin with one more: the members' states, divided by M, and their
    candidates, each concatenated. The dot product of the two is the mean of the members' dot
    products, so that what takes the first stage of target attention from a model takes it from a
    mean of models too.

    Args:
        members: the models whose heads they are.
    """

    def __init__(self, members: Sequence[Model]) -> None:
        self._heads = [member.head for member in members]
        self._dims = [member.items.embedding_dim for member in members]
        self._parts = [
            _count_parts(member.head, member.items.embedding_dim, member.items.weight.device)
            for member in members
        ]

    @property
    def kv_source(self) -> KVSource | None:
        """What the keys and values of the members' attention are made of, taken together."""
        found = {head.kv_source for head in self._heads} - {None}
        return "both" if len(found) > 1 else next(iter(found), None)

    def represent_history(self, states: Tensor, embedded: Tensor) -> HistoryRepresentation:
        """The representations of all members, of states and embeddings [B, L, D] of all."""
        sides = zip(self._split(states), self._split(embedded), strict=True)
        return tuple(
            part
            for head, side in zip(self._heads, sides, strict=True)
            for part in head.represent_history(*side)
        )

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """The first parts of all members, concatenated; then those of each member."""
        found = [
            head.represent_candidates(part)
            for head, part in zip(self._heads, self._split(embeddings), strict=True)
        ]
        first = torch.cat([parts[0] for parts in found], dim=-1)
        return (first, *(part for parts in found for part in parts))

    def logits(self, history: HistoryRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `Head.logits`."""
        sides = zip(self._histories(history), self._candidates(candidates), strict=True)
        return _mean([head.logits(*s) for head, s in zip(self._heads, sides, strict=True)])

    def score_targets(
        self, history: HistoryRepresentation, targets: CandidateRepresentation
    ) -> Tensor:
        """See `Head.score_targets`."""
        sides = zip(self._histories(history), self._candidates(targets), strict=True)
        return _mean([head.score_targets(*s) for head, s in zip(self._heads, sides, strict=True)])

    def select_last(self, history: HistoryRepresentation, lengths: Tensor) -> LastRepresentation:
        """See `joined_last`."""
        found = zip(self._heads, self._histories(history), strict=True)
        return joined_last([head.select_last(parts, lengths) for head, parts in found])

    def score_last(self, last: LastRepresentation, candidates: CandidateRepresentation) -> Tensor:
        """See `Head.score_last`."""
        sides = zip(self._lasts(last), self._candidates(candidates), strict=True)
        return _mean([head.score_last(*s) for head, s in zip(self._heads, sides, strict=True)])

    def attention(
        self, history: HistoryRepresentation, candidates: CandidateRepresentation, lengths: Tensor
    ) -> HeadAttention | None:
        """Of all members together; the score of a member without attention is part of the rest."""
        found, rests = [], []
        sides = zip(self._histories(history), self._candidates(candidates), strict=True)
        for head, (read, scored) in zip(self._heads, sides, strict=True):
            attention = head.attention(read, scored, lengths)
            if attention is None:
                rests.append(head.score_last(head.select_last(read, lengths), scored))
            else:
                found.append(attention)
                rests.append(attention.rest)
        if not found:
            return None
        contributions = torch.stack([each.contributions for each in found]).sum(dim=0)
        return HeadAttention(contributions / len(self._heads), _mean(rests))

    def chunk_rows(self, length: int, candidates: int, device: torch.device) -> int:
        """The fewest of any member."""
        return min(head.chunk_rows(length, candidates, device) for head in self._heads)

    def elements_per_candidate(self, last: LastRepresentation) -> int:
        """The most of any member: they score one after the other."""
        sides = zip(self._heads, self._lasts(last), strict=True)
        return max(head.elements_per_candidate(parts) for head, parts in sides)

    def _split(self, embeddings: Tensor) -> Sequence[Tensor]:
        """[..., Σ D_m] to [..., D_m] of each member."""
        return torch.split(embeddings, self._dims, dim=-1)

    def _histories(self, history: HistoryRepresentation) -> list[HistoryRepresentation]:
        return _divided(history, [parts.history for parts in self._parts])

    def _candidates(self, candidates: CandidateRepresentation) -> list[CandidateRepresentation]:
        return _divided(candidates[1:], [parts.candidates for parts in self._parts])

    def _lasts(self, last: LastRepresentation) -> list[LastRepresentation]:
        return _divided(last[1:], [parts.last for parts in self._parts])


def joined_last(members: Sequence[LastRepresentation]) -> LastRepresentation:
    """The states of all members, divided by M and concatenated; then the parts of each member."""
    first = torch.cat([parts[0] for parts in members], dim=-1) / len(members)
    return (first, *(part for parts in members for part in parts))


@torch.no_grad()
def _count_parts(head: Head, dim: int, device: torch.device) -> _Parts:
    """Count the tensors by representing a history of one item, and one candidate."""
    states = torch.zeros(1, 1, dim, device=device)
    candidate = torch.zeros(1, dim, device=device)
    history = head.represent_history(states, states)
    last = head.select_last(history, torch.ones(1, dtype=torch.int64, device=device))
    return _Parts(len(history), len(head.represent_candidates(candidate)), len(last))


def _divided(parts: tuple[Tensor, ...], counts: Sequence[int]) -> list[tuple[Tensor, ...]]:
    """Divide tensors among the members."""
    return [parts[begin:end] for begin, end in pairwise(accumulate(counts, initial=0))]


def _mean(scores: Sequence[Tensor]) -> Tensor:
    return torch.stack(list(scores)).mean(dim=0)
