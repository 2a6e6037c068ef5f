"""What follows what: the last item alone decides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array

from recsys.baselines.counts import (
    ages,
    give_scores,
    item_counts,
    transitions,
    weighted_histories,
)
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True, eq=False)
class MarkovChain:
    """Scores an item by how often it directly followed the history's last item. A `Scorer`.

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
        is_last = (ages(histories) == 0).astype(np.float64)
        last = weighted_histories(histories, is_last, self.num_items)
        scores: NDArray[np.float64] = (last @ self.followers).toarray()
        scores[histories.lengths == 0] = self.counts
        return scores
