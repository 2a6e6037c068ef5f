"""The scorer behind recommendations: a model, and popularity for who has no history."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import Histories
from recsys.inference.scorer import Scorer


@dataclass(frozen=True, slots=True, eq=False)
class ServingScorer:
    """The model, and popularity where a history is empty. A `Scorer`."""

    model: Scorer
    popularity: Tensor
    """Score by item token [I + 1]."""

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return self.model.num_items

    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`; on the CPU."""
        scores = self.popularity.repeat(len(histories), 1)
        rows = np.flatnonzero(histories.lengths)
        if len(rows):
            scores[torch.from_numpy(rows)] = self.model.score(histories.take(rows)).cpu()
        if candidates is None:
            return scores
        return scores.gather(1, torch.from_numpy(candidates.astype(np.int64)))
