"""Item embeddings: of the token, and of what is known of the item."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class FeatureEmbeddings(nn.Module):
    """What the features of item i add to its embedding: f_i = Σ_c s_ic C[c] + Σ_k x_ik W[k].

    Categories c have a row each in C, numbers k in W; both start at zero, so that a training starts
    as it would without features, and a value that no item of the training had adds nothing. What
    is read of the items is fixed; row 0 (PAD) has no features.

    Args:
        categories: of each item [I + 1, M], from 1; 0 fills up.
        shares: s, how much each of them counts [I + 1, M]; 0 where it fills up.
        numbers: x [I + 1, K].
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
        self,
        categories: Tensor,
        shares: Tensor,
        numbers: Tensor,
        rows: Tensor,
        num_categories: int,
        embedding_dim: int,
    ) -> None:
        super().__init__()
        for name, known in (
            ("categories", categories),
            ("shares", shares),
            ("numbers", numbers),
            ("rows", rows),
        ):
            self.register_buffer(name, known, persistent=False)  # bundles keep what it is made of
        self.category_weight = nn.Parameter(torch.zeros(num_categories + 1, embedding_dim))
        self.number_weight = nn.Parameter(torch.zeros(numbers.shape[1], embedding_dim))

    def forward(self, tokens: Tensor) -> Tensor:
        """What is added to the embeddings [..., D] of item tokens [...]."""
        flat = tokens.flatten()
        added = F.embedding_bag(
            self.categories[flat],
            self.category_weight,
            per_sample_weights=self.shares[flat],
            mode="sum",
        )
        added = added + self.numbers[flat] @ self.number_weight
        return added.view(*tokens.shape, -1)


class ItemEmbeddings(nn.Embedding):
    """e_i of items 1 to I: a row of a table and, where there are features, what they add (f_i).

    Row 0 is PAD. Features of users and of interactions would be read elsewhere: they do not belong
    to the item, and so not to a candidate.

    Args:
        num_items: rows of the table, less that of PAD.
        embedding_dim: D.
        features: they may be of more items than the table has rows.
    """

    def __init__(
        self, num_items: int, embedding_dim: int, features: FeatureEmbeddings | None = None
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
        return super().forward(self.features.rows[tokens]) + self.features(tokens)  # type: ignore[no-any-return]

    def table(self) -> Tensor:
        """The embeddings of PAD and all items [I + 1, D]."""
        if self.features is None:
            return self.weight
        return self(torch.arange(self.num_items + 1, device=self.weight.device))  # type: ignore[no-any-return]
