"""The next-item model: item embeddings, a causal encoder and a head."""

from __future__ import annotations

import math

from torch import Tensor

from recsys.model.encoder import Encoder
from recsys.model.feature_embeddings import FeatureEmbeddings
from recsys.model.hstu import HSTUEncoder
from recsys.model.item_embeddings import ItemEmbeddings
from recsys.model.model_inputs import ModelInputs
from recsys.model.protocols import Head, HistoryRepresentation, LastRepresentation, Model


class NextItemModel(Model):
    """Represents a history at every position, for the head to score the next item there.

    Row 0 of the item embeddings is PAD: it stays zero and is never recommended.

    Features of interactions and of users are added to the input embeddings, those of a user at
    every position. Through the residual connections they reach the state that candidates are scored
    with, at whatever position, and every attention layer on the way can use them.

    Args:
        items: the embeddings of the items; their rows are drawn here.
        encoder: maps input embeddings to states.
        head: maps states and input embeddings to scores.
        inputs: embeds the features of interactions and users.
    """

    items: ItemEmbeddings

    def __init__(
        self,
        items: ItemEmbeddings,
        encoder: Encoder | HSTUEncoder,
        head: Head,
        inputs: FeatureEmbeddings | None = None,
    ) -> None:
        super().__init__()
        self.items = items
        self.inputs = inputs
        self.num_items = items.num_items
        self.encoder = encoder
        self.times = encoder.times
        self.head = head
        items.draw(std=0.02)

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        """Represent histories at every item; see `Model.forward`."""
        embedded = self._embed(inputs)
        states = self.encoder(embedded, inputs.lengths, inputs.times)
        return self.head.represent_history(states, embedded)

    def encode_last(self, inputs: ModelInputs) -> LastRepresentation:
        """See `Model.encode_last`."""
        if self.head.kv_source in {"states", "both"}:  # of all positions
            history = self(inputs)
        else:
            embedded = self._embed(inputs)
            last = self.encoder.encode_last(embedded, inputs.lengths, inputs.times)
            history = self.head.represent_history(last[:, None], embedded)
        return self.head.select_last(history, inputs.lengths)

    def _embed(self, inputs: ModelInputs) -> Tensor:
        """The inputs of the encoder, which are also a source of the head's keys [B, L, D]."""
        embedded: Tensor = self.items(inputs.items)
        if self.inputs is not None:
            if inputs.features is None:
                raise ValueError("this model reads features of its inputs, and there are none")
            embedded = embedded + self.inputs(*inputs.features)
        return embedded * math.sqrt(self.items.embedding_dim)
