"""Everyone gets again what they bought most often: the baseline of next-basket recommendation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.baselines.counts import give_scores, item_counts, weighted_histories
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True, eq=False)
class PersonalFrequency:
    """Scores an item by how often it occurs in the user's own history. A `Scorer`.

    GP-TopFreq of "A next basket recommendation reality check" (Li et al., TOIS 2023), which few
    trained models beat where purchases repeat. Equally frequent items, and below them all items the
    history does not hold, are in the order of their popularity in the training histories. Under
    ``seen="filter"`` only the latter are ranked, so that it is `Popularity` by nature.
    """

    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""

    @classmethod
    def fit(cls, histories: Histories, num_items: int) -> PersonalFrequency:
        """Count the items of the training histories."""
        return cls(item_counts(histories, num_items))

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
        ones = np.ones(len(histories.items))
        own = weighted_histories(histories, ones, self.num_items).toarray()
        # At most 1/2: less than one purchase, after rounding to float32 too.
        scores: NDArray[np.float64] = own + self.counts / (2 * max(self.counts.max(), 1))
        return scores
