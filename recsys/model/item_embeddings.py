"""Item embeddings: of the token, and of what is known of the item."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from recsys.model.feature_embeddings import FeatureEmbeddings, FeatureValues


class ItemFeatureEmbeddings(FeatureEmbeddings):
    """What the features of items 1 to I add to their embeddings; row 0 (PAD) has none.

    What is read of the items is fixed.

    Args:
        values: `FeatureValues` of the items [I + 1, ...].
        rows: of the table of item embeddings, by item [I + 1]: an item without training has row 0,
            which is zero, and so nothing but its features.
        num_categories: of all features together.
        embedding_dim: D.
    """

    categories: Tensor
    shares: Tensor
    numbers: Tensor
    rows: Tensor

    def __init__(
        self, values: FeatureValues, rows: Tensor, num_categories: int, embedding_dim: int
    ) -> None:
        super().__init__(num_categories, values[2].shape[-1], embedding_dim)
        known = zip(("categories", "shares", "numbers", "rows"), (*values, rows), strict=True)
        for name, tensor in known:
            self.register_buffer(name, tensor, persistent=False)  # bundles keep what it is made of

    def of(self, tokens: Tensor) -> Tensor:
        """What is added to the embeddings [..., D] of item tokens [...]."""
        added: Tensor = self(self.categories[tokens], self.shares[tokens], self.numbers[tokens])
        return added


class ItemEmbeddings(nn.Embedding):
    """e_i of items 1 to I: a row of a table and, where there are features, what they add (f_i).

    Row 0 is PAD. Features of interactions and of users are read elsewhere (`NextItemModel`):
    they do not belong to the item, and so not to a candidate.

    Args:
        num_items: rows of the table, less that of PAD.
        embedding_dim: D.
        features: they may be of more items than the table has rows.
    """

    def __init__(
        self, num_items: int, embedding_dim: int, features: ItemFeatureEmbeddings | None = None
    ) -> None:
        super().__init__(num_items + 1, embedding_dim, padding_idx=0)
        self.features = features

    @property
    def num_items(self) -> int:
        """I."""
        return (self.num_embeddings if self.features is None else len(self.features.rows)) - 1

    def forward(self, tokens: Tensor) -> Tensor:
        """Embeddings [..., D] of item tokens [...]; only their rows are read."""
        if self.features is None:
            return super().forward(tokens)
        return super().forward(self.features.rows[tokens]) + self.features.of(tokens)

    def table(self) -> Tensor:
        """The embeddings of PAD and all items [I + 1, D]."""
        if self.features is None:
            return self.weight
        return self(torch.arange(self.num_items + 1, device=self.weight.device))  # type: ignore[no-any-return]
