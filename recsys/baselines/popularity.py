"""Everyone gets what sells most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from recsys.baselines.counts import give_scores, item_counts
from recsys.data.histories import Histories
from recsys.data.prepared import Part, PreparedDataset


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


def latest_histories(dataset: PreparedDataset, before: Part, share: float) -> Histories:
    """The newest share of all that is known before a part, whoever's it is [U histories].

    Interactions at the very time where that share begins are all in.
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
