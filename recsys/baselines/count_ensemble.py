"""The count ensemble: the scores of a trained model plus counts, weighed on validation.

A Transformer trained on tens of thousands of users does not retain what counts know: how often one
item followed another; how often the user bought each item; what everybody bought of late.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_array

from recsys.baselines.counts import Floats, Popularity, RepeatCounts, Tokens, item_counts
from recsys.baselines.saved import finite, opened, read_counts, save_counts
from recsys.baselines.transitions import PCTM
from recsys.data.histories import Histories
from recsys.inference.scorer import Blend, Scorer

_HEADER = "recsys.count_ensemble"
_WEIGHTS = ("weight", "repeat_weight", "recent_weight", "recent_share")


@dataclass(frozen=True, slots=True, eq=False)
class CountEnsemble:
    """Counts and their weights, to be added to the scores of a trained model."""

    counts: PCTM
    """The transition counts, with the popularity in the newest share of the interactions."""
    weight: float
    repeat_weight: float = 0.0
    """Weight of log(1 + n), where n is how often the user's history has the candidate."""
    recent_weight: float = 0.0
    """Weight of log p, where p is the candidate's share of the newest interactions."""
    recent_share: float = 1.0
    """The share of all interactions that are the newest ones."""

    def added_to(self, model: Scorer) -> Scorer:
        """Return a scorer of the model's scores plus the weighted counts."""
        terms: list[tuple[Scorer, float]] = [
            (model, 1.0),
            (RepeatCounts(model.num_items), self.repeat_weight),
            (self.counts, self.weight),
            (Popularity(self.counts.log_popularity), self.recent_weight),
        ]
        return Blend.of(terms)

    def with_new_items(
        self, num_items: int, histories: Histories, newest: Histories
    ) -> CountEnsemble:
        """Return the ensemble for a larger catalogue, whose first items are the known ones.

        Pairs with a new item are counted in the histories, new items in the newest of them; pairs
        of known items keep their counts.
        """
        counts, known = self.counts, self.counts.num_items
        matrix = counts.log_counts.copy()
        matrix.resize((num_items + 1, num_items + 1))  # type: ignore[arg-type]
        pairs = PCTM.fit(histories, num_items, counts.settings).log_counts.tocoo()
        added = (pairs.row > known) | (pairs.col > known)
        new = (pairs.data[added], (pairs.row[added], pairs.col[added]))
        times = item_counts(newest, num_items)[known + 1 :]
        rare = counts.log_popularity.min() + np.log1p(times)
        counts = replace(
            counts,
            log_counts=matrix + csr_array(new, shape=pairs.shape),
            log_popularity=np.append(counts.log_popularity, rare),
        )
        return replace(self, counts=counts)

    def contributions(self, items: Tokens, candidate: int) -> Floats:
        same = items == candidate
        repeated = same * (math.log1p(same.sum()) / max(same.sum(), 1))
        followed = self.counts.contributions(items, candidate)
        return self.weight * followed + self.repeat_weight * repeated

    def for_all(self, candidates: Tokens) -> Floats:
        """Return what is added to the scores of candidates [C] whatever the history."""
        return self.recent_weight * self.counts.log_popularity[candidates]

    def items_read(self, model: int) -> int:
        """Return how many of the newest items influence the sum with a model that reads so many."""
        longest = max(model, self.counts.settings.history_length)
        return sys.maxsize if self.repeat_weight else longest

    def save(self, path: str | os.PathLike[str]) -> None:
        weights = {name: getattr(self, name) for name in _WEIGHTS}
        save_counts(self.counts, path, _HEADER, weights=weights)

    @classmethod
    def load(cls, path: str | os.PathLike[str], num_items: int) -> CountEnsemble:
        """Read a file that `save` wrote for a catalogue of this size, or raise InputError."""
        with opened(path, _HEADER, "a count ensemble") as (tensors, facts):
            counts = read_counts(PCTM, tensors, facts, num_items)
            weights = np.array([facts["weights"][name] for name in _WEIGHTS], dtype=np.float64)
            return cls(counts, *finite("weights", weights).tolist())
