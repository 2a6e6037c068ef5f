"""The answer for a user of whom the model knows nothing: the most popular items."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.inference.allowed_items import AllowedItems
from recsys.inference.ranking import Seen
from recsys.inference.scorer import Scorer
from recsys.inference.two_stages import TwoStages
from recsys.serving.bundle import ModelBundle
from recsys.serving.inputs import UserHistories


@dataclass(frozen=True, slots=True, eq=False)
class PopularityFallback:
    """Scores of a model, and of popularity for empty histories. A `Scorer`."""

    model: Scorer
    popularity: Tensor
    """Shape [I + 1]: the score of each item token; -inf for PAD."""

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return self.model.num_items

    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`; the scores are on the CPU."""
        rows = np.flatnonzero(histories.lengths)
        if len(rows) == len(histories):
            return self.model.score(histories, candidates).cpu()
        if candidates is None:
            scores = self.popularity.repeat(len(histories), 1)
        else:
            scores = self.popularity[torch.from_numpy(candidates.astype(np.int64))]
        if len(rows):
            own = None if candidates is None else candidates[rows]
            scores[torch.from_numpy(rows)] = self.model.score(histories.take(rows), own).cpu()
        return scores


def scorer_of(
    bundle: ModelBundle,
    seen: Seen = "allow",
    retrieve: int | None = None,
    allowed: NDArray[np.bool_] | None = None,
) -> Scorer:
    """Return the scorer of a bundle, with popularity for empty histories.

    Args:
        bundle: the model, or the baseline.
        seen: for two stages: with "filter", no item of the history is retrieved.
        retrieve: how many items target attention ranks; all if None.
        allowed: whether each item token may be recommended [I + 1]; if None, all may.

    Raises:
        InputError: ``retrieve`` is given, and the model has no target attention.
    """
    stages = Stages.of(bundle, bundle.scorer, None if retrieve is None else bundle.retriever)
    return stages.scorer(seen, retrieve, allowed)


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What the scorers of one bundle share: see `scorer_of`."""

    ranker: Scorer
    retriever: Scorer | None
    """Finds the items that the ranker ranks; None where it ranks all."""
    popularity: Tensor
    """Shape [I + 1]: the score of each item token for an empty history; -inf for PAD."""

    @classmethod
    def of(cls, bundle: ModelBundle, ranker: Scorer, retriever: Scorer | None) -> Stages:
        """Add the popularity of the items of a bundle."""
        counts = torch.from_numpy(bundle.popularity)
        return cls(ranker, retriever, torch.cat([torch.tensor([-torch.inf]), counts]))

    def scorer(
        self, seen: Seen, retrieve: int | None, allowed: NDArray[np.bool_] | None = None
    ) -> Scorer:
        """Put a scorer together, which costs nothing; for the arguments see `scorer_of`."""
        scorer = self.ranker
        if retrieve is not None and self.retriever is not None:
            first = self.retriever if allowed is None else AllowedItems(self.retriever, allowed)
            scorer = TwoStages(first, scorer, retrieve, seen)
        scorer = PopularityFallback(scorer, self.popularity)
        return scorer if allowed is None else AllowedItems(scorer, allowed)


def answer_table(
    queries: UserHistories, rows: NDArray[np.int64], items: pl.Series, scores: NDArray[np.float32]
) -> pl.DataFrame:
    """Return one line per pair [N] of a user, given by row, and an item, with its source."""
    sources = np.where(queries.histories.lengths == 0, "popularity", "model")
    return pl.DataFrame(
        {
            "user_id": queries.user_ids.gather(rows),
            "item_id": items,
            "score": scores,
            "source": pl.Series(sources, dtype=pl.String).gather(rows),
        }
    )


def seen_policy(bundle: ModelBundle, seen: Seen | None) -> Seen:
    """Return the given policy for seen items, or that of training.

    Raises:
        InputError: it is neither "filter" nor "allow".
    """
    seen = bundle.manifest.protocol.seen if seen is None else seen
    if str(seen) not in ("filter", "allow"):
        raise InputError(f"seen={seen!r}: must be 'filter' or 'allow'")
    return seen
