"""Feature embeddings: vectors for the categories and numbers of items, interactions or users."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FeatureValues = tuple[Tensor, Tensor, Tensor]
"""Categories [..., M], int64 from 1, padded with 0; their weights [..., M], 0 on padding; and
numbers [..., K]."""


class FeatureEmbeddings(nn.Module):
    """f = Σ_c s_c C[c] + Σ_k x_k W[k], for categories c with weights s_c, and numbers x_k.

    Each category has a row in C, each number one in W. Both start at zero: training starts as it
    would without features, and a value that never occurs in training adds nothing.

    Args:
        num_categories: the number of categories of all features together.
        num_numbers: K.
        embedding_dim: D.
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
