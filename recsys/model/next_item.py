"""The model of the next item: item embeddings, a causal encoder and a head."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from recsys.model.encoder import Encoder
from recsys.model.feature_embeddings import FeatureEmbeddings
from recsys.model.heads import DotProductHead, HistoryRepresentation, MixtureOfLogitsHead
from recsys.model.hstu import HSTUEncoder, TimesRead
from recsys.model.item_embeddings import ItemEmbeddings, ItemFeatureEmbeddings
from recsys.model.model_inputs import Inputs
from recsys.model.target_attention import TargetAttentionHead

Head = DotProductHead | MixtureOfLogitsHead | TargetAttentionHead


class NextItemModel(nn.Module):
    """Item tokens in; what the head needs to score candidates out.

    Row 0 of the item embedding is PAD: it stays zero and is never a candidate worth scoring.

    Features of interactions and of users are added to the input embeddings, those of a user at
    every position: so they reach, through the residual connections, the state that candidates are
    scored by, wherever it is, and each attention on the way can heed them.

    Args:
        num_items: those that have embeddings of their own.
        embedding_dim: D.
        encoder: input embeddings to states.
        head: states and input embeddings to scores.
        features: what those of the items add to their embeddings.
        inputs: what those of interactions and users add to the input embeddings.
    """

    def __init__(
        self,
        num_items: int,
        embedding_dim: int,
        encoder: Encoder | HSTUEncoder,
        head: Head,
        features: ItemFeatureEmbeddings | None = None,
        inputs: FeatureEmbeddings | None = None,
    ) -> None:
        super().__init__()
        self.items = ItemEmbeddings(num_items, embedding_dim, features)
        self.inputs = inputs
        self.num_items = self.items.num_items
        self.encoder = encoder
        self.head = head
        nn.init.normal_(self.items.weight, std=0.02)
        with torch.no_grad():
            self.items.weight[0] = 0

    @property
    def times(self) -> TimesRead:
        """What the encoder reads of times."""
        return self.encoder.times if isinstance(self.encoder, HSTUEncoder) else "none"

    def forward(self, inputs: Inputs) -> HistoryRepresentation:
        """The history side of the head.

        Raises:
            ValueError: there are no features, or times, and they are to be read.
        """
        embedded = self._embed(inputs)
        states = self.encoder(embedded, inputs.lengths, inputs.times)
        return self.head.represent_history(states, embedded)

    def newest(self, inputs: Inputs) -> HistoryRepresentation:
        """`forward`, right for scores at the last item of each history alone, and cheaper."""
        if self.head.reads_older_states:
            return self.forward(inputs)
        embedded = self._embed(inputs)
        newest = self.encoder.newest(embedded, inputs.lengths, inputs.times)
        return self.head.represent_history(newest[:, None].expand_as(embedded), embedded)

    def teacher_forced(
        self, inputs: Inputs, targets: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """What is foretold of the targets [B, L] that follow each of the items [B, L].

        Features, too, are of the items: nothing is read of a target.

        Returns:
            The history side; and item tokens [B, L] whose first 1 + t were had before target t.
        """
        return self(inputs), inputs.items

    def _embed(self, inputs: Inputs) -> Tensor:
        """What the encoder reads, and the head's memory [B, L, D]."""
        embedded: Tensor = self.items(inputs.items)
        if self.inputs is not None:
            if inputs.features is None:
                raise ValueError("this model reads features of its inputs, and there are none")
            embedded = embedded + self.inputs(*inputs.features)
        return embedded * math.sqrt(self.items.embedding_dim)
