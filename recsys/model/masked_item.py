"""Some items of a sequence are hidden: what are they? The next item is one behind the last."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.attention import last_states
from recsys.model.encoder import Encoder
from recsys.model.heads import DotProductHead, HistoryRepresentation
from recsys.model.item_embeddings import ItemEmbeddings
from recsys.model.model_inputs import Inputs


class MaskedItemModel(nn.Module):
    """BERT4Rec: item tokens in, some hidden; the states of the hidden ones out.

    A token 0 (PAD) inside a sequence is a hidden item: the encoder, which looks both ways, reads
    the learned vector of the mask there. Row 0 of the item embedding stays zero and is never a
    candidate worth scoring.

    Args:
        encoder: not causal, for one item more than histories have.

    Source: Sun et al. 2019, https://arxiv.org/abs/1904.06690; the projection and the biases of its
    output layer are left out.
    """

    def __init__(self, num_items: int, embedding_dim: int, encoder: Encoder) -> None:
        super().__init__()
        self.num_items = num_items
        self.items = ItemEmbeddings(num_items, embedding_dim)
        self.mask = nn.Parameter(torch.empty(embedding_dim))
        self.encoder = encoder
        self.head = DotProductHead()
        nn.init.normal_(self.mask, std=0.02)
        nn.init.normal_(self.items.weight, std=0.02)
        with torch.no_grad():
            self.items.weight[0] = 0

    def forward(self, inputs: Inputs) -> HistoryRepresentation:
        """The state of a hidden item behind each history.

        It is given for every position, [B, L, D], so that the head finds it at the last one.
        """
        embedded, lengths = self._with_one_behind(inputs)
        states = last_states(self.encoder(embedded, lengths), lengths)
        return (states[:, None].expand(-1, inputs.items.shape[1], -1),)

    def newest(self, inputs: Inputs) -> HistoryRepresentation:
        """What `forward` gives, and cheaper."""
        states = self.encoder.newest(*self._with_one_behind(inputs))
        return (states[:, None].expand(-1, inputs.items.shape[1], -1),)

    def teacher_forced(
        self, inputs: Inputs, targets: Tensor
    ) -> tuple[HistoryRepresentation, Tensor]:
        """What is foretold of the targets [B, n]: the items hidden in items [B, L], from the left.

        Returns:
            The history side [B, n, D]; and item tokens [B, L + n - 1] whose first L + t are had
            before target t: all that is not hidden, whatever t.
        """
        items, lengths = inputs.items, inputs.lengths
        states, count = self.encoder(self._embed(items, lengths), lengths), targets.shape[1]
        places = self._hidden(items, lengths).int().argsort(dim=1, descending=True, stable=True)
        asked = places[:, :count, None].expand(-1, -1, states.shape[-1])
        return (states.gather(1, asked),), F.pad(items, (0, count - 1))

    def _with_one_behind(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """What the encoder reads [B, L + 1, D] where a hidden item is next, and the lengths."""
        items, lengths = F.pad(inputs.items, (0, 1)), inputs.lengths + 1
        return self._embed(items, lengths), lengths

    def _embed(self, items: Tensor, lengths: Tensor) -> Tensor:
        """What the encoder reads [B, L, D]."""
        hidden = self._hidden(items, lengths)[..., None]
        embedded = torch.where(hidden, self.mask, self.items(items))
        return embedded * math.sqrt(self.items.embedding_dim)

    @staticmethod
    def _hidden(items: Tensor, lengths: Tensor) -> Tensor:
        places = torch.arange(items.shape[1], device=items.device)
        return (items == 0) & (places < lengths[:, None])
