"""Personal frequency: recommend what the user bought most often, as next-basket baselines do."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.baselines.counts import (
    CountScorer,
    item_counts,
    item_values,
    user_values,
    weighted_histories,
)
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True, eq=False)
class PersonalFrequency(CountScorer):
    """Scores an item by how often it occurs in the user's own history.

    GP-TopFreq of "A next basket recommendation reality check" (Li et al., TOIS 2023), which few
    trained models beat where purchases repeat. Popularity in the training histories orders equally
    frequent items, and, below those, all items outside the history. Under ``seen="filter"`` only
    the latter are ranked, which makes the ranking that of `Popularity`.
    """

    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""

    @classmethod
    def fit(cls, histories: Histories, num_items: int) -> PersonalFrequency:
        """Count the items of the training histories."""
        return cls(item_counts(histories, num_items))

    def scores_of(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1], or of the candidates [B, C]."""
        ones = np.ones(len(histories.items))
        own = user_values(weighted_histories(histories, ones, self.num_items), candidates)
        # Popularity adds at most 1/2: less than one purchase, even after rounding to float32.
        popularity = self.counts / (2 * max(self.counts.max(), 1))
        return own + item_values(popularity, candidates)
