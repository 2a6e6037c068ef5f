"""Two stages for large catalogues: a fast scorer retrieves items, an exact one ranks them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.inference.ranking import top_k
from recsys.inference.scorer import Scorer, Seen


@dataclass(frozen=True, slots=True, eq=False)
class TwoStages:
    """A `Scorer`: the scores of the ranker, for only each user's N best items of the retriever.

    All other items score -inf: they are never recommended, and a target among them has the rank
    `NEVER`. If N is the size of the catalogue, the scores are those of the ranker.

    Raises:
        InputError: ``retrieve`` is below 1.
    """

    retriever: Scorer
    """Scores the entire catalogue."""
    ranker: Scorer
    """Scores the retrieved items."""
    retrieve: int
    """N, the number of items retrieved for each user; or all items, if they are fewer."""
    seen: Seen
    """With "filter", no item of the history is retrieved."""

    def __post_init__(self) -> None:
        if self.retrieve < 1:
            raise InputError(f"retrieve={self.retrieve}: must be at least 1")

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return self.ranker.num_items

    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`."""
        count = min(self.retrieve, self.num_items)
        found, _ = top_k(self.retriever, histories, count, self.seen)
        ranked = self.ranker.score(histories, found)
        shape = len(histories), self.num_items + 1
        scores = torch.full(shape, -torch.inf, device=ranked.device)
        # Where fewer than N items are left to retrieve, PAD fills the end, and scores -inf.
        scores.scatter_(1, torch.from_numpy(found).long().to(ranked.device), ranked)
        if candidates is None:
            return scores
        return scores.gather(1, torch.from_numpy(candidates).long().to(ranked.device))
