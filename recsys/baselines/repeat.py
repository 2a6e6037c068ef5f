"""Repeat last: recommend what the user bought most recently."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.baselines.counts import CountScorer, ages, item_counts
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True, eq=False)
class RepeatLast(CountScorer):
    """Ranks the user's own items by recency, then all other items by popularity.

    Under ``seen="filter"`` only the other items are ranked, which makes the ranking that of
    `Popularity`.
    """

    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""

    @classmethod
    def fit(cls, histories: Histories, num_items: int) -> RepeatLast:
        """Count the items of the training histories."""
        return cls(item_counts(histories, num_items))

    def scores_of(self, histories: Histories) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1]."""
        # Popularity adds at most 1/2; the oldest item of a history scores 1, the next one 2, ...
        popular = self.counts / (2 * max(self.counts.max(), 1))
        scores = np.tile(popular, (len(histories), 1))
        place = histories.lengths[histories.users] - ages(histories)
        np.maximum.at(scores, (histories.users, histories.items), place)
        return scores
