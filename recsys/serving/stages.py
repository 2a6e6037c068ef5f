"""The scorers of a bundle: two stages, an index, and the most popular items for a new user."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from recsys.data.histories import Histories
from recsys.errors import InputError
from recsys.inference.item_index import IndexedScorer, ItemIndex
from recsys.inference.model_scorer import ModelScorer, StateCache
from recsys.inference.ranking import AllowedItems, TwoStages, top_k
from recsys.inference.scorer import Scored, Scorer, Seen
from recsys.serving.bundle import ModelBundle, model_scorer
from recsys.serving.index import STATES, BundleIndex, check_index, query_encoder


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

    def top_k(
        self, histories: Histories, k: int, seen: Seen
    ) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """See `top_k`; the model finds its best items as it does alone."""
        items = np.empty((len(histories), k), dtype=np.int32)
        values = np.empty((len(histories), k), dtype=np.float32)
        known, unknown = np.flatnonzero(histories.lengths), np.flatnonzero(histories.lengths == 0)
        if len(known):
            items[known], values[known] = top_k(self.model, histories.take(known), k, seen)
        if len(unknown):  # all of them get the same
            popular = Scored(self.popularity[None].clone())
            items[unknown], values[unknown] = top_k(popular, histories.take(unknown[:1]), k, seen)
        return items, values


@dataclass(frozen=True, slots=True, eq=False)
class Stages:
    """What the scorers of one bundle share; users with empty histories get the most popular."""

    ranker: Scorer
    retriever: Scorer | None
    """Finds the items that the ranker ranks; None where it ranks all."""
    retrieve: int | None
    """How many items the retriever finds."""
    popularity: Tensor
    """Shape [I + 1]: the score of each item token for an empty history; -inf for PAD."""
    encoder: ModelScorer | None = None
    """Makes the queries of the index."""
    index: ItemIndex | None = None
    """Finds the best items by dot products; None where all are scored."""

    @classmethod
    def of(
        cls,
        bundle: ModelBundle,
        retrieve: int | None,
        states: StateCache | None = None,
        index: BundleIndex | None = None,
    ) -> Stages:
        """Make the scorers of a bundle.

        Args:
            bundle: the model, or the baseline.
            retrieve: how many items target attention ranks; all if None.
            states: keeps encoded histories; with an index alone, those of one call, so that queries
                and scores encode once.
            index: finds the best items; all are scored if None.

        Raises:
            InputError: ``retrieve`` is given, and the model has no target attention; or with an
                index it has, and none is given; the index is of another model.
        """
        counts = torch.from_numpy(bundle.popularity)
        popularity = torch.cat([torch.tensor([-torch.inf]), counts])
        retriever = None if retrieve is None else bundle.retriever  # raises without attention
        if bundle.trained is None:
            if index is not None:
                check_index(index.path, index.manifest, bundle)
            return cls(bundle.scorer, retriever, retrieve, popularity)
        model, settings, ensemble = bundle.trained, bundle.experiment, bundle.count_ensemble
        ranker = bundle.scorer
        if index is not None and states is None:
            states = StateCache(STATES)
        if states is not None:
            ranker = model_scorer(model, settings, ensemble, states=states)
            if retriever is not None:
                retriever = model_scorer(model, settings, ensemble, model.head.dot_product, states)
        if index is None:
            return cls(ranker, retriever, retrieve, popularity)
        check_index(index.path, index.manifest, bundle)
        if model.head.attends and retrieve is None:
            raise InputError(
                f"{index.path}: finds items by the dot product, and target attention ranks them: "
                "say how many (--retrieve, retrieve=)"
            )
        encoder = query_encoder(bundle, states)
        return cls(ranker, retriever, retrieve, popularity, encoder, index.items)

    def scorer(self, seen: Seen, allowed: NDArray[np.bool_] | None = None) -> Scorer:
        """Put a scorer together, which costs nothing.

        Args:
            seen: for two stages: with "filter", no item of the history is retrieved.
            allowed: whether each item token may be recommended [I + 1]; if None, all may.
        """
        scorer = self.ranker
        if self.retrieve is not None and self.retriever is not None:
            first = self.retriever if allowed is None else AllowedItems(self.retriever, allowed)
            scorer = TwoStages(first, scorer, self.retrieve, seen)
        scorer = PopularityFallback(scorer, self.popularity)
        scorer = scorer if allowed is None else AllowedItems(scorer, allowed)
        if self.index is None or self.encoder is None:
            return scorer
        return IndexedScorer(scorer, self.ranker, self.encoder, self.index, self.retrieve, allowed)

    @property
    def candidates(self) -> Scorer:
        """The scorer of given candidates."""
        return PopularityFallback(self.ranker, self.popularity)
