"""The scorers of a bundle: two stages, an index, and the most popular items for a new user."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.inference.item_index import IndexedScorer
from recsys.inference.model_scorer import StateCache
from recsys.inference.ranking import AllowedItems, TwoStages, top_k
from recsys.inference.scorer import Scored, Scorer, Seen
from recsys.serving.bundle import ModelBundle
from recsys.serving.index import BundleIndex, query_encoder

_STATES = 64 << 20
"""Bytes of encoded histories that are kept from a search to the scoring of what it found."""


@dataclass(frozen=True, slots=True, eq=False)
class PopularityFallback:
    """Scores of a model, and of popularity for empty histories. A `RankingScorer`."""

    model: Scorer
    popularity: Tensor
    """Shape [I + 1]: the score of each item token; -inf for PAD."""

    @property
    def num_items(self) -> int:
        """Size of the catalogue, I."""
        return self.model.num_items

    def score(self, histories: Histories, candidates: NDArray[np.int32] | None = None) -> Tensor:
        """See `Scorer.score`; on the CPU."""
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

    def top_k(
        self, histories: Histories, k: int, seen: Seen
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """See `top_k`."""
        items = np.empty((len(histories), k), dtype=np.int32)
        values = np.empty((len(histories), k), dtype=np.float32)
        known, unknown = np.flatnonzero(histories.lengths), np.flatnonzero(histories.lengths == 0)
        if len(known):
            items[known], values[known] = top_k(self.model, histories.take(known), k, seen)
        if len(unknown):  # all of them get the same
            popular = Scored(self.popularity[None].clone())
            items[unknown], values[unknown] = top_k(popular, histories.take(unknown[:1]), k, seen)
        return items, values


def candidate_scorer(bundle: ModelBundle) -> PopularityFallback:
    """Return the scorer of given candidates."""
    counts = torch.from_numpy(bundle.popularity)
    return PopularityFallback(bundle.scorer, pad(counts, (1, 0), value=-torch.inf))


def ranking_scorer(
    bundle: ModelBundle,
    seen: Seen,
    retrieve: int | None = None,
    allowed: NDArray[np.bool_] | None = None,
    index: BundleIndex | None = None,
) -> Scorer:
    """Put the scorer together that finds the best items; see `Recommender.recommend`.

    Items that may be ``allowed`` are told by their tokens [I + 1].

    Raises:
        InputError: ``retrieve`` is given, and the model has no target attention; or with an index
            it has, and none is given.
    """
    if index is not None:
        if bundle.model.head.attends and retrieve is None:
            raise InputError(
                f"{index.path}: finds items by the dot product, and target attention ranks them: "
                "say how many (--retrieve, retrieve=)"
            )
        if bundle.states is None:  # queries and scores of a call encode once
            bundle = replace(bundle, states=StateCache(_STATES))
    scorer = candidate_scorer(bundle)
    if retrieve is not None:
        first = bundle.retriever if allowed is None else AllowedItems(bundle.retriever, allowed)
        scorer = replace(scorer, model=TwoStages(first, bundle.scorer, retrieve, seen))
    if allowed is not None:
        return AllowedItems(scorer, allowed)
    if index is None:
        return scorer
    return IndexedScorer(scorer, bundle.scorer, query_encoder(bundle), index.items, retrieve)
