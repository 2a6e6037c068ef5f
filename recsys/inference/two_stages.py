"""A large catalogue in two stages: a cheap scorer retrieves, a dear one ranks what was found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.inference.ranking import Seen, top_k
from recsys.inference.scorer import Scorer


@dataclass(frozen=True, slots=True, eq=False)
class TwoStages:
    """The scores of the ranker, for each user's N best items of the retriever alone. A `Scorer`.

    All other items score -inf: they are never recommended, and a target among them has the rank
    `NEVER`. Where N is the size of the catalogue, the scores are those of the ranker.

    Raises:
        InputError: ``retrieve`` is below 1.
    """

    retriever: Scorer
    """Scores the whole catalogue."""
    ranker: Scorer
    """Scores what was found."""
    retrieve: int
    """N: items found for each user, or all that there are."""
    seen: Seen
    """filter: items of the history take up none of the N places."""

    def __post_init__(self) -> None:
        if self.retrieve < 1:
            raise InputError(f"retrieve={self.retrieve}: must be at least 1")

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return self.ranker.num_items

    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`."""
        places = min(self.retrieve, self.num_items)
        found, _ = top_k(self.retriever, histories, places, self.seen)
        ranked = self.ranker.score(histories, found)
        shape = len(histories), self.num_items + 1
        scores = torch.full(shape, -torch.inf, device=ranked.device)
        # Where fewer than N were left to find, PAD fills the places, and scores -inf as ever.
        scores.scatter_(1, torch.from_numpy(found).long().to(ranked.device), ranked)
        if candidates is None:
            return scores
        return scores.gather(1, torch.from_numpy(candidates).long().to(ranked.device))
