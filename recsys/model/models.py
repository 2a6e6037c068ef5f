"""What a model is; models of an encoder and a head, a factorisation machine, means of models."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.attention import padding_mask
from recsys.model.embeddings import FeatureEmbeddings, FeatureValues, ItemEmbeddings
from recsys.model.encoder import Dropout, Encoder, TimesRead
from recsys.model.heads import (
    AveragedHead,
    DotProductHead,
    Head,
    HistoryRepresentation,
    LastRepresentation,
    joined_heads,
)


class ModelInputs(NamedTuple):
    """Histories with everything that any model reads; each model ignores what it does not use."""

    items: Tensor
    """Item tokens [B, L], right-padded with 0; a 0 inside a sequence is a masked item."""
    lengths: Tensor
    """Real tokens per row [B]."""
    times: Tensor | None = None
    """int64 [B, L + 1], in one unit: the time of each interaction and, after the last one, the time
    of the next request; None if unknown."""
    features: FeatureValues = ()
    """Of each interaction and of its user [B, L, ...]."""


class Model(nn.Module):
    """A model that can be trained, and scores the items of a catalogue."""

    items: ItemEmbeddings
    """As inputs and as candidates."""
    head: Head
    times: TimesRead = "none"

    if TYPE_CHECKING:

        def __call__(self, inputs: ModelInputs) -> HistoryRepresentation: ...

    @property
    def num_items(self) -> int:
        """The size of the catalogue, I: item tokens are 1 to I."""
        return self.items.num_items

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        """Represent histories: at every item, or [B, 1, ...] if only the end can be scored at.

        Raises:
            ValueError: the model reads features, or times, and there are none.
        """
        raise NotImplementedError

    def encode_last(self, inputs: ModelInputs) -> LastRepresentation:
        """Encode what `Head.score_last` needs; some encoders compute the last position only."""
        return self.head.select_last(self(inputs), inputs.lengths)

    def teacher_forced(
        self, inputs: ModelInputs, targets: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """Represent histories at n positions, for the n targets [B, n] that are predicted there.

        Here each item's successor is its target.

        Returns:
            The representation, its L being n; and item tokens [B, N] of which the first
            N - n + 1 + t were seen before target t.
        """
        return self(inputs), inputs.items

    def embed(self, items: Tensor) -> Tensor:
        """The embeddings of item tokens [...] as encoders read them: scaled by √D, [..., D]."""
        return self.items(items) * math.sqrt(self.items.embedding_dim)


class NextItemModel(Model):
    """Represents a history at every position, for the head to score the next item there.

    Features of interactions and of users (``inputs``) are added to the input embeddings, those of a
    user at every position. The rows of ``items`` are drawn here.
    """

    def __init__(
        self,
        items: ItemEmbeddings,
        encoder: Encoder,
        head: Head,
        inputs: FeatureEmbeddings | None = None,
    ) -> None:
        super().__init__()
        self.items, self.inputs = items, inputs
        self.encoder, self.times = encoder, encoder.times
        self.head = head
        items.draw()

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        embedded = self._embedded(inputs)
        states = self.encoder(embedded, inputs.lengths, inputs.times)
        return self.head.represent_history(states, embedded)

    def encode_last(self, inputs: ModelInputs) -> LastRepresentation:
        embedded = self._embedded(inputs)
        last = self.encoder.encode_last(embedded, inputs.lengths, inputs.times)
        history = self.head.represent_history(last[:, None], embedded, inputs.lengths)
        return self.head.select_last(history, inputs.lengths)

    def _embedded(self, inputs: ModelInputs) -> Tensor:
        """The inputs of the encoder, which are also those of the head's keys [B, L, D]."""
        embedded: Tensor = self.items(inputs.items)
        if self.inputs is not None:
            if not inputs.features:
                raise ValueError("this model reads features of its inputs, and there are none")
            embedded = embedded + self.inputs(*inputs.features)
        return embedded * math.sqrt(self.items.embedding_dim)


