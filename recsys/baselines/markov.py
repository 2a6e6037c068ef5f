"""First-order Markov chain: only the last item of a history decides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from recsys.baselines.counts import (
    CountScorer,
    by_popularity_if_empty,
    item_counts,
    item_values,
    summed_votes,
    transitions,
)
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True, eq=False)
class MarkovChain(CountScorer):
    """Scores an item by how often it directly followed the history's last item.

    Raw counts: dividing by the last item's total would not change any ranking. An empty history is
    scored by popularity.
    """

    followers: csr_array
    """How often a directly followed b, by item tokens [b, a]."""
    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""

    @classmethod
    def fit(cls, histories: Histories, num_items: int) -> MarkovChain:
        """Count the transitions of the training histories."""
        followers = transitions(histories, num_items, np.ones(1))
        return cls(followers, item_counts(histories, num_items))

    def scores_of(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1], or of the candidates [B, C]."""
        last = histories.latest(1)
        scores = summed_votes(last, np.ones(len(last.items)), self.followers, candidates)
        return by_popularity_if_empty(scores, last, item_values(self.counts, candidates))
