"""Embeddings: of items, of their features and those of interactions and users, and of positions."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from recsys.model.attention import position_angles

FeatureValues = tuple[Tensor, ...]
"""Categories [..., M], int64 from 1, padded with 0; their weights [..., M], 0 on padding; and
numbers [..., K]."""


class FeatureEmbeddings(nn.Module):
    """f = Σ_c s_c C[c] + Σ_k x_k W[k], for categories c with weights s_c, and numbers x_k.

    Both tables start at zero: training starts as it would without features, and a value that never
    occurs in training adds nothing.
    """

    def __init__(self, num_categories: int, num_numbers: int, embedding_dim: int) -> None:
        super().__init__()
        self.category_weight = nn.Parameter(torch.zeros(num_categories + 1, embedding_dim))
        self.number_weight = nn.Parameter(torch.zeros(num_numbers, embedding_dim))

    def forward(self, categories: Tensor, shares: Tensor, numbers: Tensor) -> Tensor:
        """The sum of the embeddings of these `FeatureValues`, [..., D]."""
        added = F.embedding_bag(
            categories.flatten(0, -2),
            self.category_weight,
            per_sample_weights=shares.flatten(0, -2),
            mode="sum",
        )
        return added.view(*categories.shape[:-1], -1) + numbers @ self.number_weight


class VectorEmbeddings(nn.Module):
    """v_i P for items 1 to I: vectors from elsewhere, which are fixed, projected.

    ``vectors`` v are [I + 1, K], of any float type; zero for PAD, and for items without one.
    """

    vectors: Tensor

    def __init__(self, vectors: Tensor, embedding_dim: int) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors, persistent=False)  # bundles save them in half size
        self.weight = nn.Parameter(torch.zeros(vectors.shape[1], embedding_dim))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.vectors[tokens].to(self.weight.dtype) @ self.weight


class ItemFeatureEmbeddings(FeatureEmbeddings):
    """Embeddings of the features of items 1 to I, whose values [I + 1, ...] are fixed.

    ``rows`` [I + 1] say where each item is in the table of item embeddings: one that is not trained
    has row 0, which is zero, and consists of its features only.
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
        added: Tensor = self(self.categories[tokens], self.shares[tokens], self.numbers[tokens])
        for vectors in self.vectors:
            added = added + vectors(tokens)
        return added

    def draw_weights(self) -> None:
        """Draw the embeddings of features, where items have none: zeros would learn nothing."""
        for weight in self.parameters():
            nn.init.normal_(weight, std=0.02)
        with torch.no_grad():
            self.category_weight[0] = 0


class ItemEmbeddings(nn.Embedding):
    """e_i of items 1 to I: a row of a table plus, where there are features, their embedding f_i.

    Row 0 is PAD: it stays zero. There may be more items than rows, which have features only.
    """

    def __init__(
        self, num_items: int, embedding_dim: int, features: ItemFeatureEmbeddings | None = None
    ) -> None:
        super().__init__(num_items + 1, embedding_dim, padding_idx=0)
        self.features = features

    @property
    def num_items(self) -> int:
        return (self.num_embeddings if self.features is None else len(self.features.rows)) - 1

    @torch.no_grad()
    def draw(self, std: float = 0.02) -> None:
        nn.init.normal_(self.weight, std=std)
        self.weight[0] = 0

    @torch.no_grad()
    def clear_unread(self) -> None:
        """Make rows zero that no item reads: with the items of another training they are read."""
        if self.features is not None:
            unread = torch.ones(self.num_embeddings, dtype=torch.bool, device=self.weight.device)
            unread[self.features.rows] = False
            self.weight[unread] = 0

    def forward(self, tokens: Tensor) -> Tensor:
        if self.features is None:
            return super().forward(tokens)
        return super().forward(self.features.rows[tokens]) + self.features.of(tokens)

    def table(self) -> Tensor:
        if self.features is None:
            return self.weight
        return self(torch.arange(self.num_items + 1, device=self.weight.device))


def positions_from_end(lengths: Tensor, width: int) -> Tensor:
    """The number of items after each one, [B, width]; 0 on padding.

    >>> positions_from_end(torch.tensor([3, 2]), 3)
    tensor([[2, 1, 0],
            [1, 0, 0]])
    """
    return (lengths[:, None] - 1 - torch.arange(width, device=lengths.device)).clamp_(min=0)


class SinusoidalPositions(nn.Module):
    """PE(p, 2i) = sin(p / 10000^(2i/D)), PE(p, 2i + 1) = cos(p / 10000^(2i/D)).

    Source: Vaswani et al. 2017, section 3.5, https://arxiv.org/abs/1706.03762
    """

    table: Tensor

    def __init__(self, max_length: int, embedding_dim: int) -> None:
        super().__init__()
        angle = position_angles(max_length, embedding_dim)
        table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :embedding_dim]
        self.register_buffer("table", table.float(), persistent=False)

    def forward(self, positions: Tensor) -> Tensor:
        """Vectors [..., D] of positions [...] below max_length."""
        return self.table[positions]
