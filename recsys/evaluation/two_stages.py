"""A large catalogue in two stages: a cheap scorer retrieves, a dear one ranks what was found."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import Histories
from recsys.data.holdout import Holdout
from recsys.data.prepared import Part
from recsys.errors import InputError
from recsys.evaluation.rank_table import evaluate
from recsys.evaluation.ranking import Seen, top_k
from recsys.evaluation.scorer import Scorer


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


@dataclass(frozen=True, slots=True)
class RetrievalFigures:
    """What two stages find; all but the seconds are means over users."""

    retrieve: int
    """N; in one stage the size of the catalogue."""
    retrieved: float
    """Share of a user's targets that are among the N: the limit of any recall behind it."""
    recall_at_10: float
    ndcg_at_10: float
    seconds: float
    """For ranking all targets."""


def retrieval_figures(
    retriever: Scorer,
    ranker: Scorer,
    holdout: Holdout,
    part: Part,
    seen: Seen,
    sizes: Sequence[int],
) -> list[RetrievalFigures]:
    """What two stages find of the targets of a holdout for each N of ``sizes``, ascending.

    The last ones are those of the ranker in one stage; an N that is no smaller than the catalogue
    would be the same, and is left out.

    Raises:
        InputError: an N is below 1.
    """
    num_items = ranker.num_items
    stages: list[tuple[int, Scorer]] = [
        (size, TwoStages(retriever, ranker, size, seen))
        for size in sorted(set(sizes))
        if size < num_items
    ]
    figures = []
    for size, scorer in [*stages, (num_items, ranker)]:
        started = time.perf_counter()
        table = evaluate(scorer, holdout, part, seen)
        seconds = time.perf_counter() - started
        # A target that was not found has no rank, and one that was is among N: recall@N counts it.
        names = [f"recall_at_{size}", "recall_at_10", "ndcg_at_10"]
        retrieved, recall, ndcg = (float(table.values(name).mean()) for name in names)
        figures.append(RetrievalFigures(size, retrieved, recall, ndcg, seconds))
    return figures
