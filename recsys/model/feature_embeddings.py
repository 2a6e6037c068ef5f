"""What features add to an embedding: categories and numbers, of whatever has them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FeatureValues = tuple[Tensor, Tensor, Tensor]
"""Categories [..., M], int64, from 1, 0 fills up; how much each of them counts [..., M], 0 where it
fills up; numbers [..., K]."""


class FeatureEmbeddings(nn.Module):
    """f = Σ_c s_c C[c] + Σ_k x_k W[k], of categories c that count s_c each, and numbers x_k.

    Categories have a row each in C, numbers in W; both start at zero, so that a training starts as
    it would without features, and a value that the training never had adds nothing.

    Args:
        num_categories: of all features together.
        num_numbers: K.
        embedding_dim: D.
    """

    def __init__(self, num_categories: int, num_numbers: int, embedding_dim: int) -> None:
        super().__init__()
        self.category_weight = nn.Parameter(torch.zeros(num_categories + 1, embedding_dim))
        self.number_weight = nn.Parameter(torch.zeros(num_numbers, embedding_dim))

    def forward(self, categories: Tensor, shares: Tensor, numbers: Tensor) -> Tensor:
        """What is added to embeddings [..., D] of things with these `FeatureValues`."""
        added = F.embedding_bag(
            categories.flatten(0, -2),
            self.category_weight,
            per_sample_weights=shares.flatten(0, -2),
            mode="sum",
        )
        return added.view(*categories.shape[:-1], -1) + numbers @ self.number_weight
