"""Items that the same users have: cosine neighbours of the history's items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn import config_context  # type: ignore[import-untyped]
from sklearn.neighbors import NearestNeighbors  # type: ignore[import-untyped]

from recsys.baselines.counts import ages, give_scores, item_counts, user_items, weighted_histories
from recsys.data.histories import Histories

_WORKING_MEMORY_MIB = 64
"""Similarities are found for so many items at a time as fit this."""


@dataclass(frozen=True, slots=True)
class ItemKNNSettings:
    """How many neighbours an item has, and how a history is weighed."""

    neighbours: int = 100
    """k: the most similar so many items of each item count."""
    decay: float = 0.8
    """Each item of a history weighs this much of the next newer one. 0: the newest alone counts;
    1: their order is nothing."""

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise ValueError(f"neighbours must be at least 1, not {self.neighbours}")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay must be from 0 to 1, not {self.decay}")


@dataclass(frozen=True, slots=True, eq=False)
class ItemKNN:
    """Scores candidate a ``sum_j decay ** (j - 1) cos(a, h_j)`` over near items h_j. A `Scorer`.

    h_1 is the newest history item, the cosine is that of the two items' sets of users in the
    training histories, and it counts if a is among the k nearest of h_j. An empty history is scored
    by popularity.

    Source: Sarwar et al. 2001, https://doi.org/10.1145/371920.372071
    """

    similarities: csr_array
    """Cosines by item tokens [h, a], of the nearest alone."""
    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""
    settings: ItemKNNSettings

    @classmethod
    def fit(
        cls, histories: Histories, num_items: int, settings: ItemKNNSettings | None = None
    ) -> ItemKNN:
        """Find the neighbours of each item; how often a user has it does not matter."""
        settings = settings or ItemKNNSettings()
        similarities = _similarities(histories, num_items, settings.neighbours)
        return cls(similarities, item_counts(histories, num_items), settings)

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return len(self.counts) - 1

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        """See `Scorer.score`."""
        return give_scores(self._catalogue, self.num_items, histories, candidates)

    def _catalogue(self, histories: Histories) -> NDArray[np.float64]:
        weights = self.settings.decay ** ages(histories).astype(np.float64)
        read = weighted_histories(histories, weights, self.num_items)
        scores: NDArray[np.float64] = (read @ self.similarities).toarray()
        scores[histories.lengths == 0] = self.counts
        return scores


def _similarities(histories: Histories, num_items: int, neighbours: int) -> csr_array:
    """Cosines of each item [I + 1] with its nearest ones [I + 1]."""
    if not len(histories):
        return csr_array((num_items + 1, num_items + 1))
    near = min(neighbours, num_items)  # PAD, which no user has, is as far as can be
    search = NearestNeighbors(n_neighbors=near, metric="cosine", algorithm="brute")
    with config_context(working_memory=_WORKING_MEMORY_MIB):
        distances = csr_array(
            search.fit(user_items(histories, num_items).T.tocsr()).kneighbors_graph(mode="distance")
        )
    distances.data = np.maximum(1 - distances.data, 0)
    distances.eliminate_zeros()
    return distances
