"""EASE: a linear item-item model whose weights one ridge regression finds in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.baselines.counts import (
    CountScorer,
    are_few,
    by_popularity_if_empty,
    item_counts,
    item_values,
    pick_candidates,
    user_items,
)
from recsys.data.histories import Histories
from recsys.errors import InputError

MAX_ITEMS = 20_000
"""Largest catalogue: the matrix of weights takes 1.6 GB, and twice that while fitting."""


@dataclass(frozen=True, slots=True)
class EASESettings:
    """How strongly the weights are regularised."""

    l2: float = 300.0
    """λ: added to the number of users of each item; the larger, the smaller the weights."""

    def __post_init__(self) -> None:
        if not self.l2 > 0:
            raise ValueError(f"l2 must be above 0, not {self.l2}")


@dataclass(frozen=True, slots=True, eq=False)
class EASE(CountScorer):
    """Scores candidate a ``sum_j B[h_j, a]`` over the distinct items h_j of a history.

    B minimises ``|X - X B|² + λ |B|²`` under a zero diagonal, where X is the binary user-item
    matrix of the training histories: ``B[b, a] = -P[b, a] / P[a, a]`` with ``P = (X'X + λ)⁻¹``. An
    empty history is scored by popularity.

    Source: Steck 2019, https://arxiv.org/abs/1905.03375
    """

    weights: NDArray[np.float32]
    """B, by item tokens [I + 1, I + 1]."""
    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""

    @classmethod
    def fit(
        cls, histories: Histories, num_items: int, settings: EASESettings | None = None
    ) -> EASE:
        """Find the weights; repeated items of a user count once.

        Raises:
            InputError: the catalogue is larger than `MAX_ITEMS`.
        """
        if num_items > MAX_ITEMS:
            raise InputError(
                f"ease: the catalogue has {num_items:,} items, more than {MAX_ITEMS:,}: "
                "its square would not fit into memory"
            )
        settings = settings or EASESettings()
        has = user_items(histories, num_items).astype(np.float32)
        together = (has.T @ has).toarray(order="C")
        together[np.diag_indices(num_items + 1)] += settings.l2
        factor = torch.linalg.cholesky(torch.from_numpy(together))
        inverse = torch.cholesky_inverse(factor, out=factor).numpy()
        # The inverse is symmetric and stored by columns: its transpose reads row by row.
        weights: NDArray[np.float32] = np.divide(inverse.T, -np.diag(inverse), out=together)
        np.fill_diagonal(weights, 0)
        return cls(weights, item_counts(histories, num_items))

    def scores_of(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1], or of the candidates [B, C]."""
        # In float32 like the weights, which scipy would otherwise convert for each batch of users.
        has = user_items(histories, self.num_items).astype(np.float32)
        if candidates is None:
            scores = (has @ self.weights).astype(np.float64)
        elif are_few(candidates, self.num_items):
            scores = np.empty(candidates.shape)
            for user, items in enumerate(np.split(has.indices, has.indptr[1:-1])):
                scores[user] = self.weights[np.ix_(items, candidates[user])].sum(axis=0)
        else:
            scores = pick_candidates(
                lambda users: has[users] @ self.weights, candidates, self.num_items
            )
        return by_popularity_if_empty(scores, histories, item_values(self.counts, candidates))