class MaskedItemModel(Model):
    """BERT4Rec: maps item tokens, some of them masked, to the states at the masked ones.

    A token 0 (PAD) inside a sequence is a masked item, where the encoder, which looks both ways,
    finds a learned vector. Source: Sun et al. 2019, https://arxiv.org/abs/1904.06690, without the
    projection and the biases of its output layer.
    """

    def __init__(self, num_items: int, embedding_dim: int, encoder: Encoder) -> None:
        super().__init__()
        self.items = ItemEmbeddings(num_items, embedding_dim)
        self.mask = nn.Parameter(torch.empty(embedding_dim))
        self.encoder = encoder
        self.head = DotProductHead()
        nn.init.normal_(self.mask, std=0.02)
        self.items.draw()

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        items, lengths = F.pad(inputs.items, (0, 1)), inputs.lengths + 1  # a mask at the end
        last = self.encoder.encode_last(self._embedded(items, lengths), lengths)[:, None]
        return self.head.represent_history(last, last)

    def teacher_forced(
        self, inputs: ModelInputs, targets: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """The states at the masked items [B, n, D], from the left; all others were seen before."""
        items, lengths = inputs.items, inputs.lengths
        states, count = self.encoder(self._embedded(items, lengths), lengths), targets.shape[1]
        order = _is_masked(items, lengths).int().argsort(dim=1, descending=True, stable=True)
        masked = order[:, :count, None].expand(-1, -1, states.shape[-1])
        states = states.gather(1, masked)
        return self.head.represent_history(states, states), F.pad(items, (0, count - 1))

    def _embedded(self, items: Tensor, lengths: Tensor) -> Tensor:
        masked = _is_masked(items, lengths)[..., None]
        embedded = torch.where(masked, self.mask, self.items(items))
        return embedded * math.sqrt(self.items.embedding_dim)


def _is_masked(items: Tensor, lengths: Tensor) -> Tensor:
    return (items == 0) & padding_mask(lengths, items.shape[1])


class FactorisationMachine(Model):
    """score_t(c) = w_c + v_c · (a_last + Σ_j b_j / √t), over the items j up to position t.

    A factorisation machine of degree two adds the inner products of all pairs of its features. Here
    they are the candidate, the last item, and the bag of all items of the history (each 1 / √t);
    the terms without the candidate drop out. Without the last item it is FISM. Dropout is of the
    last item's and of the bag's embeddings.

    Sources: Rendle 2010, https://doi.org/10.1109/ICDM.2010.127; Kabbur et al. 2013 (FISM),
    https://doi.org/10.1145/2487575.2487589
    """

    def __init__(self, num_items: int, embedding_dim: int, dropout: float) -> None:
        super().__init__()
        # The candidate's weight is one more feature of its vector, multiplied with a one.
        self.items = ItemEmbeddings(num_items, embedding_dim + 1)
        self.last = ItemEmbeddings(num_items, embedding_dim)
        self.bag = ItemEmbeddings(num_items, embedding_dim)
        self.dropout = Dropout(dropout)
        self.head = DotProductHead()
        for table in (self.items, self.last, self.bag):
            table.draw(std=0.05)
        with torch.no_grad():
            self.items.weight[:, -1] = 0

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        items = inputs.items
        bag = self.dropout(self.bag(items)).cumsum(dim=1)
        count = torch.arange(1, items.shape[1] + 1, dtype=bag.dtype, device=items.device)
        bag = bag / count.sqrt()[:, None]
        states = self.dropout(self.last(items)) + bag
        states = torch.cat([states, torch.ones_like(states[..., :1])], dim=-1)
        return self.head.represent_history(states, states)


class AveragedModel(Model):
    """score(c) = 1/M Σ_m score_m(c), of M models that were trained one by one.

    Logits of a softmax: their mean ranks as the geometric mean of the members' probabilities. The
    members read as many items of a history, and the same features of items.
    """

    def __init__(self, members: Sequence[Model]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self._models = list(members)
        self.items = AveragedItems(members)  # type: ignore[assignment]
        widths = [member.items.embedding_dim for member in members]
        self.head = AveragedHead([member.head for member in members], widths)
        self.times = max((member.times for member in members), key=get_args(TimesRead).index)

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        """Represent histories for scoring at the last item, [B, 1, ...]."""
        members = [member.encode_last(inputs) for member in self._models]
        joined = (torch.cat([member.state for member in members], dim=-1) / len(members))[:, None]
        members = [member for member in members if member.keys.shape[1]] or members[:1]
        keys = joined_heads([member.keys for member in members], dim=1)
        values = joined_heads([member.values for member in members], dim=1)
        return HistoryRepresentation(joined, keys, values)

    def teacher_forced(
        self, inputs: ModelInputs, targets: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """The states of members that are dot products, joined."""
        states = torch.cat([member(inputs).states for member in self._models], dim=-1)
        return self.head.represent_history(states / len(self._models), states), inputs.items


class AveragedItems:
    """The embeddings of the members, concatenated: [..., D] with D = Σ_m D_m."""

    def __init__(self, members: Sequence[Model]) -> None:
        self._members = [member.items for member in members]
        self.features = self._members[0].features
        for items in self._members:
            items.clear_unread()
        self.embedding_dim = sum(items.embedding_dim for items in self._members)
        self.num_items = self._members[0].num_items

    @property
    def weight(self) -> Tensor:
        """The rows of the first member: they tell the device."""
        return self._members[0].weight

    def __call__(self, tokens: Tensor) -> Tensor:
        return torch.cat([items(tokens) for items in self._members], dim=-1)

    def table(self) -> Tensor:
        return torch.cat([items.table() for items in self._members], dim=-1)
