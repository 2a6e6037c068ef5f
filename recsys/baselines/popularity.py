"""Everyone gets what sells most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.baselines.counts import give_scores, item_counts
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True, eq=False)
class Popularity:
    """Scores an item by how often it occurs in the training histories. A `Scorer`."""

    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""

    @classmethod
    def fit(cls, histories: Histories, num_items: int) -> Popularity:
        """Count the items of the training histories."""
        return cls(item_counts(histories, num_items))

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return len(self.counts) - 1

    def score(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> torch.Tensor:
        """See `Scorer.score`; the histories decide nothing but how many rows there are."""
        return give_scores(
            lambda some: np.tile(self.counts, (len(some), 1)), self.num_items, histories, candidates
        )
