"""Everyone gets again what they bought last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.baselines.counts import ages, give_scores, item_counts
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True, eq=False)
class RepeatLast:
    """The user's own items, the newest first; below them all others, by popularity. A `Scorer`.

    Under ``seen="filter"`` only the others are ranked, so that it is `Popularity` by nature.
    """

    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""

    @classmethod
    def fit(cls, histories: Histories, num_items: int) -> RepeatLast:
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
        # Popularity counts 1/2 at most, the oldest item of a history 1, the one after it 2, ...
        popular = self.counts / (2 * max(self.counts.max(), 1))
        scores = np.tile(popular, (len(histories), 1))
        place = histories.lengths[histories.users] - ages(histories)
        np.maximum.at(scores, (histories.users, histories.items), place)
        return scores
