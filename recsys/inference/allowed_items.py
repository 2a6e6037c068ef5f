"""A scorer of some items only: the others are never recommended."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import Histories
from recsys.inference.model_scorer import MOST_CANDIDATES
from recsys.inference.scorer import Scorer


@dataclass(frozen=True, slots=True, eq=False)
class AllowedItems:
    """A `Scorer`: the scores of another one for the allowed items, -inf for all others."""

    scorer: Scorer
    allowed: NDArray[np.bool_]
    """Shape [I + 1]: whether each item token is allowed; PAD is not."""

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return self.scorer.num_items

    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`. Where few items are allowed, only these are scored."""
        if candidates is not None:
            scores = self.scorer.score(histories, candidates)
            return scores.masked_fill(
                torch.from_numpy(~self.allowed[candidates]).to(scores.device), -torch.inf
            )
        few = np.flatnonzero(self.allowed).astype(np.int32)
        if len(few) > MOST_CANDIDATES * self.num_items:
            scores = self.scorer.score(histories)
            return scores.masked_fill(torch.from_numpy(~self.allowed).to(scores.device), -torch.inf)
        found = self.scorer.score(histories, np.tile(few, (len(histories), 1)))
        shape = len(histories), self.num_items + 1
        scores = torch.full(shape, -torch.inf, device=found.device)
        scores[:, torch.from_numpy(few).long().to(found.device)] = found
        return scores
