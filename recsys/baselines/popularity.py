"""Popularity: recommend the bestsellers to everyone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.baselines.counts import CountScorer, item_counts, item_values
from recsys.data.histories import Histories
from recsys.data.prepared import Part, PreparedDataset


@dataclass(frozen=True, slots=True, eq=False)
class Popularity(CountScorer):
    """Scores an item by how often it occurs in the training histories."""

    counts: NDArray[np.float64]
    """Occurrences by item token [I + 1]."""

    @classmethod
    def fit(cls, histories: Histories, num_items: int) -> Popularity:
        """Count the items of the training histories."""
        return cls(item_counts(histories, num_items))

    def scores_of(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1], or of the candidates [B, C].

        They are the same for every history.
        """
        if candidates is None:
            return np.tile(self.counts, (len(histories), 1))
        return item_values(self.counts, candidates)


def latest_histories(dataset: PreparedDataset, before: Part, share: float) -> Histories:
    """Return the newest share of all interactions before a part, as U histories.

    All interactions at the time at which that share begins are included.
    """
    starts = dataset.offsets[:-1]
    ends = starts + dataset.cuts[:, 0 if before == "valid" else 1]
    lengths = np.stack([ends - starts, dataset.offsets[1:] - ends], axis=1)
    known = np.repeat(np.tile([True, False], len(ends)), lengths.ravel())
    if not known.any():
        return dataset.histories(before)
    since = np.quantile(dataset.timestamps[known], 1 - share, method="higher")
    old = np.concatenate([[0], np.cumsum(dataset.timestamps < since)])
    return Histories.from_spans(dataset.items, starts + old[ends] - old[starts], ends)
