"""The masked-item model (BERT4Rec): it predicts masked items, and so the one after the last."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.attention import last_states
from recsys.model.encoder import Encoder
from recsys.model.heads import DotProductHead
from recsys.model.item_embeddings import ItemEmbeddings
from recsys.model.model_inputs import ModelInputs
from recsys.model.protocols import HistoryRepresentation, LastRepresentation, Model


class MaskedItemModel(Model):
    """BERT4Rec: maps item tokens, some of them masked, to the states at the masked ones.

    A token 0 (PAD) inside a sequence is a masked item: the encoder, which looks both ways, reads
    the learned vector of the mask there. Row 0 of the item embeddings stays zero and is never
    recommended.

    Args:
        num_items: I.
        embedding_dim: D.
        encoder: not causal, for sequences one item longer than histories.

    Source: Sun et al. 2019, https://arxiv.org/abs/1904.06690, without the projection and the biases
    of its output layer.
    """

    items: ItemEmbeddings

    def __init__(self, num_items: int, embedding_dim: int, encoder: Encoder) -> None:
        super().__init__()
        self.num_items = num_items
        self.items = ItemEmbeddings(num_items, embedding_dim)
        self.mask = nn.Parameter(torch.empty(embedding_dim))
        self.encoder = encoder
        self.head = DotProductHead()
        nn.init.normal_(self.mask, std=0.02)
        self.items.draw(std=0.02)

    def forward(self, inputs: ModelInputs) -> HistoryRepresentation:
        """The state of a masked item after each history, [B, 1, D]."""
        embedded, lengths = self._append_mask_token(inputs)
        return (last_states(self.encoder(embedded, lengths), lengths)[:, None],)

    def encode_last(self, inputs: ModelInputs) -> LastRepresentation:
        """The state of a masked item after each history, [B, D]."""
        return (self.encoder.encode_last(*self._append_mask_token(inputs)),)

    def teacher_forced(
        self, inputs: ModelInputs, targets: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """The states at the masked items of items [B, L], from the left; targets are [B, n].

        Returns:
            The states [B, n, D]; and item tokens [B, L + n - 1] of which the first L + t were seen
            before target t: all that are not masked, whatever t.
        """
        items, lengths = inputs.items, inputs.lengths
        states, count = self.encoder(self._embed(items, lengths), lengths), targets.shape[1]
        order = self._is_masked(items, lengths).int().argsort(dim=1, descending=True, stable=True)
        masked = order[:, :count, None].expand(-1, -1, states.shape[-1])
        return (states.gather(1, masked),), F.pad(items, (0, count - 1))

    def _append_mask_token(self, inputs: ModelInputs) -> tuple[Tensor, Tensor]:
        """The inputs of the encoder [B, L + 1, D], a masked item at the end; and the lengths."""
        items, lengths = F.pad(inputs.items, (0, 1)), inputs.lengths + 1
        return self._embed(items, lengths), lengths

    def _embed(self, items: Tensor, lengths: Tensor) -> Tensor:
        """The inputs of the encoder [B, L, D]."""
        masked = self._is_masked(items, lengths)[..., None]
        embedded = torch.where(masked, self.mask, self.items(items))
        return embedded * math.sqrt(self.items.embedding_dim)

    @staticmethod
    def _is_masked(items: Tensor, lengths: Tensor) -> Tensor:
        positions = torch.arange(items.shape[1], device=items.device)
        return (items == 0) & (positions < lengths[:, None])
