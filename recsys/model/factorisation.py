"""A factorisation machine: the simplest sequential recommender, inner products of embeddings."""

from __future__ import annotations

import torch

from recsys.model.dropout import Dropout
from recsys.model.heads import DotProductHead
from recsys.model.item_embeddings import ItemEmbeddings
from recsys.model.model_inputs import ModelInputs
from recsys.model.protocols import HistoryRepresentation, Model


class FactorisationMachine(Model):
    """score_t(c) = w_c + v_c · (a_last + Σ_j b_j / √t), over the items j up to position t.

    A factorisation machine of degree two has one weight and one vector for each feature and adds
    the inner products of all pairs. Its features here are the candidate, the last item, and the bag
    of all items of the history (each 1 / √t); the terms without the candidate are the same for all
    candidates and drop out. Without the last item it is FISM, asymmetric matrix factorisation.

    Sources: Rendle 2010, https://doi.org/10.1109/ICDM.2010.127; Kabbur et al. 2013 (FISM),
    https://doi.org/10.1145/2487575.2487589

    Args:
        num_items: I.
        embedding_dim: D.
        dropout: of the embeddings of the last item and of the bag.
    """

    items: ItemEmbeddings

    def __init__(self, num_items: int, embedding_dim: int, dropout: float) -> None:
        super().__init__()
        self.num_items = num_items
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
        """The vectors that the candidates' are multiplied with, [B, L, D + 1]."""
        items = inputs.items
        bag = self.dropout(self.bag(items)).cumsum(dim=1)
        count = torch.arange(1, items.shape[1] + 1, dtype=bag.dtype, device=items.device)
        bag = bag / count.sqrt()[:, None]
        states = self.dropout(self.last(items)) + bag
        return (torch.cat([states, torch.ones_like(states[..., :1])], dim=-1),)
