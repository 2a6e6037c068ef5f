"""Item-based nearest neighbours: items that share users with the items of the history."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from recsys.baselines.counts import CountScorer, ages, item_counts, user_items, weighted_histories
from recsys.data.histories import Histories

_WORKING_MEMORY_MIB = 64
"""Memory for the distances that are computed at a time."""


@dataclass(frozen=True, slots=True)
class ItemKNNSettings:
    """How many neighbours an item has, and how the items of a history are weighted."""

    neighbours: int = 100
    """k: only the k most similar items of each item count."""
    decay: float = 0.8
    """Weight of each item of a history relative to the next newer one. With 0 only the newest item
    counts; with 1 the order does not matter."""

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise ValueError(f"neighbours must be at least 1, not {self.neighbours}")
        if not 0 <= self.decay <= 1:
            raise ValueError(f"decay must be from 0 to 1, not {self.decay}")


@dataclass(frozen=True, slots=True, eq=False)
class ItemKNN(CountScorer):
    """Scores candidate a ``sum_j decay ** (j - 1) cos(a, h_j)`` over near items h_j.

    h_1 is the newest item of the history. The cosine compares the two items' sets of users in the
    training histories and counts if a is among the k nearest items of h_j. An empty history is
    scored by popularity.

    Source: Sarwar et al. 2001, https://doi.org/10.1145/371920.372071
    """

    similarities: csr_array
    """Cosines by item tokens [h, a]; only those of the nearest items are stored."""
    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""
    settings: ItemKNNSettings

    @classmethod
    def fit(
        cls, histories: Histories, num_items: int, settings: ItemKNNSettings | None = None
    ) -> ItemKNN:
        """Find the neighbours of each item; repeated items of a user count once."""
        settings = settings or ItemKNNSettings()
        similarities = _similarities(histories, num_items, settings.neighbours)
        return cls(similarities, item_counts(histories, num_items), settings)

    def scores_of(self, histories: Histories) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1]."""
        weights = self.settings.decay ** ages(histories).astype(np.float64)
        read = weighted_histories(histories, weights, self.num_items)
        scores: NDArray[np.float64] = (read @ self.similarities).toarray()
        scores[histories.lengths == 0] = self.counts
        return scores


def _similarities(histories: Histories, num_items: int, neighbours: int) -> csr_array:
    """Return the cosines of each item [I + 1] with its nearest items [I + 1]."""
    # An extra, which fitting needs and scoring does not.
    from sklearn import config_context  # type: ignore[import-untyped]
    from sklearn.neighbors import NearestNeighbors  # type: ignore[import-untyped]

    if not len(histories):
        return csr_array((num_items + 1, num_items + 1))
    near = min(neighbours, num_items)  # PAD, which no user has, is at the largest distance
    search = NearestNeighbors(n_neighbors=near, metric="cosine", algorithm="brute")
    with config_context(working_memory=_WORKING_MEMORY_MIB):
        distances = csr_array(
            search.fit(user_items(histories, num_items).T.tocsr()).kneighbors_graph(mode="distance")
        )
    distances.data = np.maximum(1 - distances.data, 0)
    distances.eliminate_zeros()
    return distances
