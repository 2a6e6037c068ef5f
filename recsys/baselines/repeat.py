"""Repeat last: recommend what the user bought most recently."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.baselines.counts import (
    CountScorer,
    ages,
    item_counts,
    item_values,
    user_values,
    weighted_histories,
)
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

    def scores_of(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1], or of the candidates [B, C]."""
        # Popularity adds at most 1/2; the oldest item of a history scores 1, the next one 2, ...
        popular = self.counts / (2 * max(self.counts.max(), 1))
        place = (histories.lengths[histories.users] - ages(histories)).astype(np.float64)
        pairs = histories.users * (self.num_items + 1) + histories.items
        # Of an item that was bought repeatedly, the latest place counts: the first from the end.
        latest = len(pairs) - 1 - np.unique(pairs[::-1], return_index=True)[1]
        once = np.zeros(len(pairs))
        once[latest] = place[latest]
        own = user_values(weighted_histories(histories, once, self.num_items), candidates)
        return np.maximum(own, item_values(popular, candidates))
