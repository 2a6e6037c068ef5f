"""PCTM where users repeat items: transition counts plus how often the user had the candidate.

It is the count ensemble (`recsys.baselines.count_ensemble`) without a model.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from recsys.baselines.count_ensemble import RepeatCounts
from recsys.baselines.counts import CountScorer
from recsys.baselines.pctm import PCTM, PCTMSettings
from recsys.data.histories import Histories


@dataclass(frozen=True, slots=True)
class RepeatSettings(PCTMSettings):
    """How transitions and repeats are counted and weighted."""

    repeats: float = 1.0
    """Weight of log(1 + n), where n is how often the user's history has the candidate."""


@dataclass(frozen=True, slots=True, eq=False)
class TransitionsAndRepeats(CountScorer):
    """Scores a candidate as `PCTM`, plus the weighted log(1 + n) of the user's own history."""

    log_counts: csr_array
    """See `PCTM`."""
    log_popularity: NDArray[np.float64]
    settings: RepeatSettings

    @classmethod
    def fit(
        cls, histories: Histories, num_items: int, settings: RepeatSettings | None = None
    ) -> TransitionsAndRepeats:
        """Count the successions of the training histories."""
        settings = settings or RepeatSettings()
        counted = PCTM.fit(histories, num_items, settings)
        return cls(counted.log_counts, counted.log_popularity, settings)

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return len(self.log_popularity) - 1

    def scores_of(
        self, histories: Histories, candidates: NDArray[np.int32] | None = None
    ) -> NDArray[np.float64]:
        """Return the scores of all items [B, I + 1], or of the candidates [B, C]."""
        followed = PCTM(self.log_counts, self.log_popularity, self.settings)
        repeats = RepeatCounts(self.num_items).scores_of(histories, candidates)
        return followed.scores_of(histories, candidates) + self.settings.repeats * repeats
