"""The mean of several models: its scores are the mean of theirs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.encoder import TimesRead
from recsys.model.heads import (
    CandidateRepresentation,
    Head,
    HistoryRepresentation,
    last_position,
)
from recsys.model.models import Model, ModelInputs

_TIMES: tuple[TimesRead, ...] = ("none", "past", "request")


class AveragedModel(Model):
    """score(c) = 1/M Σ_m score_m(c), of M models that were trained one by one.

    Logits of a softmax: their mean ranks as the geometric mean of the members' probabilities. The
    members read as many items of a history, and no features.
    """

    def __init__(self, members: Sequence[Model]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._models = list(members)
        self.items = AveragedItems(members)  # type: ignore[assignment]
        widths = [member.items.embedding_dim for member in members]
        self.head = AveragedHead([member.head for member in members], widths)
        self.times = max((member.times for member in members), key=_TIMES.index)

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        """Represent histories for scoring at the last item, [B, 1, ...]."""
        members = [member.at_last(inputs) for member in self._models]
        states = [last_position(member.states, inputs.lengths) for member in members]
        joined = (torch.cat(states, dim=-1) / len(members))[:, None]
        attending = [member for member in members if member.keys.shape[1]]
        if not attending:
            return self.head.represent_history(joined, joined)
        keys = _joined_heads([member.keys for member in attending], dim=1)
        values = _joined_heads([member.values for member in attending], dim=1)
        return HistoryRepresentation(joined, keys, values)


class AveragedItems:
    """The embeddings of the members, concatenated: [..., D] with D = Σ_m D_m."""

    features: None = None

    def __init__(self, members: Sequence[Model]) -> None:
        self._members = [member.items for member in members]
        self.embedding_dim = sum(items.embedding_dim for items in self._members)
        self.num_items = self._members[0].num_items

    @property
    def weight(self) -> Tensor:
        """The rows of the first member: they tell the device."""
        return self._members[0].weight

    def __call__(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of item tokens [...]."""
        return torch.cat([items(tokens) for items in self._members], dim=-1)

    def table(self) -> Tensor:
        """The embeddings of PAD and all items [I + 1, D]."""
        return torch.cat([items.table() for items in self._members], dim=-1)


class AveragedHead(Head):
    """The mean of the scores of the members' heads: target attention with the heads of them all.

    States and embeddings are concatenated, the states divided by M. The attention heads stand one
    after the other, the narrower ones filled up with zeros; value queries are divided by M.
    """

    def __init__(self, members: Sequence[Head], widths: Sequence[int]) -> None:
        self._members, self._widths = members, list(widths)
        self._attending = [head for head in self._members if head.attends]
        self.poolings = [pooling for head in self._attending for pooling in head.poolings]

    @property
    def dot_product(self) -> Head:
        """See `Head.dot_product`."""
        return AveragedHead([head.dot_product for head in self._members], self._widths)

    @property
    def decays(self) -> Tensor:  # type: ignore[override]
        """λ of each attention head [H]."""
        return torch.cat([head.decays for head in self._attending])

    @property
    def temperatures(self) -> Tensor:  # type: ignore[override]
        """κ of each attention head [H]."""
        return torch.cat([head.temperatures for head in self._attending])

    def represent_candidates(self, embeddings: Tensor) -> CandidateRepresentation:
        """What all members make of their embeddings, and their queries, one after the other."""
        own = torch.split(embeddings, self._widths, dim=-1)
        members = [
            head.represent_candidates(columns)
            for head, columns in zip(self._members, own, strict=True)
        ]
        embeddings = torch.cat([member.embeddings for member in members], dim=-1)
        members = [member for member in members if member.queries.shape[-3]]
        if not members:
            return super().represent_candidates(embeddings)
        value_queries = _joined_heads([member.value_queries for member in members], dim=-3)
        queries = _joined_heads([member.queries for member in members], dim=-3)
        return CandidateRepresentation(embeddings, queries, value_queries / len(self._members))


def _joined_heads(members: Sequence[Tensor], dim: int) -> Tensor:
    """Concatenate the attention heads of members, whose widths may differ."""
    width = max(member.shape[-1] for member in members)
    return torch.cat([F.pad(member, (0, width - member.shape[-1])) for member in members], dim)
