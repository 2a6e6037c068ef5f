"""Item embeddings: of the item token, and of the features of the item."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recsys.model.feature_embeddings import FeatureEmbeddings, FeatureValues


class VectorEmbeddings(nn.Module):
    """v_i P for items 1 to I: vectors from elsewhere, which are fixed, projected.

    Args:
        vectors: v [I + 1, K], of any float type; row 0 (PAD), and that of an item without a vector,
            are zero.
        embedding_dim: D.
    """

    vectors: Tensor

    def __init__(self, vectors: Tensor, embedding_dim: int) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)  # bundles save them in half size
        self.weight = nn.Parameter(torch.zeros(vectors.shape[1], embedding_dim))

    def forward(self, tokens: Tensor) -> Tensor:
        """The projected vectors [..., D] of item tokens [...]."""
        return self.vectors[tokens].to(self.weight.dtype) @ self.weight


class ItemFeatureEmbeddings(FeatureEmbeddings):
    """Embeddings of the features of items 1 to I; row 0 (PAD) has none.

    The feature values of the items are fixed.

    Args:
        values: `FeatureValues` of the items [I + 1, ...].
        rows: the row of each item in the table of item embeddings [I + 1]. An item that is not
            trained has row 0, which is zero: its embedding consists of its features only.
        num_categories: the number of categories of all features together.
        embedding_dim: D.
        vectors: embeds the vectors of the items, a module for each feature of this kind.
    """

    categories: Tensor
    shares: Tensor
    numbers: Tensor
    rows: Tensor

    def __init__(
        self,
        values: FeatureValues,
        rows: Tensor,
        num_categories: int,
        embedding_dim: int,
        vectors: Sequence[VectorEmbeddings] = (),
    ) -> None:
        super().__init__(num_categories, values[2].shape[-1], embedding_dim)
        self.vectors = nn.ModuleList(vectors)
        known = zip(("categories", "shares", "numbers", "rows"), (*values, rows), strict=True)
        for name, tensor in known:
            self.register_buffer(name, tensor, persistent=False)  # bundles save its source

    def of(self, tokens: Tensor) -> Tensor:
        """The feature embeddings [..., D] of item tokens [...]."""
        added: Tensor = self(self.categories[tokens], self.shares[tokens], self.numbers[tokens])
        for vectors in self.vectors:
            added = added + vectors(tokens)
        return added

    def draw_weights(self) -> None:
        """Draw the embeddings of features as those of items are drawn, where these have none.

        If both were zero, no item would differ from another, and nothing could be learned of them.
        """
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)
        with torch.no_grad():
            self.category_weight[0] = 0


class ItemEmbeddings(nn.Embedding):
    """e_i of items 1 to I: a row of a table plus, where there are features, their embedding f_i.

    Row 0 is PAD. `NextItemModel` reads the features of interactions and of users: they do not
    belong to the item, and so not to a candidate.

    Args:
        num_items: the number of rows of the table, without that of PAD.
        embedding_dim: D.
        features: embeds the features of the items, which may be more than the table has rows.
    """

    def __init__(
        self, num_items: int, embedding_dim: int, features: ItemFeatureEmbeddings | None = None
    ) -> None:
        super().__init__(num_items + 1, embedding_dim, padding_idx=0)
        self.features = features

    @property
    def num_items(self) -> int:
        """The number of items, I."""
        return (self.num_embeddings if self.features is None else len(self.features.rows)) - 1

    @torch.no_grad()
    def draw(self, std: float) -> None:
        """Draw the rows of the table from a normal distribution; that of PAD is zero."""
        nn.init.normal_(self.weight, std=std)
        self.weight[0] = 0

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
